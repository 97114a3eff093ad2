package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

// The two handlers.
const (
	revenueID = "revenue"
	mailerID  = "mailer"
)

const (
	mailTries   = 5               // those that a process was killed in count
	maxBackoff  = 2 * time.Second // by the shop's clock
	handlersRun = 8               // of each kind at a time, in a process
)

// newBus subscribes both handlers: each process publishes, and each runs them.
func newBus(store *outbox.Store, db *mongo.Database, observe func(mongostore.RelayEvent)) (*outbox.Bus, error) {
	bus, err := outbox.NewBus(store, outbox.BusConfig{
		LeaseFor:  3 * time.Second, // what a killed process held comes back soon
		PollEvery: 200 * time.Millisecond, StopTimeout: 3 * time.Second, PurgeEvery: -1, Observe: observe,
	})
	if err != nil {
		return nil, err
	}
	r := &revenue{db.Collection("revenue")}
	err = outbox.Subscribe(bus, revenueID, r.handle, outbox.SubscribeOptions{Transactional: true, Timeout: 2 * time.Second, Concurrency: handlersRun, MaxAttempts: -1, Backoff: backoff})
	if err != nil {
		return nil, err
	}
	m := &mailer{boxes: db.Collection("mailboxes"), broken: db.Collection("broken")}
	return bus, outbox.Subscribe(bus, mailerID, m.handle, outbox.SubscribeOptions{Concurrency: handlersRun, MaxAttempts: mailTries, Backoff: backoff})
}

func backoff(int) time.Duration { return maxBackoff }

// revenue is a projection: what each customer has ordered so far. It is transactional:
// the sum and the completion of the event are one commit, so it needs to know no ids.
type revenue struct{ totals *mongo.Collection }

// Total is the revenue of one customer.
type Total struct {
	Customer   string  `bson:"_id"`
	Orders     int64   `bson:"orders"`
	Cents      int64   `bson:"cents"`
	OutOfOrder []int64 `bson:"out_of_order"` // numbers that did not follow the one before
	Last       int64   `bson:"last"`
}

func (r *revenue) handle(ctx context.Context, e outbox.Event[OrderPlaced]) error {
	p := e.Payload
	follows := bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$last", 0}}}, p.Nth - 1}}}
	so := bson.D{{Key: "$ifNull", Value: bson.A{"$out_of_order", bson.A{}}}}
	sum := func(field string, n int64) bson.E {
		return bson.E{Key: field, Value: bson.D{{Key: "$add", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$" + field, 0}}}, n}}}}
	}
	_, err := r.totals.UpdateOne(ctx, bson.D{{Key: "_id", Value: p.Customer}}, bson.A{bson.D{{Key: "$set", Value: bson.D{
		sum("orders", 1), sum("cents", p.Cents), {Key: "last", Value: p.Nth},
		{Key: "out_of_order", Value: bson.D{{Key: "$cond", Value: bson.A{follows, so, bson.D{{Key: "$concatArrays", Value: bson.A{so, bson.A{p.Nth}}}}}}}},
	}}}}, options.UpdateOne().SetUpsert(true))
	return err
}

// mailer stands for the world outside: no transaction reaches it. Events come at least
// once, and it knows them again by their id. An outside system must offer as much (an
// idempotency key), or its effects can happen twice.
type mailer struct {
	boxes  *mongo.Collection // of the customers: their mails in the order of arrival
	broken *mongo.Collection // orders whose mail cannot be sent, until somebody mends it
}

// Mail is one in a box.
type Mail struct {
	ID    string `bson:"id"` // the event's
	Order string `bson:"order"`
	Nth   int64  `bson:"nth"`
}

// Mailbox is one customer's.
type Mailbox struct {
	Customer string `bson:"_id"`
	Mails    []Mail `bson:"mails"`
	Repeats  int64  `bson:"repeats"` // that were recognised: a process was killed between mail and completion
}

var errNoRoute = errors.New("no route to the customer's mail server")

func (m *mailer) handle(ctx context.Context, e outbox.Event[OrderPlaced]) error {
	p := e.Payload
	switch err := m.broken.FindOne(ctx, bson.D{{Key: "_id", Value: p.Order}}).Err(); {
	case err == nil:
		return fmt.Errorf("%s: %w", p.Order, errNoRoute)
	case !errors.Is(err, mongo.ErrNoDocuments):
		return err
	}
	if _, err := m.boxes.UpdateOne(ctx, bson.D{{Key: "_id", Value: p.Customer}}, bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "mails", Value: bson.A{}}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
		return err
	}
	res, err := m.boxes.UpdateOne(ctx, bson.D{{Key: "_id", Value: p.Customer}, {Key: "mails.id", Value: bson.D{{Key: "$ne", Value: e.ID}}}},
		bson.D{{Key: "$push", Value: bson.D{{Key: "mails", Value: Mail{ID: e.ID, Order: p.Order, Nth: p.Nth}}}}})
	if err == nil && res.MatchedCount == 0 {
		_, err = m.boxes.UpdateOne(ctx, bson.D{{Key: "_id", Value: p.Customer}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "repeats", Value: 1}}}})
	}
	return err
}
