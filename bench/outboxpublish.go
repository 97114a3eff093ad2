package main

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/execstore/mongostore/outbox"
)

// orderPaid is the event that is published.
type orderPaid struct{ eventData }

// EventType implements outbox.Payload.
func (orderPaid) EventType() string { return outboxType }

var outboxHandlers = []string{outboxHandler, "revenue"}

// outboxPublishPart is a transaction with one insert of the caller's own and one event
// for two handlers, against a raw transaction that writes the same documents.
func outboxPublishPart(what string, workers int, bar float64) part {
	keys := map[string]string{
		"idle":    "one event of a new key",
		"backlog": "one event of a key with a backlog, what is looked at after the commit included",
		"w=8":     "8 publishers, one event of a new key each",
	}
	r := row{name: "outbox/publish/" + what, unit: "µs", better: lower, ours: "ours", floor: "floor", barOn: map[string]float64{replicaset: bar},
		note: keys[what] + ", two handlers, one business insert, in one transaction; floor: a raw transaction that writes the same documents to collections with the same indexes, counter included"}
	return part{rows: []row{r}, on: []string{replicaset}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		m := measure{workers: workers, ops: b.size(100, 4), chunks: b.size(10, 1), pairs: b.size(25, 1), value: p50}
		if workers > 1 {
			m.ops, m.chunks, m.value = b.size(40*workers, workers), b.size(5, 1), microsPerOp
		}
		key := func(ours bool) func() string {
			prefix, n := map[bool]string{true: "ours-", false: "raw-"}[ours], new(atomic.Int64)
			if what == "backlog" {
				return func() string { return prefix + "hot" }
			}
			return func() string { return prefix + strconv.FormatInt(n.Add(1), 10) }
		}
		o, err := openOutbox(ctx, t, "publish")
		if err != nil {
			return err
		}
		defer o.drop()
		ours, err := o.publishSide(key(true))
		if err != nil {
			return err
		}
		raw, err := rawPublishSide(ctx, o, key(false), m.ops, what == "backlog")
		if err != nil {
			return err
		}
		if what == "backlog" {
			if err := ours.op(ctx, 0, 0); err != nil { // the head
				return err
			}
		}
		m.sides = []side{ours, raw}
		return b.compare(ctx, t, m, rows)
	}}
}

// microsPerOp is what an op takes of the time of all workers together.
func microsPerOp(s segment) float64 { return micros(s.elapsed) / float64(len(s.latencies)) }

func (o *outboxDB) bus(s *outbox.Store) (*outbox.Bus, error) {
	bus, err := outbox.NewBus(s, outbox.BusConfig{})
	for _, handler := range outboxHandlers {
		if err == nil { // nil: they run elsewhere
			err = outbox.Subscribe[orderPaid](bus, handler, nil, outbox.SubscribeOptions{})
		}
	}
	return bus, err
}

func business() bson.D {
	return bson.D{{Key: "_id", Value: newID()}, {Key: "customer", Value: "customer-4711"}, {Key: "total", Value: 12900}, {Key: "notes", Value: prose(300)}}
}

func (o *outboxDB) publishSide(key func() string) (side, error) {
	bus, err := o.bus(o.store)
	orders := o.t.raw(o.name, "orders")
	return side{name: "ours", op: func(ctx context.Context, _, _ int) error {
		return o.store.Transaction(ctx, func(ctx context.Context) error {
			if _, err := orders.InsertOne(ctx, business()); err != nil {
				return err
			}
			return bus.Publish(ctx, outbox.PublishOptions{ID: newID(), Key: key()}, orderPaid{anEvent().Data})
		})
	}}, err
}

// rawDocs are what one raw transaction writes, encoded beforehand.
type rawDocs struct {
	key             string
	business, event bson.Raw
	deliveries      []any
}

// rawPublishSide writes what the store would, to collections of its own.
func rawPublishSide(ctx context.Context, o *outboxDB, key func() string, ops int, waits bool) (side, error) {
	const prefix = "raw_"
	like, err := outbox.New(o.t.client, outbox.Config{Database: o.name, Prefix: prefix})
	if err == nil {
		err = like.Setup(ctx)
	}
	docs := make([]rawDocs, ops)
	db := o.t.client.Database(o.name)
	orders, events, deliveries, keys := db.Collection(prefix+"orders"), db.Collection(prefix+"events"), db.Collection(prefix+"deliveries"), db.Collection(prefix+"keys")
	s := side{name: "floor", before: func(context.Context) error {
		for i := range docs {
			l := laid{id: newID(), key: key(), number: 1, status: "pending", at: time.Now()}
			if waits {
				l.status, l.suspect = "waiting", true
			}
			docs[i] = rawDocs{key: l.key, business: mustBSON(business())}
			for _, handler := range outboxHandlers {
				l.handler = handler
				docs[i].deliveries = append(docs[i].deliveries, l.document())
			}
			docs[i].event = l.event()
		}
		return nil
	}}
	transaction := options.Transaction().SetReadConcern(readconcern.Snapshot()).SetReadPreference(readpref.Primary()).SetWriteConcern(o.t.concern)
	s.op = func(ctx context.Context, _, i int) error {
		d := docs[i]
		sess, err := o.t.client.StartSession()
		if err != nil {
			return err
		}
		defer sess.EndSession(ctx)
		_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
			if _, err := orders.InsertOne(ctx, d.business); err != nil {
				return nil, err
			}
			if _, err := events.InsertOne(ctx, d.event); err != nil {
				return nil, err
			}
			_, err := keys.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: d.key}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}},
				options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Raw()
			if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
				return nil, err
			}
			_, err = deliveries.InsertMany(ctx, d.deliveries)
			return nil, err
		}, transaction)
		return err
	}
	return s, err
}
