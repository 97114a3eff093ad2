package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/mongostoretest"
)

// A relay delivers what executions owe, in order. An execution that handles its own
// entry consumes it in the same commit, by Changes.Acks: its effect is there once.
func Example_relay() {
	ctx := context.Background()
	clock := &mongostoretest.Clock{}
	store, done := exampleStore(mongostore.Config{Clock: clock})
	defer done()

	order := Order{Header: mongostore.Header{ID: "order-1", Status: "PACKING"}}
	_, err := store.Commit(ctx, &order, mongostore.Changes{
		Spawns: []mongostore.Spawn{{ChildID: "order-1/parcel", Input: Parcel{Items: []string{"tea"}}}},
		Emits:  []mongostore.Emit{{TargetID: "bill-7", Event: PaymentDue{OrderID: "order-1", Cents: 4200}}},
		Timers: []mongostore.TimerOp{{Path: "Pack.Late", FireAt: clock.Now().Add(time.Hour)}},
	})
	check(err)

	relay, err := store.NewRelay(mongostore.Handlers{
		Spawn: func(ctx context.Context, e mongostore.SpawnEntry) error {
			var child Parcel
			if err := e.Decode(&child); err != nil {
				return mongostore.Permanent(err)
			}
			res, err := store.CreateChild(ctx, e, &child, mongostore.Changes{})
			fmt.Println("created", e.ChildID, "- was there:", res.Deduplicated)
			return err
		},
		Outbox: func(_ context.Context, e mongostore.OutboxEntry) error {
			fmt.Println("delivered", e.EntryID(), "to", e.TargetID, "at attempt", e.Attempt)
			if e.Attempt == 1 {
				return mongostore.RetryAfter(time.Minute, errors.New("bill-7 is closed"))
			}
			return nil
		},
		Timer: func(ctx context.Context, t mongostore.Timer) error {
			var o Order
			_, err := store.Update(ctx, t.ExecutionID, &o, mongostore.UpdateOptions{EventID: t.EntryID()}, func(ch *mongostore.Changes) error {
				o.Status, ch.Acks = "LATE", []mongostore.Entry{t}
				return nil
			})
			fmt.Println("fired", t.Path)
			return err
		},
	}, mongostore.RelayConfig{})
	check(err)

	for range 3 { // a service calls Run(ctx) instead
		n, err := relay.Drain(ctx)
		check(err)
		fmt.Println("delivered:", n)
		clock.Advance(30 * time.Minute)
	}
	// Output:
	// created order-1/parcel - was there: false
	// delivered outbox:order-1:1 to bill-7 at attempt 1
	// delivered: 1
	// delivered outbox:order-1:1 to bill-7 at attempt 2
	// delivered: 1
	// fired Pack.Late
	// delivered: 1
}
