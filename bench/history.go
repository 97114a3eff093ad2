package main

import (
	"context"
	"fmt"
	"time"

	"github.com/execstore/mongostore"
)

// The row commit/history: what a full commit costs an execution with a long past.

func historyPart() part {
	r := row{name: "commit/history", unit: "µs", better: lower, ours: "long", floor: "short", bar: 1.10,
		note: "full commits of one execution after 100,000, floor: of another after 1,000; entries acked off the clock"}
	return part{rows: []row{r}, on: topologies, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("history")
		defer t.drop(db)
		m := measure{workers: 1, ops: b.size(100, 10), chunks: 5, pairs: b.size(25, 1), value: p50}
		store, err := t.store(ctx, db, mongostore.Config{})
		if err != nil {
			return err
		}
		for name, commits := range map[string]int{"long": b.size(100_000, 200), "short": b.size(1_000, 20)} {
			l := &life{t: t, db: db, o: newOrder(newID(), 0), changes: fullChanges()}
			if err := l.live(ctx, commits); err != nil {
				return err
			}
			m.sides = append(m.sides, l.side(name, store, m.ops))
		}
		return b.compare(ctx, t, m, rows)
	}}
}

// life is one execution and its past.
type life struct {
	t       *target
	db      string
	o       *order
	changes mongostore.Changes
	events  eventIDs
}

// live makes the past, by w:1, which leaves the same document sooner.
func (l *life) live(ctx context.Context, commits int) error {
	start := time.Now()
	store, err := l.t.fast().store(ctx, l.db, mongostore.Config{SeqBlock: blockSize})
	if err != nil {
		return err
	}
	const between = 50 // acks
	for done := 0; done < commits; done += between {
		l.events.refill(between)
		for range min(between, commits-done) {
			if err := l.commit(ctx, store); err != nil {
				return err
			}
		}
		if err := l.ackAll(ctx, store); err != nil {
			return err
		}
	}
	if took := time.Since(start); took > time.Second {
		fmt.Printf("# %d commits of one execution in %s\n", commits, took.Round(time.Second))
	}
	return nil
}

func (l *life) commit(ctx context.Context, store *mongostore.Store) error {
	ch := l.changes
	ch.Processed = l.events.take()
	_, err := store.Commit(ctx, l.o, ch)
	return err
}

func (l *life) ackAll(ctx context.Context, store *mongostore.Store) error {
	owed, err := store.Inspect(ctx, l.o.ID)
	if err != nil {
		return err
	}
	if err := store.AckOutbox(ctx, owed.Outbox...); err != nil {
		return err
	}
	return store.AckSpawn(ctx, owed.Spawns...)
}

func (l *life) side(name string, store *mongostore.Store, ops int) side {
	return side{
		name: name,
		before: func(ctx context.Context) error {
			l.events.refill(ops)
			return l.ackAll(ctx, store)
		},
		op: func(ctx context.Context, _, _ int) error { return l.commit(ctx, store) },
	}
}
