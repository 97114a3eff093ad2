package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/execstore/mongostore"
)

// The limits, met on purpose: an execution remembers the newest ProcessedMax event
// ids, and MongoDB stores no document above 16 MiB.
func Example_limits() {
	ctx := context.Background()
	store, done := exampleStore(mongostore.Config{ProcessedMax: 2})
	defer done()

	order := Order{Header: mongostore.Header{ID: "order-1", Status: "OPEN"}}
	for _, event := range []string{"evt-1", "evt-2", "evt-3"} {
		_, err := store.Commit(ctx, &order, mongostore.Changes{Processed: event})
		check(err)
	}
	for _, event := range []string{"evt-1", "evt-2", "evt-3"} {
		seen, err := store.IsProcessed(ctx, "order-1", event)
		check(err)
		fmt.Println(event, "known:", seen)
	}

	big := order // a copy may be tried and thrown away
	big.Items = []string{strings.Repeat("x", 16<<20)}
	_, err := store.Commit(ctx, &big, mongostore.Changes{})
	fmt.Println("too large:", errors.Is(err, mongostore.ErrTooLarge))

	_, err = store.Commit(ctx, &order, mongostore.Changes{})
	fmt.Println("smaller ones go on:", err, order.Version)
	// Output:
	// evt-1 known: false
	// evt-2 known: true
	// evt-3 known: true
	// too large: true
	// smaller ones go on: <nil> 4
}
