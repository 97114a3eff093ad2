package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

// Order is an execution.
type Order struct {
	mongostore.Header
	Cents int `json:"cents"`
}

// A commit of an execution joins the transaction too: execution and event are both
// stored, or neither.
func ExampleStore_Append_withACommit() {
	ctx := context.Background()
	client, database, done := exampleDatabase()
	defer done()
	executions, err := mongostore.New(client, mongostore.Config{Database: database})
	check(err)
	check(executions.Setup(ctx))
	events, err := outbox.New(client, outbox.Config{Database: database})
	check(err)
	check(events.Setup(ctx))

	place := func(id string, cents int) error {
		return events.Transaction(ctx, func(ctx context.Context) error {
			order := Order{Header: mongostore.Header{ID: id, Status: "PLACED"}, Cents: cents} // made anew in each run
			if _, err := executions.Commit(ctx, &order, mongostore.Changes{}); err != nil {
				return err
			}
			if err := events.Append(ctx, outbox.Message{
				ID: "placed-" + id, Type: "order.placed.v1", Key: id, Payload: order, Handlers: []string{"mailer"},
			}); err != nil {
				return err
			}
			if cents == 0 {
				return errors.New("nothing to pay")
			}
			return nil
		})
	}
	fmt.Println("order-1:", place("order-1", 4200))
	fmt.Println("order-2:", place("order-2", 0))

	for row, err := range executions.All(ctx, mongostore.ListOptions{}) {
		check(err)
		fmt.Println("execution:", row.ID)
	}
	page, err := events.List(ctx, outbox.ListOptions{})
	check(err)
	for _, d := range page.Items {
		fmt.Println("delivery:", d.ID, d.Status)
	}
	// Output:
	// order-1: <nil>
	// order-2: nothing to pay
	// execution: order-1
	// delivery: mailer:placed-order-1 pending
}
