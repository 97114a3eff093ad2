package outbox_test

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	readHeadsEvery = 60 * time.Millisecond
	denseReads     = 250 * time.Millisecond // the most between two reads that say that nothing changed
	longestHead    = 1300 * time.Millisecond
	repairWithin   = time.Second // after a repair began, the next claim of its Store begins another
)

// heads watches, in the database, for lanes whose first unfinished delivery waits: then
// nobody can claim it.
type heads struct {
	h          *propertyHistory
	db         *mongo.Database
	commits    *commits
	since      map[waitingHead]sighting
	longest    time.Duration
	reads      int
	stalls     int
	lastRead   time.Duration
	unfinished int    // at the last read
	stuck      string // a lane whose head waited too long
}

type waitingHead struct{ lane, id string }

// sighting is when a head was seen to wait first, at the end of a read.
type sighting struct {
	at    time.Duration
	log   bson.Timestamp // the server's time
	dense bool           // no two reads since then were far apart
}

// watch reads until ctx ends.
func (w *heads) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.read(context.WithoutCancel(ctx)); err != nil {
			w.h.violate("a read of the heads failed: %s", err.Error())
		}
		restFor(ctx, readHeadsEvery)
	}
}

// rest waits, but no longer than ctx.
func restFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// snapshot runs reads that all see one moment.
func (w *heads) snapshot(ctx context.Context, read func(ctx context.Context) error) (at bson.Timestamp, err error) {
	sess, err := w.db.Client().StartSession(options.Session().SetSnapshot(true))
	if err != nil {
		return at, err
	}
	defer sess.EndSession(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err = read(mongo.NewSessionContext(ctx, sess))
	if t := sess.OperationTime(); t != nil {
		at = *t
	}
	return at, err
}

func (w *heads) read(ctx context.Context) error {
	claimed, began := w.h.latestClaim(), w.h.now()
	var docs []bson.Raw
	at, err := w.snapshot(ctx, func(ctx context.Context) (err error) {
		docs, err = propertyDocs(ctx, w.db.Collection("outbox_deliveries"), bson.D{{Key: "status", Value: bson.D{{Key: "$in", Value: bson.A{"waiting", "pending", "processing"}}}}},
			bson.D{{Key: "handler", Value: 1}, {Key: "key", Value: 1}, {Key: "sequence", Value: 1}, {Key: "status", Value: 1}})
		return err
	})
	if err != nil {
		return err
	}
	now := sighting{at: w.h.now(), log: at, dense: true}
	if w.reads++; now.at-w.lastRead > denseReads {
		w.stalls++
		for head, seen := range w.since {
			seen.dense = false
			w.since[head] = seen
		}
	}
	w.lastRead, w.unfinished = now.at, len(docs)
	if err := w.judge(ctx, waitingHeads(docs), claimed, began, now); err != nil {
		return err
	}
	if w.reads%20 == 0 {
		return w.pairs(ctx)
	}
	return nil
}

// waitingHeads gives the lanes whose first unfinished delivery waits, and its id.
func waitingHeads(docs []bson.Raw) map[waitingHead]bool {
	first := map[string]bson.Raw{}
	for _, doc := range docs {
		key, keyed := doc.Lookup("key").StringValueOK()
		if !keyed {
			continue
		}
		lane := doc.Lookup("handler").StringValue() + ":" + key
		if other, there := first[lane]; !there || doc.Lookup("sequence").AsInt64() < other.Lookup("sequence").AsInt64() {
			first[lane] = doc
		}
	}
	waiting := map[waitingHead]bool{}
	for lane, doc := range first {
		if doc.Lookup("status").StringValue() == "waiting" {
			waiting[waitingHead{lane, doc.Lookup("_id").StringValue()}] = true
		}
	}
	return waiting
}

// judge counts a head only where a claim began so late that its Store has to have made a
// repair since the head was seen first, and had returned before this read began: then no
// stall of the machine excuses it. That nothing changed between the reads is for the log
// to say.
func (w *heads) judge(ctx context.Context, waiting map[waitingHead]bool, claimed, began time.Duration, now sighting) error {
	since := make(map[waitingHead]sighting, len(waiting))
	for head := range waiting {
		seen, known := w.since[head]
		if !known {
			seen = now
		}
		age := began - seen.at
		if seen.dense {
			w.longest = max(w.longest, age)
		}
		if age > longestHead && claimed >= seen.at+repairWithin {
			written, err := w.commits.written(ctx, head, seen.log)
			if err != nil {
				return err
			}
			if !written {
				w.stuck = head.lane
				w.h.violate("a waiting head: %s, for %s since %s, the last claim began at %s", head.id, age, seen.at, claimed)
			}
			seen = now
		}
		since[head] = seen
	}
	w.since = since
	return nil
}

// pairs reads events and deliveries of one moment: none is without the other.
func (w *heads) pairs(ctx context.Context) error {
	_, err := w.snapshot(ctx, func(ctx context.Context) error {
		events, err := propertyDocs(ctx, w.db.Collection("outbox_events"), bson.D{}, bson.D{{Key: "handlers", Value: 1}})
		if err != nil {
			return err
		}
		deliveries, err := propertyDocs(ctx, w.db.Collection("outbox_deliveries"), bson.D{}, bson.D{{Key: "event_id", Value: 1}, {Key: "handler", Value: 1}})
		if err != nil {
			return err
		}
		handlers := make(map[string][]string, len(events))
		for _, doc := range events {
			id := doc.Lookup("_id").StringValue()
			handlers[id] = []string{}
			values, _ := doc.Lookup("handlers").Array().Values()
			for _, v := range values {
				handlers[id] = append(handlers[id], v.StringValue())
			}
		}
		has := make(map[string]bool, len(events))
		for _, doc := range deliveries {
			event, handler := doc.Lookup("event_id").StringValue(), doc.Lookup("handler").StringValue()
			has[event] = true
			if !slices.Contains(handlers[event], handler) {
				w.h.violate("pairs: a delivery to %s without its event %s, which names %v", handler, event, handlers[event])
			}
		}
		for event := range handlers {
			if !has[event] {
				w.h.violate("pairs: event %s without a delivery", event)
			}
		}
		return nil
	})
	return err
}

func propertyDocs(ctx context.Context, coll *mongo.Collection, filter, projection bson.D) (docs []bson.Raw, err error) {
	cursor, err := coll.Find(ctx, filter, options.Find().SetProjection(projection).SetBatchSize(100_000))
	if err == nil {
		err = cursor.All(ctx, &docs)
	}
	return docs, err
}
