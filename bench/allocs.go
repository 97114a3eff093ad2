package main

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// The rows allocs/commit: what the client allocates for a commit, divided by the
// commands that it sends, against the raw driver call.

func allocsPart() part {
	r := row{unit: "allocs/command", better: lower, ours: "ours", floor: "floor", bar: 1.5, exact: true}
	full, plain := r, r
	full.name, full.note = "allocs/commit", "a full commit; floor: one raw update of the same contents"
	plain.name, plain.note = "allocs/commit/plain", "a plain commit"
	return part{rows: []row{full, plain}, on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		for _, r := range rows {
			if err := allocs(ctx, b, t, r, r.name == full.name); err != nil {
				return err
			}
		}
		return nil
	}}
}

func allocs(ctx context.Context, b *bench, t *target, r row, full bool) error {
	db := t.database("allocs")
	defer t.drop(db)
	commands, err := commandsOf(ctx, t, full)
	if err != nil {
		return err
	}
	m := measure{workers: 1, ops: b.size(500, 20), pairs: b.size(7, 1), value: mallocsPerOp}
	f := func() *fleet { return &fleet{t: t, db: db, workers: 1} }
	ours, err := f().commitSide(ctx, "ours", mongostore.Config{}, 0, full, m.ops)
	if err != nil {
		return err
	}
	raw, err := f().floorSide(ctx, 0, full, m.ops)
	if err != nil {
		return err
	}
	m.sides = []side{ours, raw}
	got, err := m.run(ctx)
	if err != nil {
		return err
	}
	for i := range got["ours"].values {
		got["ours"].values[i] /= float64(commands)
	}
	b.report(r, r.result(t.topology, m, got))
	return nil
}

// commandsOf counts what one commit sends.
func commandsOf(ctx context.Context, t *target, full bool) (int, error) {
	var sent mongotest.Commands
	watched, err := newTarget(t.topology, t.uri, options.Client().SetMonitor(sent.Monitor()))
	if err != nil {
		return 0, err
	}
	defer watched.close()
	db := t.database("commands")
	defer t.drop(db)
	f := &fleet{t: watched, db: db, workers: 1}
	s, err := f.commitSide(ctx, "ours", mongostore.Config{}, 0, full, 1)
	if err != nil {
		return 0, err
	}
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return 0, err
		}
	}
	sent.Reset()
	err = s.op(ctx, 0, 0)
	return len(sent.Names()), err
}
