package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/outbox"
)

// The rows outbox: what the event store costs in a transaction, and that claims cost
// what they take, whatever waits, is blocked, or is finished. Populations are inserted
// raw, in the shape in which the store writes.

// outboxParts are all rows of the event store.
func outboxParts() []part {
	return append([]part{
		outboxClaimPart(), outboxFirstPart(), outboxFinishedPart(),
		outboxPublishPart("idle", 1, 1.3), outboxPublishPart("backlog", 1, 1.5), outboxPublishPart("w=8", 8, 1.5),
		outboxAppendPart(), outboxIdlePart(),
	}, outboxDrainPart())
}

const (
	outboxHandler = "mailer" // whose deliveries the rows claim
	outboxType    = "order.paid"
	outboxClaimed = 10 // in one claim
)

// outboxPast is when the deliveries of populations became due, one a millisecond.
var outboxPast = time.Now().Add(-24 * time.Hour).UTC().Truncate(time.Millisecond)

// outboxDB is a database with an outbox.
type outboxDB struct {
	t     *target
	name  string
	store *outbox.Store

	deliveries, events *mongo.Collection // written to by w:1
}

// openOutbox sets a store up on a database that is new.
func openOutbox(ctx context.Context, t *target, name string) (*outboxDB, error) {
	o := &outboxDB{t: t, name: t.database("outbox_" + name)}
	o.deliveries, o.events = t.fast().raw(o.name, "outbox_deliveries"), t.fast().raw(o.name, "outbox_events")
	var err error
	if o.store, err = outbox.New(t.client, outbox.Config{Database: o.name}); err != nil {
		return nil, err
	}
	if err := o.store.Setup(ctx); err != nil {
		return nil, err
	}
	return o, o.checkShapes(ctx)
}

func (o *outboxDB) drop() { o.t.drop(o.name) }

// on is another store on the same collections.
func (o *outboxDB) on(client *mongo.Client) (*outbox.Store, error) {
	return outbox.New(client, outbox.Config{Database: o.name})
}

// laid is a delivery of a population, and its event.
type laid struct {
	id      string // the event's
	handler string
	key     string
	number  int64
	at      time.Time // from when it may be claimed
	status  string
	suspect bool
}

// publishedID is the id of the k-th event, as Publish makes them: in the order of time.
func publishedID(k int) string { return fmt.Sprintf("6930000000000000%08x", k) }

// document is the delivery as the store writes it.
func (l laid) document() bson.Raw {
	lane := l.handler + ":" + l.key
	doc := bson.D{
		{Key: "_id", Value: l.handler + ":" + l.id}, {Key: "event_id", Value: l.id}, {Key: "type", Value: outboxType}, {Key: "handler", Value: l.handler},
		{Key: "key", Value: l.key}, {Key: "sequence", Value: l.number}, {Key: "status", Value: l.status}, {Key: "available_at", Value: l.at},
		{Key: "attempts", Value: int64(0)}, {Key: "requeues", Value: int64(0)},
	}
	switch l.status {
	case "waiting":
		doc = append(doc, bson.E{Key: "waiting_lane", Value: lane})
		if l.suspect {
			doc = append(doc, bson.E{Key: "suspect_since", Value: l.at})
		}
	case "pending":
		doc = append(doc, bson.E{Key: "due_at", Value: l.at}, bson.E{Key: "active_lane", Value: lane})
	case "processing": // for longer than a run
		doc = append(doc, bson.E{Key: "due_at", Value: fireAt}, bson.E{Key: "active_lane", Value: lane}, bson.E{Key: "token", Value: newID()})
	default:
		doc = append(doc, bson.E{Key: "token", Value: newID()}, bson.E{Key: "finished_at", Value: l.at})
	}
	return mustBSON(doc)
}

// event is its event as the store writes it.
func (l laid) event() bson.Raw {
	payload, err := json.Marshal(anEvent())
	must(err)
	return mustBSON(bson.D{
		{Key: "_id", Value: l.id}, {Key: "type", Value: outboxType}, {Key: "key", Value: l.key}, {Key: "payload", Value: string(payload)},
		{Key: "created_at", Value: l.at}, {Key: "handlers", Value: []string{l.handler}},
	})
}

// lay inserts n deliveries, and their events if they are to be claimed.
func (o *outboxDB) lay(ctx context.Context, n int, events bool, make func(k int) laid) error {
	err := insertAll(ctx, o.deliveries, n, func(k int) (bson.Raw, error) { return make(k).document(), nil })
	if err != nil || !events {
		return err
	}
	return insertAll(ctx, o.events, n, func(k int) (bson.Raw, error) { return make(k).event(), nil })
}

// layDue makes n keys with one delivery each that is due.
func (o *outboxDB) layDue(ctx context.Context, n int) error {
	return o.lay(ctx, n, true, func(k int) laid {
		return laid{id: publishedID(k), handler: outboxHandler, key: fmt.Sprintf("due-%d", k), number: 1, status: "pending",
			at: outboxPast.Add(time.Duration(k) * time.Millisecond)}
	})
}

// layBehind makes one key whose head is under a lease, and n that wait behind it.
func (o *outboxDB) layBehind(ctx context.Context, n int) error {
	return o.lay(ctx, n+1, false, func(k int) laid {
		l := laid{id: "b" + publishedID(k), handler: outboxHandler, key: "busy", number: int64(k + 1), status: "waiting", suspect: k == 1, at: outboxPast}
		if k == 0 {
			l.status = "processing"
		}
		return l
	})
}

// layBlocked makes n keys whose head is delayed, with one behind it. Repairs have seen
// that they live.
func (o *outboxDB) layBlocked(ctx context.Context, n int) error {
	return o.lay(ctx, 2*n, false, func(k int) laid {
		l := laid{id: "d" + publishedID(k), handler: outboxHandler, key: fmt.Sprintf("blocked-%d", k/2), number: int64(k%2 + 1), status: "waiting", at: outboxPast}
		if k%2 == 0 {
			l.status, l.at = "pending", fireAt
		}
		return l
	})
}

// layFinished makes completed deliveries and dead letters, ten of a key.
func (o *outboxDB) layFinished(ctx context.Context, completed, dead int) error {
	return o.lay(ctx, completed+dead, false, func(k int) laid {
		l := laid{id: "f" + publishedID(k), handler: outboxHandler, key: fmt.Sprintf("due-%d", k/10), number: int64(k%10 + 1), status: "completed", at: outboxPast}
		if k >= completed {
			l.status = "dead"
		}
		return l
	})
}

// claim claims ten.
func (o *outboxDB) claim(ctx context.Context, s *outbox.Store) ([]*outbox.Delivery, error) {
	ds, err := s.Claim(ctx, outbox.ClaimOptions{Handlers: []string{outboxHandler}, Limit: outboxClaimed})
	if err == nil && len(ds) != outboxClaimed {
		err = fmt.Errorf("%d deliveries, not %d", len(ds), outboxClaimed)
	}
	return ds, err
}

// putBack makes deliveries as they were laid, in one command.
func (o *outboxDB) putBack(ctx context.Context, ds []*outbox.Delivery) error {
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.ID
	}
	_, err := o.deliveries.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, bson.A{
		bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: "pending"}, {Key: "due_at", Value: "$available_at"}, {Key: "attempts", Value: int64(0)}}}},
		bson.D{{Key: "$unset", Value: "token"}},
	})
	return err
}

// claimSide claims ten and puts them back, off the clock.
func (o *outboxDB) claimSide(name string) side {
	return side{name: name, timed: func(ctx context.Context, _ int) (time.Duration, error) {
		start := time.Now()
		ds, err := o.claim(ctx, o.store)
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		return took, o.putBack(ctx, ds)
	}}
}

// checkShapes has the store write a pending, a waiting and a finished delivery, and
// compares their fields with those that are laid raw; nothing of it stays.
func (o *outboxDB) checkShapes(ctx context.Context) error {
	l := laid{handler: outboxHandler, key: "shape"}
	msg := func(id string) outbox.Message {
		return outbox.Message{ID: id, Type: outboxType, Key: l.key, Payload: anEvent(), Handlers: []string{l.handler}}
	}
	err := o.store.Transaction(ctx, func(ctx context.Context) error { return o.store.Append(ctx, msg("1"), msg("2")) })
	if err != nil {
		return err
	}
	for _, step := range []struct {
		laid laid
		then func() error
	}{
		{laid{id: "1", status: "pending"}, nil},
		{laid{id: "2", status: "waiting", suspect: true}, func() error {
			ds, err := o.store.Claim(ctx, outbox.ClaimOptions{Handlers: []string{l.handler}})
			if err != nil {
				return err
			}
			if err := o.sameShape(ctx, laid{id: "1", handler: l.handler, key: l.key, status: "processing"}); err != nil {
				return err
			}
			return o.store.Complete(ctx, ds...)
		}},
		{laid{id: "1", status: "completed"}, nil},
	} {
		step.laid.handler, step.laid.key = l.handler, l.key
		if err := o.sameShape(ctx, step.laid); err != nil {
			return err
		}
		if step.then == nil {
			continue
		}
		if err := step.then(); err != nil {
			return err
		}
	}
	for _, coll := range []*mongo.Collection{o.deliveries, o.events, o.t.fast().raw(o.name, "outbox_keys")} {
		if _, err := coll.DeleteMany(ctx, bson.D{}); err != nil {
			return err
		}
	}
	return nil
}

func (o *outboxDB) sameShape(ctx context.Context, l laid) error {
	for _, pair := range []struct {
		coll *mongo.Collection
		id   string
		laid bson.Raw
	}{{o.deliveries, l.handler + ":" + l.id, l.document()}, {o.events, l.id, l.event()}} {
		stored, err := pair.coll.FindOne(ctx, bson.D{{Key: "_id", Value: pair.id}}).Raw()
		if err != nil {
			return err
		}
		if is, laid := fieldsOf(stored), fieldsOf(pair.laid); !slices.Equal(is, laid) {
			return fmt.Errorf("the store writes %v, the bench %v", is, laid)
		}
	}
	return nil
}

// fieldsOf are names and types, in no order: updates put new fields at the end.
func fieldsOf(doc bson.Raw) (fields []string) {
	elements, err := doc.Elements()
	must(err)
	for _, e := range elements {
		fields = append(fields, e.Key()+" "+e.Value().Type.String())
	}
	slices.Sort(fields)
	return fields
}
