package mongostore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/execstore/mongostore"
)

// A commit applies only to the version that was loaded. Of two writers one wins;
// the other is told who was where, and its value is as it was.
func ExampleStore_Commit() {
	ctx := context.Background()
	store, done := exampleStore(mongostore.Config{})
	defer done()

	first := Order{Header: mongostore.Header{ID: "order-1", Status: "NEW"}}
	res, err := store.Commit(ctx, &first, mongostore.Changes{Processed: "evt-1"})
	check(err)
	fmt.Println("version", res.Version)

	var other Order // another worker loads the same version
	check(store.Load(ctx, "order-1", &other))

	first.Status = "PAID"
	_, err = store.Commit(ctx, &first, mongostore.Changes{Processed: "evt-2"})
	check(err)

	other.Status = "CANCELLED"
	_, err = store.Commit(ctx, &other, mongostore.Changes{Processed: "evt-3"})
	var conflict *mongostore.ConflictError
	fmt.Println(errors.Is(err, mongostore.ErrConflict), errors.As(err, &conflict))
	fmt.Println("expected", conflict.Expected, "found", conflict.Actual, "in memory", other.Version)
	// Output:
	// version 1
	// true true
	// expected 1 found 2 in memory 1
}

// Starting what is there already is no error for a caller that starts on request.
func ExampleStore_Commit_exists() {
	ctx := context.Background()
	store, done := exampleStore(mongostore.Config{})
	defer done()

	for range 2 {
		order := Order{Header: mongostore.Header{ID: "order-1", Status: "NEW"}}
		switch _, err := store.Commit(ctx, &order, mongostore.Changes{}); {
		case errors.Is(err, mongostore.ErrExists):
			fmt.Println("already started")
		case err != nil:
			fmt.Println("failed:", err)
		default:
			fmt.Println("started")
		}
	}
	// Output:
	// started
	// already started
}
