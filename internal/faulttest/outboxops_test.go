//go:build faults

package faulttest_test

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/outbox"
)

var outboxCollections = []string{"outbox_events", "outbox_deliveries", "outbox_keys", "orders"}

// message is an event of a key, for both handlers.
func message(id, key string) outbox.Message {
	return outbox.Message{ID: id, Type: "t", Key: key, Payload: id, Handlers: eventHandlers}
}

// appended stores three events of a key and one without.
func (s *scene) appended() *outbox.Store {
	sound := s.outbox(s.near)
	for i, key := range []string{"k", "k", "k", ""} {
		s.must(sound.Transaction(context.Background(), func(ctx context.Context) error {
			return sound.Append(ctx, message(fmt.Sprintf("e-%d", i), key))
		}))
	}
	return sound
}

// held are the deliveries that can be claimed: two heads, and two without a key.
func (s *scene) held() []*outbox.Delivery {
	ds, err := s.appended().Claim(context.Background(), outbox.ClaimOptions{Handlers: eventHandlers, Limit: 10, LeaseFor: longLease})
	s.must(all(len(ds), 4, err))
	return ds
}

// buried are dead letters: those that could be claimed.
func (s *scene) buried() (ids []string) {
	sound := s.outbox(s.near)
	for _, d := range s.held() {
		s.must(sound.Bury(context.Background(), d, errFew))
		ids = append(ids, d.ID)
	}
	return ids
}

// completed completes all.
func (s *scene) completed() {
	sound := s.appended()
	for {
		ds, err := sound.Claim(context.Background(), outbox.ClaimOptions{Handlers: eventHandlers, Limit: 10})
		s.must(err)
		if len(ds) == 0 {
			return
		}
		s.must(sound.Complete(context.Background(), ds...))
	}
}

// onHeld is an operation on deliveries that are held.
func onHeld(name string, definite bool, do func(ctx context.Context, store *outbox.Store, ds []*outbox.Delivery) error) operation {
	return operation{name: name, definite: definite, collections: outboxCollections, prepare: func(s *scene) call {
		ds, store := s.held(), s.outbox(s.far)
		return func(ctx context.Context) error { return do(ctx, store, ds) }
	}}
}

// appending is a transaction with a document of the caller's own and some events.
func appending(s *scene, msgs ...outbox.Message) call {
	store, orders := s.outbox(s.far), s.far.Database(s.name).Collection("orders")
	return func(ctx context.Context) error {
		return store.Transaction(ctx, func(ctx context.Context) error {
			if err := store.Append(ctx, msgs...); err != nil {
				return err
			}
			_, err := orders.UpdateOne(ctx, bson.D{{Key: "_id", Value: msgs[0].ID}}, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}}, upsert)
			return err
		})
	}
}

var outboxOperations = []operation{
	{name: "Append", definite: true, collections: outboxCollections, prepare: func(s *scene) call {
		return appending(s, message("n-1", "k"), message("n-2", "k"), message("n-3", ""))
	}},
	{name: "Append behind others", definite: true, collections: outboxCollections, prepare: func(s *scene) call {
		s.appended()
		return appending(s, message("n-1", "k"), message("n-2", "l"))
	}},
	{name: "Claim", collections: outboxCollections, ignored: []string{"attempts", "due_at", "suspect_since"}, prepare: func(s *scene) call {
		s.appended()
		first := true
		return func(ctx context.Context) error {
			if !first {
				s.clock.Advance(2 * longLease) // what was leased comes back when its lease ends
			}
			first = false
			store := s.outbox(s.far) // another process: one leaves expired leases alone for 2 s if taking them took long
			ds, err := store.Claim(ctx, outbox.ClaimOptions{Handlers: eventHandlers, Limit: 10, LeaseFor: longLease})
			return all(len(ds), 4, err)
		}
	}},
	onHeld("Complete", true, func(ctx context.Context, s *outbox.Store, ds []*outbox.Delivery) error { return s.Complete(ctx, ds...) }),
	onHeld("Complete by id and token", true, func(ctx context.Context, s *outbox.Store, ds []*outbox.Delivery) error {
		var plain []*outbox.Delivery
		for _, d := range ds {
			plain = append(plain, &outbox.Delivery{ID: d.ID, Token: d.Token})
		}
		return s.Complete(ctx, plain...)
	}),
	onHeld("Complete in a transaction", false, func(ctx context.Context, s *outbox.Store, ds []*outbox.Delivery) error {
		return s.Transaction(ctx, func(ctx context.Context) error { return s.Complete(ctx, ds...) })
	}),
	onHeld("Extend", false, func(ctx context.Context, s *outbox.Store, ds []*outbox.Delivery) error {
		return s.Extend(ctx, ds[0], 2*longLease)
	}),
	onHeld("Release", true, func(ctx context.Context, s *outbox.Store, ds []*outbox.Delivery) error { return s.Release(ctx, ds[0]) }),
	onHeld("Retry", true, func(ctx context.Context, s *outbox.Store, ds []*outbox.Delivery) error {
		return s.Retry(ctx, ds[0], time.Hour, errFew)
	}),
	onHeld("Bury", true, func(ctx context.Context, s *outbox.Store, ds []*outbox.Delivery) error {
		return s.Bury(ctx, ds[0], errFew)
	}),
	{name: "Requeue", collections: outboxCollections, ignored: []string{"suspect_since"}, prepare: func(s *scene) call {
		ids, store := s.buried(), s.outbox(s.far)
		return func(ctx context.Context) error { _, err := store.Requeue(ctx, ids...); return err }
	}},
	// A purge that was cut off may leave the counter of a key, which does no harm.
	{name: "Purge", collections: outboxCollections, ignored: []string{"outbox_keys"}, prepare: func(s *scene) call {
		s.completed()
		store := s.outbox(s.far)
		return func(ctx context.Context) error {
			_, err := store.Purge(ctx, outbox.PurgeOptions{CompletedBefore: s.clock.Now().Add(time.Second)})
			return err
		}
	}},
	{name: "List", definite: true, collections: outboxCollections, prepare: func(s *scene) call {
		s.appended()
		store := s.outbox(s.far)
		return func(ctx context.Context) error {
			page, err := store.List(ctx, outbox.ListOptions{})
			if err != nil {
				return err
			}
			return all(len(page.Items), 8, nil)
		}
	}},
	{name: "Stats", definite: true, collections: outboxCollections, prepare: func(s *scene) call {
		s.appended()
		store := s.outbox(s.far)
		return func(ctx context.Context) error {
			st, err := store.Stats(ctx)
			return all(int(st.Pending+st.Waiting), 8, err)
		}
	}},
	{name: "Setup", anew: true, prepare: func(s *scene) call {
		store := s.outbox(s.far)
		return func(ctx context.Context) error { return store.Setup(ctx) }
	}},
}
