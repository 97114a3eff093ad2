package main

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// The rows load and loadforevent: documents whose dedupe window and trace ring are
// full, against a raw findOne of the snapshot, not decoded.

func loadPart() part {
	r := row{unit: "µs", better: lower, floor: "floor"}
	load, forEvent := r, r
	load.name, load.ours, load.seed, load.bar = "load/w=1", "load", "seed load", 1.10
	forEvent.name, forEvent.ours, forEvent.seed, forEvent.bar = "loadforevent/w=1", "loadForEvent", "seed loadForEvent", 1.45
	forEvent.note = "an event that was not handled yet"
	return part{rows: []row{load, forEvent}, on: topologies, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("load")
		defer t.drop(db)
		m := measure{workers: 1, ops: b.size(300, 10), chunks: 10, pairs: b.size(25, 1), value: p50}
		store, err := t.store(ctx, db, mongostore.Config{})
		if err != nil {
			return err
		}
		ids, err := longLived(ctx, t, db, store, b.size(50, 3))
		if err != nil {
			return err
		}
		m.sides = loadSides(t, db, store, ids)
		return b.compare(ctx, t, m, rows)
	}}
}

func loadSides(t *target, db string, store *mongostore.Store, ids []string) []side {
	coll := t.raw(db, "executions")
	fl := &floor{coll: coll}
	seed := &seedStore{exes: coll}
	at := func(i int) string { return ids[i%len(ids)] }
	return []side{
		{name: "load", op: func(ctx context.Context, _, i int) error {
			var o order
			return store.Load(ctx, at(i), &o)
		}},
		{name: "loadForEvent", op: func(ctx context.Context, _, i int) error {
			var o order
			_, err := store.LoadForEvent(ctx, at(i), "an event that is new", &o)
			return err
		}},
		{name: "floor", op: func(ctx context.Context, _, i int) error { return fl.load(ctx, at(i)) }},
		{name: "seed load", op: func(ctx context.Context, _, i int) error {
			var o order
			return seed.load(ctx, at(i), &o)
		}},
		{name: "seed loadForEvent", op: func(ctx context.Context, _, i int) error {
			var o order
			_, err := seed.loadForEvent(ctx, at(i), "an event that is new", &o)
			return err
		}},
	}
}

// longLived makes n executions of a full commit each, and fills their windows.
func longLived(ctx context.Context, t *target, db string, store *mongostore.Store, n int) ([]string, error) {
	ids := newIDs(n)
	steps := make(bson.A, 200)
	for i := range steps {
		steps[i] = aStep()
	}
	for _, id := range ids {
		ch := fullChanges()
		ch.Processed = newID()
		if _, err := store.Commit(ctx, newOrder(id, 0), ch); err != nil {
			return nil, err
		}
		full := bson.D{{Key: "processed", Value: newIDs(1000)}, {Key: "trace", Value: steps}}
		if _, err := t.raw(db, "executions").UpdateByID(ctx, id, bson.D{{Key: "$set", Value: full}}); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
