package outbox

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/runner"
	"github.com/execstore/mongostore/internal/wait"
)

// BusConfig says how a Bus works; zero is the default of each field, and negative is
// refused unless a field says otherwise.
type BusConfig struct {
	// LeaseFor is how long a lease lasts that is not renewed, and so how long the work of a
	// process that died waits; it is renewed four times in that. A quarter of it is the
	// allowed difference between the clocks of two processes. 0 is 30 s; less than 100 ms
	// and more than a year are refused.
	LeaseFor time.Duration
	// PollEvery is the longest pause between two looks at what is due. 0 is 1 s.
	PollEvery time.Duration
	// StopTimeout is how long handlers may go on after Run's ctx has ended. 0 is 10 s.
	StopTimeout time.Duration
	// PurgeEvery is how often what is older than KeepCompleted and KeepDead is deleted.
	// 0 is 1 h; negative: never.
	PurgeEvery time.Duration
	// KeepCompleted is how long completed deliveries stay. 0 is 7 days; negative: for ever.
	KeepCompleted time.Duration
	// KeepDead is how long dead letters stay. 0, and negative: for ever.
	KeepDead time.Duration
	// Observe is told what happens to deliveries, concurrently, and must not block. ID is
	// that of the delivery, Handler its handler, Key its key. Nil: nobody.
	Observe func(mongostore.RelayEvent)
}

// Bus publishes events to those who subscribed, and runs their handlers: any number of
// processes share the work, in order per handler and key. Its methods are safe for
// concurrent use, but Subscribe is for before Run. Make it by NewBus.
type Bus struct {
	store *Store
	cfg   BusConfig

	mu      sync.Mutex
	subs    map[string]*subscription // by handler id
	types   map[string][]string      // handler ids by event type, as subscribed
	running bool

	finisher runner.Combiner[finishing]
	counted  atomic.Int64 // completed deliveries
}

// NewBus makes a Bus on a store, without network work.
// Returns ErrInvalid if store is nil or a field of cfg makes no sense.
func NewBus(store *Store, cfg BusConfig) (*Bus, error) {
	if store == nil {
		return nil, invalid("store", "is nil")
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"PollEvery", cfg.PollEvery}, {"StopTimeout", cfg.StopTimeout}} {
		if f.value < 0 {
			return nil, invalid("BusConfig."+f.name, "is negative")
		}
	}
	cfg.PollEvery, cfg.LeaseFor = orElse(cfg.PollEvery, time.Second), orElse(cfg.LeaseFor, leaseFor)
	if cfg.LeaseFor < minLeaseFor || cfg.LeaseFor > maxLeaseFor {
		return nil, invalid("BusConfig.LeaseFor", "is not between 100 ms and a year")
	}
	cfg.StopTimeout = orElse(cfg.StopTimeout, 10*time.Second)
	cfg.PurgeEvery = orElse(cfg.PurgeEvery, time.Hour)
	cfg.KeepCompleted = orElse(cfg.KeepCompleted, 7*24*time.Hour)
	if cfg.Observe == nil {
		cfg.Observe = func(mongostore.RelayEvent) {}
	}
	b := &Bus{store: store, cfg: cfg, subs: map[string]*subscription{}, types: map[string][]string{}}
	b.finisher.Send, b.finisher.Most = b.sendFinished, finishBatch
	return b, nil
}

// Run works until ctx ends, and returns nil then: what was claimed and not begun is
// released, handlers get StopTimeout, and those that go on longer have their ctx
// cancelled and are waited for. It goes on through errors of the server. It does not call
// Setup, but warns in the log if that was forgotten. At most one Run or Drain at a time.
// Returns ErrInvalid if the bus runs already, or ctx has an open transaction;
// ErrNoTransactions on a standalone server.
func (b *Bus) Run(ctx context.Context) error {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	subs, err := b.begin()
	if err != nil {
		return err
	}
	defer b.end()
	if err := b.store.sayWhatIsMissing(ctx); errors.Is(err, ErrNoTransactions) {
		return wrapErr("run", err)
	}
	var all sync.WaitGroup
	for _, sub := range subs {
		leave := b.store.listeners.add(sub.id, func() { sub.runner.Wake("") })
		defer leave()
		all.Go(func() { _ = sub.runner.Run(ctx) }) // the bus runs once, so this does
	}
	all.Go(func() { b.poll(ctx, subs) })
	all.Go(func() { b.purgeOnSchedule(ctx) })
	<-ctx.Done() // also where there is nothing to do
	all.Wait()
	return nil
}

// Drain works until nothing is due by the store's Clock, not even what handlers
// published, and returns how many deliveries it completed: for tests, and for jobs that
// run from time to time. What backs off, is delayed, or is leased by others is not due.
// At most one Run or Drain at a time.
// Returns ErrInvalid if the bus runs already, or ctx has an open transaction;
// ErrNoTransactions on a standalone server; else ctx's error, or that of a claim.
func (b *Bus) Drain(ctx context.Context) (int, error) {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return 0, err
	}
	subs, err := b.begin()
	if err != nil {
		return 0, err
	}
	defer b.end()
	if err := b.store.sayWhatIsMissing(ctx); err != nil {
		return 0, wrapErr("drain", err)
	}
	before := b.counted.Load()
	if err = b.store.repair(ctx); err == nil { // a test must not depend on when the last one was
		err = b.drain(ctx, subs)
	}
	return int(b.counted.Load() - before), wrapErr("drain", err)
}

func (b *Bus) drain(ctx context.Context, subs []*subscription) error {
	for {
		var all sync.WaitGroup
		errs := make([]error, len(subs))
		for i, sub := range subs {
			all.Go(func() { errs[i] = sub.runner.Drain(ctx) })
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		due, err := b.store.dueHandlers(ctx, handlersOf(subs))
		if err != nil || len(due) == 0 {
			return err
		}
		if worked := b.anyWorked(subs); !worked {
			return nil // what is due is blocked by what others hold
		}
	}
}

// anyWorked is whether a subscription has claimed something since this was asked last.
func (b *Bus) anyWorked(subs []*subscription) (worked bool) {
	for _, sub := range subs {
		worked = sub.claims.Swap(0) > 0 || worked
	}
	return worked
}

// begin takes the subscriptions that have a handler here.
func (b *Bus) begin() ([]*subscription, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running {
		return nil, invalid("Bus", "runs already")
	}
	b.running = true
	var subs []*subscription
	for _, id := range slices.Sorted(maps.Keys(b.subs)) {
		if sub := b.subs[id]; sub.handle != nil {
			subs = append(subs, sub)
		}
	}
	return subs, nil
}

func (b *Bus) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = false
}

func handlersOf(subs []*subscription) []string {
	ids := make([]string, 0, len(subs))
	for _, sub := range subs {
		ids = append(ids, sub.id)
	}
	return ids
}

const firstPoll = 50 * time.Millisecond // after there was something

// poll looks for all handlers at once, so that many cost no more than one when nothing
// is due.
func (b *Bus) poll(ctx context.Context, subs []*subscription) {
	if len(subs) == 0 {
		return
	}
	byID := make(map[string]*subscription, len(subs))
	for _, sub := range subs {
		byID[sub.id] = sub
	}
	for pause := firstPoll; wait.For(ctx, pause); pause = min(2*pause, b.cfg.PollEvery) {
		b.store.repairIfDue(ctx)
		due, err := b.store.dueHandlers(ctx, handlersOf(subs))
		if err != nil && ctx.Err() == nil {
			b.store.cfg.Logger.Warn("outbox: what is due could not be looked for", "error", err)
		}
		for _, id := range due {
			byID[id].runner.Wake("")
		}
		if len(due) > 0 {
			pause = min(firstPoll, b.cfg.PollEvery) / 2
		}
	}
}

// dueHandlers are those that have something due, found by one index key each.
func (s *Store) dueHandlers(ctx context.Context, handlers []string) ([]string, error) {
	const most = 500 // a pipeline has at most 1,000 stages
	var due []string
	for some := range slices.Chunk(handlers, most) {
		found, err := s.someDue(ctx, some)
		if err != nil {
			return due, err
		}
		due = append(due, found...)
	}
	return due, nil
}

func (s *Store) someDue(ctx context.Context, handlers []string) ([]string, error) {
	now := s.now()
	first := func(handler string) bson.A {
		return bson.A{
			op("$match", bson.D{{Key: "handler", Value: handler}, {Key: "due_at", Value: op("$lte", now)}}),
			op("$limit", 1), op("$project", bson.D{{Key: "_id", Value: 0}, {Key: "handler", Value: 1}}),
		}
	}
	pipeline := first(handlers[0])
	for _, h := range handlers[1:] {
		pipeline = append(pipeline, op("$unionWith", bson.D{{Key: "coll", Value: s.deliveries.Name()}, {Key: "pipeline", Value: first(h)}}))
	}
	docs, err := s.aggregate(ctx, s.deliveries, pipeline)
	due := make([]string, 0, len(docs))
	for _, doc := range docs {
		due = append(due, text(doc.Lookup("handler")))
	}
	return due, err
}

// purgeOnSchedule begins after a random part of the pause, so that processes that were
// started together do not purge together.
func (b *Bus) purgeOnSchedule(ctx context.Context) {
	if b.cfg.PurgeEvery < 0 || b.cfg.KeepCompleted < 0 && b.cfg.KeepDead <= 0 {
		return
	}
	for pause := rand.N(b.cfg.PurgeEvery) + 1; wait.For(ctx, pause); pause = b.cfg.PurgeEvery {
		n, err := b.store.Purge(ctx, b.retention())
		if err != nil && ctx.Err() == nil {
			b.store.cfg.Logger.Warn("outbox: the scheduled purge failed", "deleted", n, "error", err)
		}
	}
}

func (b *Bus) retention() (opts PurgeOptions) {
	now := b.store.now()
	if b.cfg.KeepCompleted >= 0 {
		opts.CompletedBefore = now.Add(-b.cfg.KeepCompleted)
	}
	if b.cfg.KeepDead > 0 {
		opts.DeadBefore = now.Add(-b.cfg.KeepDead)
	}
	return opts
}
