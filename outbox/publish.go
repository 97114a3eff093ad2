package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// PublishOptions are what Publish stores beside a payload.
type PublishOptions struct {
	// ID names the event for ever; one that is known is not stored again. Empty: one is
	// made.
	ID string
	// Key orders; empty: no order.
	Key string
	// Headers are stored as JSON.
	Headers map[string]any
	// NotBefore is when it may be delivered first; zero: now.
	NotBefore time.Time
}

// Publish appends events for all who subscribed to them, in the transaction that ctx
// carries; several get their place within the key in the order given.
// Returns ErrOutsideTransaction, and nothing is written, if ctx carries no started
// transaction. Returns ErrInvalid if nobody subscribed to a payload's type, several
// payloads are to share opts.ID, or a payload is nil or cannot be held by JSON. Else
// returns what Store.Append does.
func (b *Bus) Publish(ctx context.Context, opts PublishOptions, ps ...Payload) error {
	if len(ps) > 1 && opts.ID != "" {
		return invalid("PublishOptions.ID", "cannot be that of several events")
	}
	msgs := make([]Message, 0, len(ps))
	for i, p := range ps {
		typ, err := typeOf(p)
		if err != nil {
			return at(fmt.Sprintf("Payload[%d].", i), err)
		}
		handlers := b.subscribed(typ)
		if len(handlers) == 0 {
			return invalid(fmt.Sprintf("Payload[%d]", i), "has the type "+typ+", to which nobody subscribed: it would be gone")
		}
		msgs = append(msgs, Message{
			ID: orElse(opts.ID, bson.NewObjectID().Hex()), Type: typ, Key: opts.Key, Payload: p,
			Headers: opts.Headers, Handlers: handlers, NotBefore: opts.NotBefore,
		})
	}
	return b.store.Append(ctx, msgs...)
}

func (b *Bus) subscribed(typ string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.types[typ]
}

// Forward makes a handler for the Outbox of a mongostore.Relay that publishes the events
// of executions here: under the entry's id, so that one delivered twice is stored once,
// and with the execution as the key, so that handlers get them in the order of commits.
// typ tells the type of an entry; for "" it is done with, and nothing is published: what is
// meant for another execution needs a handler of its own around this one.
// The error is Permanent for a type to which nobody subscribed, and for an event that is
// no JSON.
func (b *Bus) Forward(typ func(mongostore.OutboxEntry) string) func(context.Context, mongostore.OutboxEntry) error {
	return func(ctx context.Context, e mongostore.OutboxEntry) error {
		if typ == nil {
			return mongostore.Permanent(invalid("typ", "is nil"))
		}
		t := typ(e)
		if t == "" {
			return nil
		}
		handlers := b.subscribed(t)
		if len(handlers) == 0 {
			return mongostore.Permanent(invalid("typ", "gives the type "+t+", to which nobody subscribed"))
		}
		m := Message{ID: e.EntryID(), Type: t, Key: e.ExecutionID, Payload: json.RawMessage(e.Event), Handlers: handlers}
		err := b.store.Transaction(ctx, func(ctx context.Context) error { return b.store.Append(ctx, m) })
		if errors.Is(err, mongostore.ErrInvalid) {
			return mongostore.Permanent(err)
		}
		return err
	}
}
