package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// OrderPlaced is an event.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
	Cents   int    `json:"cents"`
}

// EventType ties the Go type to the stored one.
func (OrderPlaced) EventType() string { return "order.placed.v1" }

// A change and its events are stored together, and each handler gets them in the order
// of the commits of their key. What a transactional handler writes by its ctx is there
// once, together with the completion of its delivery.
func Example_bus() {
	ctx := context.Background()
	client, database, done := exampleDatabase()
	defer done()
	db := client.Database(database)
	store, err := outbox.New(client, outbox.Config{Database: database})
	check(err)
	check(store.Setup(ctx))
	bus, err := outbox.NewBus(store, outbox.BusConfig{})
	check(err)

	check(outbox.Subscribe(bus, "mailer", func(_ context.Context, e outbox.Event[OrderPlaced]) error {
		fmt.Println("mail about", e.Payload.OrderID, "number", e.Sequence, "of", e.Key)
		return nil
	}, outbox.SubscribeOptions{}))
	check(outbox.Subscribe(bus, "totals", func(ctx context.Context, e outbox.Event[OrderPlaced]) error {
		_, err := db.Collection("totals").UpdateByID(ctx, e.Key, bson.D{{Key: "$inc", Value: bson.D{{Key: "cents", Value: e.Payload.Cents}}}})
		return err
	}, outbox.SubscribeOptions{Transactional: true}))
	_, err = db.Collection("totals").InsertOne(ctx, bson.D{{Key: "_id", Value: "customer-1"}, {Key: "cents", Value: 0}})
	check(err)

	for i, cents := range []int{1200, 3000} {
		id := fmt.Sprint("order-", i+1)
		check(store.Transaction(ctx, func(ctx context.Context) error {
			if _, err := db.Collection("orders").InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "cents", Value: cents}}); err != nil {
				return err
			}
			return bus.Publish(ctx, outbox.PublishOptions{Key: "customer-1"}, OrderPlaced{id, cents})
		}))
	}

	n, err := bus.Drain(ctx) // a service calls Run(ctx) instead
	check(err)
	fmt.Println("completed:", n)
	var total struct{ Cents int }
	check(db.Collection("totals").FindOne(ctx, bson.D{{Key: "_id", Value: "customer-1"}}).Decode(&total))
	fmt.Println("total:", total.Cents)
	// Output:
	// mail about order-1 number 1 of customer-1
	// mail about order-2 number 2 of customer-1
	// completed: 4
	// total: 4200
}

// exampleDatabase gives an example a database of its own on a replica set. A program has
// mongo.Connect.
func exampleDatabase() (client *mongo.Client, name string, done func()) {
	tb := &exampleTB{}
	client, name = mongotest.ReplicaSet(tb).Database(tb)
	return client, name, tb.cleanUp
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// exampleTB is what an example has in place of a testing.TB: package mongotest wants
// one, examples get none.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (tb *exampleTB) Helper()                   {}
func (tb *exampleTB) Name() string              { return "Example" }
func (tb *exampleTB) Context() context.Context  { return context.Background() }
func (tb *exampleTB) Cleanup(f func())          { tb.cleanups = append(tb.cleanups, f) }
func (tb *exampleTB) Logf(string, ...any)       {}
func (tb *exampleTB) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (tb *exampleTB) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
func (tb *exampleTB) FailNow()                  { panic("failed") }

func (tb *exampleTB) cleanUp() {
	for i := len(tb.cleanups) - 1; i >= 0; i-- {
		tb.cleanups[i]()
	}
}
