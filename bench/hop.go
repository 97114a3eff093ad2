package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// The row commit/hop: one execution that four processes load and commit in turn.
// With SeqBlock each finds its reserved numbers overtaken and must throw them away.

const hopProcesses = 4

// hopConfig is how both modes store: apart, because they must not share counters.
func hopConfig(mode string) mongostore.Config {
	cfg := mongostore.Config{Prefix: mode + "_"}
	if mode == "block" {
		cfg.SeqBlock = blockSize
	}
	return cfg
}

func hopPart() part {
	r := row{name: "commit/hop", unit: "µs", better: lower, ours: "block", floor: "default", bar: 1.2,
		note: "full commits, loaded off the clock; floor: the same without SeqBlock; order checked"}
	return part{rows: []row{r}, on: topologies, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("hop")
		defer t.drop(db)
		m := measure{workers: 1, ops: b.size(100, 8), chunks: 5, pairs: b.size(15, 1), value: p50}
		children := make([]*child, hopProcesses)
		id := newID()
		for i := range children {
			c, err := startChild(ctx, "hop", task{URI: t.uri, Topology: t.topology, Database: db, ID: id})
			if err != nil {
				return err
			}
			defer func() { _ = c.end() }()
			children[i] = c
		}
		for _, mode := range []string{"block", "default"} {
			s, err := hopSide(ctx, t, db, id, mode, children)
			if err != nil {
				return err
			}
			m.sides = append(m.sides, s)
		}
		return b.compare(ctx, t, m, rows)
	}}
}

func hopSide(ctx context.Context, t *target, db, id, mode string, children []*child) (side, error) {
	store, err := t.store(ctx, db, hopConfig(mode))
	if err != nil {
		return side{}, err
	}
	if _, err := store.Commit(ctx, newOrder(id, 0), mongostore.Changes{}); err != nil {
		return side{}, err
	}
	f := &fleet{t: t, db: db}
	turn, highest := 0, int64(0)
	return side{
		name:   mode,
		before: f.emptied(mode+"_executions", 0),
		timed: func(ctx context.Context, _ int) (time.Duration, error) {
			answer, err := children[turn%hopProcesses].ask(mode)
			turn++
			if err != nil {
				return 0, err
			}
			var took time.Duration
			var outbox int64
			if _, err := fmt.Sscan(answer, &took, &outbox); err != nil {
				return 0, fmt.Errorf("child: %s", answer)
			}
			if outbox <= highest {
				return 0, fmt.Errorf("order broken: outbox number %d after %d", outbox, highest)
			}
			highest = outbox
			return took, nil
		},
	}, nil
}

// hopChild answers each mode that it reads with the time of one commit, in
// nanoseconds, and the number that its event got.
func hopChild(ctx context.Context, work task, in io.Reader, out io.Writer) error {
	t, err := work.target()
	if err != nil {
		return err
	}
	defer t.close()
	stores := map[string]*mongostore.Store{}
	for _, mode := range []string{"block", "default"} {
		cfg := hopConfig(mode)
		cfg.Database, cfg.WriteConcern = work.Database, t.concern
		if stores[mode], err = mongostore.New(t.client, cfg); err != nil {
			return err
		}
	}
	changes := fullChanges()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		took, outbox, err := hop(ctx, stores[lines.Text()], work.ID, changes)
		if err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		fmt.Fprintln(out, int64(took), outbox)
	}
	return nil
}

func hop(ctx context.Context, store *mongostore.Store, id string, ch mongostore.Changes) (time.Duration, int64, error) {
	var o order
	if err := store.Load(ctx, id, &o); err != nil {
		return 0, 0, err
	}
	ch.Processed = bson.NewObjectID().Hex()
	start := time.Now()
	res, err := store.Commit(ctx, &o, ch)
	if err != nil {
		return 0, 0, err
	}
	return time.Since(start), res.OutboxSeqs[0], nil
}
