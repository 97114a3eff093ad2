package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// When the server cannot be asked in time what became of a write, Commit says so,
// and the same call again settles it. Here a proxy loses every reply for a while.
func Example_unknownOutcome() {
	ctx := context.Background()
	store, proxy, done := exampleProxy(mongostore.Config{OutcomeTimeout: 200 * time.Millisecond})
	defer done()

	order := Order{Header: mongostore.Header{ID: "order-1", Status: "NEW"}}
	_, err := store.Commit(ctx, &order, mongostore.Changes{})
	check(err)

	order.Status, order.Total = "PAID", 4200
	changes := mongostore.Changes{Emits: []mongostore.Emit{{TargetID: "bill-7", Event: PaymentDue{OrderID: "order-1"}}}}

	proxy.OnReply(mongotest.Always(mongotest.Drop, "update", "find"))
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	_, err = store.Commit(short, &order, changes)
	cancel()
	fmt.Println("unknown:", errors.Is(err, mongostore.ErrUnknownOutcome), "in memory", order.Version)

	proxy.OnReply(nil) // the server is back
	res, err := store.Commit(ctx, &order, changes)
	fmt.Println("again:", err, "version", res.Version, "in memory", order.Version)

	whole, err := store.Inspect(ctx, "order-1")
	check(err)
	fmt.Println("stored: version", whole.Summary.Version, "events", len(whole.Outbox))
	// Output:
	// unknown: true in memory 1
	// again: <nil> version 2 in memory 2
	// stored: version 2 events 1
}
