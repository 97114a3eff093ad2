package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/mongostoretest"
)

// Retention: delete what has been finished for a month and owes nothing any more.
func ExampleStore_Delete() {
	ctx := context.Background()
	clock := &mongostoretest.Clock{}
	store, done := exampleStore(mongostore.Config{Clock: clock})
	defer done()
	for id, status := range map[string]string{"order-1": "DONE", "order-2": "DONE", "order-3": "OPEN"} {
		var ch mongostore.Changes
		if id == "order-2" { // its event was not delivered yet
			ch.Emits = []mongostore.Emit{{TargetID: "bill-7", Event: PaymentDue{OrderID: id}}}
		}
		_, err := store.Commit(ctx, &Order{Header: mongostore.Header{ID: id, Status: status}}, ch)
		check(err)
	}

	month := mongostore.ListOptions{FinishedBefore: clock.Advance(31*24*time.Hour).AddDate(0, 0, -30)}
	for row, err := range store.All(ctx, month) {
		check(err)
		whole, err := store.Inspect(ctx, row.ID)
		if errors.Is(err, mongostore.ErrNotFound) {
			continue
		}
		check(err)
		if len(whole.Outbox)+len(whole.Spawns)+len(whole.Timers) > 0 {
			fmt.Println("kept:", row.ID)
			continue
		}
		err = store.Delete(ctx, row.ID, row.Version)
		if errors.Is(err, mongostore.ErrConflict) {
			continue // somebody works on it again
		}
		check(err)
		fmt.Println("deleted:", row.ID)
	}
	// Output:
	// deleted: order-1
	// kept: order-2
}
