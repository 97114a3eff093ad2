package mongostore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/execstore/mongostore"
)

// Order is an execution: the engine's own type, with the Header embedded by value.
type Order struct {
	mongostore.Header
	Total int      `json:"total"`
	Items []string `json:"items"`
}

// PaymentDue is an event between executions.
type PaymentDue struct {
	OrderID string `json:"order_id"`
	Cents   int    `json:"cents"`
}

// One execution is one document, and everything about it is committed together.
func Example() {
	ctx := context.Background()
	store, done := exampleStore(mongostore.Config{}) // see Connect
	defer done()

	order := Order{Header: mongostore.Header{ID: "order-1", Status: "NEW"}, Total: 4200}
	_, err := store.Commit(ctx, &order, mongostore.Changes{
		Emits:  []mongostore.Emit{{TargetID: "bill-7", Event: PaymentDue{OrderID: "order-1", Cents: 4200}}},
		Timers: []mongostore.TimerOp{{Path: "Pay.Wait", FireAt: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}},
		Trace:  map[string]any{"entered": "Pay.Wait"},
	})
	check(err)

	var loaded Order
	check(store.Load(ctx, "order-1", &loaded))
	fmt.Println(loaded.Status, loaded.Total, "version", loaded.Version)

	whole, err := store.Inspect(ctx, "order-1") // the document, for operators and tests
	check(err)
	fmt.Printf("%s\n", whole.Data)
	fmt.Printf("owes to %s: %s\n", whole.Outbox[0].TargetID, whole.Outbox[0].Event)
	fmt.Println("timer", whole.Timers[0].Path, whole.Timers[0].FireAt.Format(time.DateOnly))
	// Output:
	// NEW 4200 version 1
	// {"id":"order-1","definition_id":"","status":"NEW","version":1,"total":4200,"items":null}
	// owes to bill-7: {"order_id":"order-1","cents":4200}
	// timer Pay.Wait 2030-01-01
}
