package main

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// The rows commit/plain, commit/full, commit/first and commit/data.

// perWorker is how many executions a worker goes round: a lone worker as many as
// in the figures of the original.
func perWorker(workers int) int {
	if workers == 1 {
		return 100
	}
	return 4
}

// blockSize is the SeqBlock of the rows that have one.
const blockSize = 1000

// fleet is one side's executions: each worker has its own, so that nothing but the
// server makes them wait for each other.
type fleet struct {
	t       *target
	db      string
	workers int
	events  eventIDs
}

func (f *fleet) at(worker, i int) int {
	each := perWorker(f.workers)
	return worker*each + i%each
}

func (f *fleet) size() int { return f.workers * perWorker(f.workers) }

// emptied puts the arrays of a collection back to empty, off the clock, as in the
// figures of the original.
func (f *fleet) emptied(coll string, ops int) func(context.Context) error {
	empty := bson.D{{Key: "outbox", Value: bson.A{}}, {Key: "spawns", Value: bson.A{}}, {Key: "trace", Value: bson.A{}}, {Key: "processed", Value: bson.A{}}}
	return func(ctx context.Context) error {
		f.events.refill(ops)
		_, err := f.t.raw(f.db, coll).UpdateMany(ctx, bson.D{}, bson.D{{Key: "$set", Value: empty}})
		return err
	}
}

// commitSide is ours, with full commits or plain ones.
func (f *fleet) commitSide(ctx context.Context, name string, cfg mongostore.Config, text int, full bool, ops int) (side, error) {
	cfg.Prefix = name + "_"
	store, err := f.t.store(ctx, f.db, cfg)
	if err != nil {
		return side{}, err
	}
	orders := make([]*order, f.size())
	fast, err := f.t.fast().store(ctx, f.db, cfg)
	if err != nil {
		return side{}, err
	}
	for i := range orders {
		orders[i] = newOrder(newID(), text)
		if _, err := fast.Commit(ctx, orders[i], mongostore.Changes{}); err != nil {
			return side{}, err
		}
	}
	s := side{name: name, op: func(ctx context.Context, worker, i int) error {
		_, err := store.Commit(ctx, orders[f.at(worker, i)], mongostore.Changes{})
		return err
	}}
	if full {
		changes := fullChanges()
		s.before = f.emptied(cfg.Prefix+"executions", ops)
		s.op = func(ctx context.Context, worker, i int) error {
			ch := changes
			ch.Processed = f.events.take()
			_, err := store.Commit(ctx, orders[f.at(worker, i)], ch)
			return err
		}
	}
	return s, nil
}

func (f *fleet) floorSide(ctx context.Context, text int, full bool, ops int) (side, error) {
	fl := newFloor(f.t.fast().raw(f.db, "floor"), text)
	if err := fl.insert(ctx, f.size()); err != nil {
		return side{}, err
	}
	fl.coll = f.t.raw(f.db, "floor")
	s := side{name: "floor", op: func(ctx context.Context, worker, i int) error {
		return fl.plain(ctx, f.at(worker, i))
	}}
	if full {
		s.before = f.emptied("floor", ops)
		s.op = func(ctx context.Context, worker, i int) error {
			return fl.full(ctx, f.at(worker, i), f.events.take())
		}
	}
	return s, nil
}

func (f *fleet) seedSide(ctx context.Context, text int, full bool, ops int) (side, error) {
	seed, fast := newSeed(f.t, f.db), newSeed(f.t.fast(), f.db)
	orders := make([]*order, f.size())
	for i := range orders {
		orders[i] = newOrder(newID(), text)
		if err := fast.commit(ctx, orders[i], seedChanges{}); err != nil {
			return side{}, err
		}
	}
	s := side{name: "seed", op: func(ctx context.Context, worker, i int) error {
		return seed.commit(ctx, orders[f.at(worker, i)], seedChanges{})
	}}
	if full {
		changes, err := seedFullChanges()
		if err != nil {
			return side{}, err
		}
		s.before = f.emptied("seed_executions", ops)
		s.op = func(ctx context.Context, worker, i int) error {
			ch := changes
			ch.processed = f.events.take()
			return seed.commit(ctx, orders[f.at(worker, i)], ch)
		}
	}
	return s, nil
}

func seedFullChanges() (seedChanges, error) {
	var trace, input bson.D
	if err := bson.Unmarshal(mustBSON(aStep()), &trace); err != nil {
		return seedChanges{}, err
	}
	if err := bson.Unmarshal(mustBSON(aChildInput()), &input); err != nil {
		return seedChanges{}, err
	}
	return seedChanges{
		emits:  []seedEmit{{target: "billing-7", event: anEvent()}},
		spawns: []seedSpawn{{child: newID(), rootPath: "Fulfil.Ship", context: input}},
		timers: []seedTimer{{path: timerPath, schedule: true, fireAt: float64(fireAt.Unix())}},
		trace:  trace,
	}, nil
}

// commitSides are all four sides of a commit.
func commitSides(ctx context.Context, t *target, db string, workers, text int, full bool, ops int) ([]side, error) {
	f := func() *fleet { return &fleet{t: t, db: db, workers: workers} }
	ours, err := f().commitSide(ctx, "ours", mongostore.Config{}, text, full, ops)
	if err != nil {
		return nil, err
	}
	block, err := f().commitSide(ctx, "block", mongostore.Config{SeqBlock: blockSize}, text, full, ops)
	if err != nil {
		return nil, err
	}
	raw, err := f().floorSide(ctx, text, full, ops)
	if err != nil {
		return nil, err
	}
	seed, err := f().seedSide(ctx, text, full, ops)
	if err != nil {
		return nil, err
	}
	return []side{ours, block, raw, seed}, nil
}

// pace is how much a measure of commits does, and what it counts.
func pace(b *bench, workers int) measure {
	if workers == 1 {
		return measure{workers: 1, ops: b.size(200, 10), chunks: 10, pairs: b.size(25, 1), value: p50}
	}
	return measure{workers: workers, ops: b.size(32*workers, workers), pairs: b.size(25, 1), value: perSecond}
}

// commitRow is a row by time for one worker, by throughput for many.
func commitRow(name string, workers int, ours, floor, seed string, bar float64) row {
	r := row{name: fmt.Sprintf("%s/w=%d", name, workers), ours: ours, floor: floor, seed: seed, bar: bar, unit: "µs", better: lower}
	if workers > 1 {
		r.unit, r.better = "commits/s", higher
	}
	return r
}

func commitPart(rows []row, workers, text int, full bool) part {
	return part{rows: rows, on: topologies, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("commit")
		defer t.drop(db)
		m := pace(b, workers)
		if text > 0 {
			m.ops = b.size(50, 10)
		}
		var err error
		if m.sides, err = commitSides(ctx, t, db, workers, text, full, m.ops); err != nil {
			return err
		}
		return b.compare(ctx, t, m, rows)
	}}
}

func plainPart(workers int) part {
	r := commitRow("commit/plain", workers, "ours", "floor", "seed", 1.12)
	if workers > 1 {
		r.barOn = map[string]float64{standalone: 0.88, standaloneW1: 0.92}
	}
	return commitPart([]row{r}, workers, 0, false)
}

func fullPart(workers int) part {
	bars := map[bool][4]float64{true: {2.1, 1.15, 0.8, 0.5}, false: {0.85, 0.92, 2}}[workers == 1]
	against := func(r row) row { r.note = "floor: the seed's algorithm"; return r }
	rows := []row{
		commitRow("commit/full", workers, "ours", "floor", "seed", bars[0]),
		commitRow("commit/full/block", workers, "block", "floor", "", bars[1]),
		against(commitRow("commit/full/seed", workers, "ours", "seed", "", bars[2])),
		against(commitRow("commit/full/block/seed", workers, "block", "seed", "", bars[3])),
	}
	return commitPart(rows, workers, 0, true)
}

func largePart() part {
	r := commitRow("commit/data=256KiB", 1, "ours", "floor", "seed", 1.10)
	r.note = "the snapshot is one text of 256 KiB, encoded anew by ours and the seed"
	return commitPart([]row{r}, 1, 256<<10, false)
}

// noisePart compares the floor with itself: what the machine adds to any ratio.
func noisePart(workers int) part {
	r := commitRow("noise/floor", workers, "a", "b", "", 0)
	r.note = "the same code on both sides"
	return part{rows: []row{r}, on: topologies, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("noise")
		defer t.drop(db)
		m := pace(b, workers)
		for _, name := range []string{"a", "b"} {
			f := &fleet{t: t, db: db, workers: workers}
			s, err := f.floorSide(ctx, 0, false, m.ops)
			if err != nil {
				return err
			}
			s.name = name
			m.sides = append(m.sides, s)
		}
		return b.compare(ctx, t, m, rows)
	}}
}

// firstPart is the first commit against a raw insert of the same fields.
func firstPart() part {
	r := commitRow("commit/first", 1, "ours", "floor", "seed", 1.10)
	return part{rows: []row{r}, on: topologies, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("first")
		defer t.drop(db)
		store, err := t.store(ctx, db, mongostore.Config{})
		if err != nil {
			return err
		}
		m := pace(b, 1)
		seed := newSeed(t, db)
		fl := newFloor(t.raw(db, "floor"), 0)
		m.sides = []side{
			firstSide("ours", m.ops, func(ctx context.Context, o *order) error {
				_, err := store.Commit(ctx, o, mongostore.Changes{})
				return err
			}),
			firstSide("floor", m.ops, func(ctx context.Context, o *order) error { return fl.first(ctx, o.ID) }),
			firstSide("seed", m.ops, func(ctx context.Context, o *order) error { return seed.commit(ctx, o, seedChanges{}) }),
		}
		return b.compare(ctx, t, m, rows)
	}}
}

// firstSide makes its orders off the clock.
func firstSide(name string, ops int, commit func(context.Context, *order) error) side {
	fresh := make([]*order, ops)
	return side{
		name: name,
		before: func(context.Context) error {
			for i := range fresh {
				fresh[i] = newOrder(newID(), 0)
			}
			return nil
		},
		op: func(ctx context.Context, _, i int) error { return commit(ctx, fresh[i]) },
	}
}

// curvePart is the throughput of full commits by the number of workers, for the plot.
func curvePart() part {
	var rows []row
	counts := []int{1, 2, 4, 8, 16, 32, 64}
	for _, n := range counts {
		r := row{unit: "commits/s", better: higher}
		r.name, r.ours, r.floor, r.seed = curveName("full", n), "ours", "floor", "seed"
		rows = append(rows, r)
		r.name, r.ours, r.seed = curveName("block", n), "block", ""
		rows = append(rows, r)
	}
	return part{rows: rows, on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		for _, n := range counts {
			if wanted := curveRows(rows, n); len(wanted) > 0 {
				if err := curve(ctx, b, t, n, wanted); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

func curveName(what string, workers int) string { return fmt.Sprintf("curve/%s/w=%d", what, workers) }

func curveRows(rows []row, workers int) (wanted []row) {
	for _, r := range rows {
		if r.name == curveName("full", workers) || r.name == curveName("block", workers) {
			wanted = append(wanted, r)
		}
	}
	return wanted
}

func curve(ctx context.Context, b *bench, t *target, workers int, rows []row) error {
	db := t.database("curve")
	defer t.drop(db)
	m := measure{workers: workers, ops: b.size(max(150, 24*workers), workers), pairs: b.size(9, 1), value: perSecond}
	var err error
	if m.sides, err = commitSides(ctx, t, db, workers, 0, true, m.ops); err != nil {
		return err
	}
	return b.compare(ctx, t, m, rows)
}
