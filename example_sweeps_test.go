package mongostore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/mongostoretest"
)

// Parcel is the child of an order.
type Parcel struct {
	mongostore.Header
	Items []string `json:"items"`
}

// What executions owe is found by three sweeps: children to create, events to
// deliver, timers that are due. Each is done first and acknowledged after, so a
// relay that dies in between does it again: deduplicate by EntryID.
func Example_sweeps() {
	ctx := context.Background()
	clock := &mongostoretest.Clock{}
	store, done := exampleStore(mongostore.Config{Clock: clock})
	defer done()

	order := Order{Header: mongostore.Header{ID: "order-1", Status: "PACKING"}}
	_, err := store.Commit(ctx, &order, mongostore.Changes{
		Spawns: []mongostore.Spawn{{ChildID: "order-1/parcel", RootPath: "Pack", Input: Parcel{Items: []string{"tea", "cup"}}}},
		Emits:  []mongostore.Emit{{TargetID: "bill-7", Event: PaymentDue{OrderID: "order-1", Cents: 4200}}},
		Timers: []mongostore.TimerOp{{Path: "Pack.Late", FireAt: clock.Now().Add(time.Hour)}},
	})
	check(err)

	spawns, err := store.PendingSpawns(ctx, 0)
	check(err)
	for _, e := range spawns {
		var child Parcel
		check(e.Decode(&child))
		child.Status = "NEW"
		_, err := store.CreateChild(ctx, e, &child, mongostore.Changes{}) // twice makes one
		check(err)
		check(store.AckSpawn(ctx, e))
		fmt.Println("created", child.ID, "of", child.ParentID, child.Items)
	}

	events, err := store.PendingOutbox(ctx, 0)
	check(err)
	for _, e := range events {
		var due PaymentDue
		check(e.Decode(&due))
		fmt.Println("deliver to", e.TargetID, "as", e.EntryID(), due.Cents) // then ack
		check(store.AckOutbox(ctx, e))
	}

	timers, err := store.DueTimers(ctx, clock.Advance(time.Hour), 0)
	check(err)
	for _, t := range timers {
		fmt.Println("timeout", t.ExecutionID, t.Path) // deliver it, then delete it
		check(store.DeleteTimer(ctx, t))
	}
	// Output:
	// created order-1/parcel of order-1 [tea cup]
	// deliver to bill-7 as outbox:order-1:1 4200
	// timeout order-1 Pack.Late
}

// An execution that handles its own timer removes it in the same commit.
func ExampleChanges_acks() {
	ctx := context.Background()
	clock := &mongostoretest.Clock{}
	store, done := exampleStore(mongostore.Config{Clock: clock})
	defer done()

	order := Order{Header: mongostore.Header{ID: "order-1", Status: "WAITING"}}
	_, err := store.Commit(ctx, &order, mongostore.Changes{
		Timers: []mongostore.TimerOp{{Path: "Pay.Wait", FireAt: clock.Now().Add(time.Minute)}},
	})
	check(err)

	due, err := store.DueTimers(ctx, clock.Advance(time.Hour), 0)
	check(err)
	for _, t := range due {
		_, err := store.Update(ctx, t.ExecutionID, &order, mongostore.UpdateOptions{EventID: t.EntryID()}, func(ch *mongostore.Changes) error {
			order.Status = "EXPIRED"
			ch.Acks = append(ch.Acks, t)
			return nil
		})
		check(err)
	}

	left, err := store.DueTimers(ctx, clock.Now(), 0)
	check(err)
	fmt.Println(order.Status, "timers left:", len(left))
	// Output: EXPIRED timers left: 0
}
