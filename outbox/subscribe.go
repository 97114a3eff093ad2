package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/runner"
)

// Payload is what an event says. Its type ties the Go type to the stored one, so that
// nobody subscribes to one event and decodes another.
type Payload interface {
	// EventType is a constant, such as "order.placed.v1". It is called on a zero value.
	EventType() string
}

// Event is what a handler gets.
type Event[T Payload] struct {
	// ID is the event's, the same at each attempt: deduplicate by it.
	ID string
	// Key is what orders it; empty: nothing.
	Key string
	// Sequence is its place within its key, 0 without one.
	Sequence int64
	// Attempt counts, 1 the first.
	Attempt int
	// PublishedAt is by the clock of who published.
	PublishedAt time.Time
	// Headers are as they were published; numbers are json.Number, exact.
	Headers map[string]any
	// Payload is decoded from JSON.
	Payload T
}

// SubscribeOptions say how a handler is run; zero is the default of each field.
type SubscribeOptions struct {
	// Transactional runs the handler in a transaction that also completes the delivery:
	// what it writes with its ctx is there once, together with the completion. It may run
	// more than once for that, so all that it does must go through ctx.
	Transactional bool
	// MaxAttempts is after how many failed runs a delivery is buried. One that a process
	// died of counts, but for the first; one that an orderly stop cut off does not, nor a
	// claim whose run never began. 0 is 10; negative buries only what is Permanent or
	// cannot be decoded.
	MaxAttempts int
	// Concurrency is how many deliveries run at a time in this process. 0 is 4; negative,
	// and more than 1,000, is refused.
	Concurrency int
	// Backoff is how long a failed delivery is kept back after attempt 1, 2, ... Nil is a
	// random time up to 200 ms, doubling up to 1 minute (full jitter).
	Backoff func(attempt int) time.Duration
	// Timeout bounds one run by the handler's ctx. 0 is none, for a transactional one 20 s;
	// negative is refused. A transactional delivery's lease is renewed until its run
	// starts, never during, because the two would conflict.
	Timeout time.Duration
}

const (
	mostConcurrent       = 1000
	transactionalTimeout = 20 * time.Second
)

// subscription is a handler and how it is run.
type subscription struct {
	bus    *Bus
	id     string
	opts   SubscribeOptions
	handle func(ctx context.Context, d *Delivery) error // nil: it runs in another process
	runner *runner.Runner[*Delivery]
	claims atomic.Int64 // deliveries claimed since Drain asked

	mu     sync.Mutex
	inside map[*Delivery]bool // in their transaction: not to be renewed
}

// Subscribe lets each event of T's type that is published from now on be delivered to
// the handler named id: once it returns nil the delivery is completed, an error by
// mongostore.Permanent buries it, one by mongostore.RetryAfter, and any other, keeps it
// back, and with it all that its key has after it. h is called concurrently, but never
// two at a time for one key, by all processes together; ctx ends, with ErrLeaseLost as
// its cause, when the lease cannot be trusted any more, and with another cause when the
// bus stops. With a nil h the handler runs in another process, and this one only knows
// that there is one to publish to. Every process that publishes must subscribe all.
//
// Returns ErrInvalid if b is nil, id is empty, holds a colon, is not UTF-8 or is taken,
// T's EventType is empty or panics on a zero value, a field of opts makes no sense, or
// the bus runs.
func Subscribe[T Payload](b *Bus, id string, h func(context.Context, Event[T]) error, opts SubscribeOptions) error {
	if b == nil {
		return invalid("b", "is nil")
	}
	typ, err := typeOf(zero[T]())
	if err != nil {
		return err
	}
	sub := &subscription{bus: b, id: id, opts: opts, inside: map[*Delivery]bool{}}
	if h != nil {
		sub.handle = func(ctx context.Context, d *Delivery) error {
			if d.Message.Type != typ { // the handler was subscribed to another event once
				return mongostore.Permanent(fmt.Errorf("the event is a %q, and the handler is subscribed to %q", d.Message.Type, typ))
			}
			return handleTyped(ctx, d, h)
		}
	}
	return b.subscribe(sub, typ)
}

// zero is a value on which EventType can be called, also where T is a pointer.
func zero[T Payload]() (v T) {
	if t := reflect.TypeFor[T](); t.Kind() == reflect.Pointer {
		v, _ = reflect.New(t.Elem()).Interface().(T)
	}
	return v
}

func typeOf(p Payload) (typ string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = invalid("EventType", fmt.Sprintf("of %T panics: %v", p, r))
		}
	}()
	if v := reflect.ValueOf(p); p == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return "", invalid("Payload", "is nil")
	}
	typ = p.EventType()
	return typ, validText("EventType", typ)
}

func handleTyped[T Payload](ctx context.Context, d *Delivery, h func(context.Context, Event[T]) error) error {
	e := Event[T]{
		ID: d.Message.ID, Key: d.Message.Key, Sequence: d.Sequence, Attempt: d.Attempt,
		PublishedAt: d.publishedAt, Headers: d.Message.Headers,
	}
	payload, _ := d.Message.Payload.(json.RawMessage)
	if err := json.Unmarshal(payload, &e.Payload); err != nil {
		return mongostore.Permanent(fmt.Errorf("decode the payload into %T: %w", e.Payload, err))
	}
	return h(ctx, e)
}

func (b *Bus) subscribe(sub *subscription, typ string) error {
	if err := validHandler("id", sub.id); err != nil {
		return err
	}
	if err := sub.opts.fill(); err != nil {
		return err
	}
	sub.runner = runner.New[*Delivery](sub, runner.Config{
		Workers: sub.opts.Concurrency, Batch: max(sub.opts.Concurrency, defaultClaim),
		PollEvery: time.Hour, // the bus polls for all
		LeaseFor:  b.cfg.LeaseFor, StopTimeout: b.cfg.StopTimeout, Lost: mongostore.ErrLeaseLost, Logger: b.store.cfg.Logger,
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.running:
		return invalid("Bus", "runs already")
	case b.subs[sub.id] != nil:
		return invalid("id", "is taken by another handler")
	}
	b.subs[sub.id] = sub
	b.types[typ] = append(b.types[typ], sub.id)
	return nil
}

// fill sets the defaults.
func (o *SubscribeOptions) fill() error {
	switch {
	case o.Concurrency < 0:
		return invalid("SubscribeOptions.Concurrency", "is negative")
	case o.Concurrency > mostConcurrent:
		return invalid("SubscribeOptions.Concurrency", fmt.Sprintf("is above %d", mostConcurrent))
	case o.Timeout < 0:
		return invalid("SubscribeOptions.Timeout", "is negative")
	case o.Timeout > maxLeaseFor/2:
		return invalid("SubscribeOptions.Timeout", "is above half a year")
	}
	o.MaxAttempts, o.Concurrency = orElse(o.MaxAttempts, 10), orElse(o.Concurrency, 4)
	if o.Backoff == nil {
		o.Backoff = runner.FullJitter
	}
	if o.Transactional {
		o.Timeout = orElse(o.Timeout, transactionalTimeout)
	}
	return nil
}
