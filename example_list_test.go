package mongostore_test

import (
	"context"
	"fmt"

	"github.com/execstore/mongostore"
)

// Listings filter on the server and page by key.
func ExampleStore_List() {
	ctx := context.Background()
	store, done := exampleStore(mongostore.Config{})
	defer done()
	for i := range 5 {
		order := Order{Header: mongostore.Header{ID: fmt.Sprint("order-", i), DefinitionID: "order", Status: "PAID"}}
		if i == 2 {
			order.Status = "CANCELLED"
		}
		_, err := store.Commit(ctx, &order, mongostore.Changes{})
		check(err)
	}

	opts := mongostore.ListOptions{DefinitionID: "order", Statuses: []string{"PAID"}, Limit: 3}
	for {
		page, err := store.List(ctx, opts)
		check(err)
		for _, row := range page.Items {
			fmt.Print(row.ID, " ")
		}
		fmt.Println("| more:", page.Next != "")
		if opts.Cursor = page.Next; page.Next == "" {
			break
		}
	}
	// Output:
	// order-0 order-1 order-3 | more: true
	// order-4 | more: false
}

// All is the same over all pages.
func ExampleStore_All() {
	ctx := context.Background()
	store, done := exampleStore(mongostore.Config{})
	defer done()
	for _, id := range []string{"a", "b", "c"} {
		_, err := store.Commit(ctx, &Order{Header: mongostore.Header{ID: id, Status: "NEW"}}, mongostore.Changes{})
		check(err)
	}
	for row, err := range store.All(ctx, mongostore.ListOptions{}) {
		check(err) // a damaged document is a row with Err, not an error
		fmt.Println(row.ID, row.Status, row.Version)
	}
	// Output:
	// a NEW 1
	// b NEW 1
	// c NEW 1
}
