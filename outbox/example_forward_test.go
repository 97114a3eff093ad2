package outbox_test

import (
	"context"
	"fmt"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

// What executions emit reaches all who subscribed: Forward is the handler of a relay for
// their outbox. What is meant for another execution is not published.
func ExampleBus_Forward() {
	ctx := context.Background()
	client, database, done := exampleDatabase()
	defer done()
	executions, err := mongostore.New(client, mongostore.Config{Database: database})
	check(err)
	check(executions.Setup(ctx))
	events, err := outbox.New(client, outbox.Config{Database: database})
	check(err)
	check(events.Setup(ctx))
	bus, err := outbox.NewBus(events, outbox.BusConfig{})
	check(err)
	check(outbox.Subscribe(bus, "mailer", func(_ context.Context, e outbox.Event[OrderPlaced]) error {
		fmt.Println("mail about", e.Payload.OrderID, "by", e.ID)
		return nil
	}, outbox.SubscribeOptions{}))

	forward := bus.Forward(func(e mongostore.OutboxEntry) string {
		if e.TargetID != "" {
			return "" // for an execution
		}
		return OrderPlaced{}.EventType()
	})
	relay, err := executions.NewRelay(mongostore.Handlers{
		Outbox: forward,
		Spawn:  func(context.Context, mongostore.SpawnEntry) error { return nil },
		Timer:  func(context.Context, mongostore.Timer) error { return nil },
	}, mongostore.RelayConfig{})
	check(err)

	order := Order{Header: mongostore.Header{ID: "order-1", Status: "PLACED"}, Cents: 4200}
	_, err = executions.Commit(ctx, &order, mongostore.Changes{Emits: []mongostore.Emit{
		{Event: OrderPlaced{OrderID: "order-1", Cents: 4200}},
		{TargetID: "bill-7", Event: "due"},
	}})
	check(err)
	n, err := relay.Drain(ctx)
	check(err)
	fmt.Println("relayed:", n)
	n, err = bus.Drain(ctx)
	check(err)
	fmt.Println("completed:", n)
	// Output:
	// relayed: 2
	// mail about order-1 by outbox:order-1:1
	// completed: 1
}
