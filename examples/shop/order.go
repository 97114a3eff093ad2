package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/examples/internal/stage"
	"github.com/execstore/mongostore/outbox"
)

// Order is a document of the shop's own.
type Order struct {
	ID       string `bson:"_id"`
	Customer string `bson:"customer"`
	Cents    int64  `bson:"cents"`
	Desk     int    `bson:"desk"`
	Nth      int64  `bson:"nth"` // of the customer: in the order of commits
}

// OrderPlaced is the event that is written together with an Order.
type OrderPlaced struct {
	Order    string `json:"order"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	Nth      int64  `json:"nth"`
}

// EventType implements outbox.Payload.
func (OrderPlaced) EventType() string { return "order.placed.v1" }

// errDeclined is why a desk takes an order back: after it has written it all.
var errDeclined = errors.New("declined")

const ordersPerCustomer = 40

func orderID(n int) string    { return fmt.Sprintf("order-%05d", n) }
func eventID(n int) string    { return "placed-" + orderID(n) }
func customerID(n int) string { return fmt.Sprintf("customer-%03d", n) }
func customers(orders int) int {
	return max(1, orders/ordersPerCustomer)
}

// planOrder makes order n from the seed: each twelfth will be declined.
func planOrder(cfg config, n int) (o Order, declined bool) {
	rng := rand.New(rand.NewPCG(cfg.seed, uint64(n)))
	return Order{
		ID: orderID(n), Customer: customerID(rng.IntN(customers(cfg.orders))), Cents: int64(100 + rng.IntN(50_000)), Desk: n % cfg.workers,
	}, n%12 == 5
}

// desk takes orders: one of each process.
type desk struct {
	cfg       config
	number    int
	store     *outbox.Store
	bus       *outbox.Bus
	orders    *mongo.Collection
	customers *mongo.Collection
}

func newDesk(cfg config, number int, db *mongo.Database, store *outbox.Store, bus *outbox.Bus) *desk {
	return &desk{cfg: cfg, number: number, store: store, bus: bus, orders: db.Collection("orders"), customers: db.Collection("customers")}
}

// open places this desk's orders. One that was killed left either nothing of an order or
// all of it, so the next one goes on behind the last that is there.
func (d *desk) open(ctx context.Context) error {
	next := d.number
	var last Order
	err := d.orders.FindOne(ctx, bson.D{{Key: "desk", Value: d.number}}, options.FindOne().SetSort(bson.D{{Key: "_id", Value: -1}})).Decode(&last)
	switch {
	case err == nil:
		if _, err := fmt.Sscanf(last.ID, "order-%d", &next); err != nil {
			return err
		}
		next += d.cfg.workers
	case !errors.Is(err, mongo.ErrNoDocuments):
		return err
	}
	for n := next; n < d.cfg.orders; n += d.cfg.workers {
		err := d.place(ctx, n)
		if err != nil && !errors.Is(err, errDeclined) && !mongo.IsDuplicateKeyError(err) { // the killed one's commit was still on its way
			return err
		}
		stage.Pause(ctx, d.cfg.pace)
	}
	return nil
}

// place writes an order, its number within the customer, and its event: one transaction.
// Whoever counts the customer up first commits first, so nth is the order of commits.
func (d *desk) place(ctx context.Context, n int) error {
	o, declined := planOrder(d.cfg, n)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return d.store.Transaction(ctx, func(ctx context.Context) error {
		var customer struct{ Orders int64 }
		err := d.customers.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: o.Customer}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "orders", Value: 1}}}},
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&customer)
		if err != nil {
			return err
		}
		o.Nth = customer.Orders
		if _, err := d.orders.InsertOne(ctx, o); err != nil {
			return err
		}
		err = d.bus.Publish(ctx, outbox.PublishOptions{ID: eventID(n), Key: o.Customer}, OrderPlaced{o.ID, o.Customer, o.Cents, o.Nth})
		if err != nil {
			return err
		}
		if declined {
			return errDeclined // nothing of it stays: no order, no number, no event
		}
		return nil
	})
}
