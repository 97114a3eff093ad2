package main

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// The rows sweep, ack and list: the same question to a small collection and to a
// large one that holds as many answers.

// question is one that must not cost more where more is stored.
type question struct {
	name string
	ops  int // in a segment
	// ask gives how many it returned.
	ask  func(ctx context.Context, s *mongostore.Store, p *population, i int) (int, error)
	seed func(ctx context.Context, p *population, i int) error
	acks bool // it uses up the pending events
}

func questions() []question {
	return []question{
		{name: "sweep/outbox", ops: 20,
			ask: func(ctx context.Context, s *mongostore.Store, _ *population, _ int) (int, error) {
				entries, err := s.PendingOutbox(ctx, owing)
				return len(entries), err
			},
			seed: func(ctx context.Context, p *population, _ int) error {
				entries, err := p.seed.pending(ctx, "outbox")
				return expect(len(entries), err)
			}},
		{name: "sweep/spawns", ops: 20,
			ask: func(ctx context.Context, s *mongostore.Store, _ *population, _ int) (int, error) {
				entries, err := s.PendingSpawns(ctx, owing)
				return len(entries), err
			},
			seed: func(ctx context.Context, p *population, _ int) error {
				entries, err := p.seed.pending(ctx, "spawns")
				return expect(len(entries), err)
			}},
		{name: "sweep/timers", ops: 20,
			ask: func(ctx context.Context, s *mongostore.Store, _ *population, _ int) (int, error) {
				timers, err := s.DueTimers(ctx, sweepTime, owing)
				return len(timers), err
			},
			seed: func(ctx context.Context, p *population, _ int) error {
				due, err := p.seed.dueTimers(ctx, float64(sweepTime.Unix()))
				return expect(len(due), err)
			}},
		{name: "ack/outbox", ops: owing, acks: true,
			ask: func(ctx context.Context, s *mongostore.Store, p *population, i int) (int, error) {
				return 0, s.AckOutbox(ctx, p.outbox[i])
			},
			seed: func(ctx context.Context, p *population, i int) error {
				return p.seed.ackOutbox(ctx, p.outbox[i*37%owing].Seq) // spread over the collection
			}},
		{name: "list/status", ops: 50,
			ask: func(ctx context.Context, s *mongostore.Store, p *population, _ int) (int, error) {
				page, err := s.List(ctx, mongostore.ListOptions{Statuses: []string{rareStatus}, Limit: p.rare()})
				if err != nil {
					return 0, err
				}
				return len(page.Items), nil
			},
			seed: func(ctx context.Context, p *population, _ int) error {
				return p.seed.list(ctx, rareStatus, 0, p.rare())
			}},
		{name: "list/deep", ops: 50,
			ask: func(ctx context.Context, s *mongostore.Store, p *population, _ int) (int, error) {
				page, err := s.List(ctx, mongostore.ListOptions{Limit: pageSize, Cursor: p.deep})
				if err != nil {
					return 0, err
				}
				return len(page.Items), nil
			},
			seed: func(ctx context.Context, p *population, _ int) error {
				return p.seed.list(ctx, "", p.offset, pageSize)
			}},
	}
}

func expect(entries int, err error) error {
	if err == nil && entries != owing {
		return fmt.Errorf("%d entries, not %d", entries, owing)
	}
	return err
}

// rare is how many of the smallest collection are in the rare status: a page that
// every size can fill.
func (p *population) rare() int { return p.first / 1000 }

func sweepCurve(question, label string) string { return "curve/" + question + "/n=" + label }

// sizeLabels name the sizes of the collections.
var sizeLabels = []string{"10k", "100k", "1M"}

func sweepRows() (rows []row) {
	for _, q := range questions() {
		r := row{unit: "µs", better: lower, floor: "10k"}
		r.name, r.ours, r.seed, r.bar, r.note = q.name, "1M", "seed 1M", 1.5, "1,000,000 executions; floor: ours on 10,000"
		rows = append(rows, r)
		rows = append(rows, row{name: q.name + "/keys", unit: "keys examined", better: lower, ours: "keys", floor: "allowed", bar: 1, exact: true,
			note: "by explain, on 1,000,000 executions; floor: 2 × returned + 20"})
		for _, label := range sizeLabels {
			r.name, r.ours, r.seed, r.bar, r.note = sweepCurve(q.name, label), label, "seed "+label, 0, "floor: ours on 10,000"
			rows = append(rows, r)
		}
	}
	return rows
}

func sweepPart() part {
	return part{rows: sweepRows(), on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		sizes := []int{b.size(10_000, 1_000), b.size(100_000, 2_000), b.size(1_000_000, 5_000)}
		var all []*population
		for i, n := range sizes {
			p, err := populate(ctx, t, n, sizeLabels[i])
			if err != nil {
				return err
			}
			defer p.drop()
			p.first = sizes[0]
			all = append(all, p)
		}
		for _, q := range questions() {
			if err := q.measure(ctx, b, t, all, rows); err != nil {
				return fmt.Errorf("%s: %w", q.name, err)
			}
		}
		return nil
	}}
}

// measure runs ours on all sizes in turn, then the seed, which takes long, fewer
// times, and counts the keys.
func (q question) measure(ctx context.Context, b *bench, t *target, all []*population, rows []row) error {
	var timed []row
	for _, r := range rows {
		switch r.name {
		case q.name + "/keys":
			if err := q.countKeys(ctx, b, t, all[len(all)-1], r); err != nil {
				return err
			}
		case q.name, sweepCurve(q.name, sizeLabels[0]), sweepCurve(q.name, sizeLabels[1]), sweepCurve(q.name, sizeLabels[2]):
			timed = append(timed, r)
		}
	}
	if len(timed) == 0 {
		return nil
	}
	m := measure{workers: 1, ops: b.size(q.ops, 2), chunks: q.ops / 5, pairs: b.size(15, 1), value: p50}
	slow := measure{workers: 1, ops: 1, pairs: b.size(3, 1), value: p50}
	for i, p := range all {
		ours, seed := side{name: sizeLabels[i]}, side{name: "seed " + sizeLabels[i]}
		ours.op = func(ctx context.Context, _, i int) error { _, err := q.ask(ctx, p.store, p, i); return err }
		seed.op = func(ctx context.Context, _, i int) error { return q.seed(ctx, p, i) }
		if q.acks {
			ours.before, seed.before = p.refill, p.refill
		}
		m.sides, slow.sides = append(m.sides, ours), append(slow.sides, seed)
	}
	got, err := m.run(ctx)
	if err != nil {
		return err
	}
	seeds, err := slow.run(ctx)
	if err != nil {
		return err
	}
	for name, s := range seeds {
		got[name] = s
	}
	for _, r := range timed {
		b.report(r, r.result(t.topology, m, got))
	}
	return nil
}

// countKeys explains every command that the question sends.
func (q question) countKeys(ctx context.Context, b *bench, t *target, p *population, r row) error {
	done, err := p.watch()
	if err != nil {
		return err
	}
	defer done()
	if q.acks {
		if err := p.refill(ctx); err != nil {
			return err
		}
	}
	if _, err := q.ask(ctx, p.watched, p, 0); err != nil { // the second time is the steady state
		return err
	}
	p.sent.Reset()
	returned, err := q.ask(ctx, p.watched, p, 0)
	if err != nil {
		return err
	}
	if q.acks {
		if err := p.refill(ctx); err != nil {
			return err
		}
	}
	keys := 0.0
	for _, sent := range p.sent.Commands() {
		n, err := keysExamined(ctx, t, p.db, sent.Body)
		if err != nil {
			return err
		}
		keys += float64(n)
	}
	one := func(v float64) *samples { return &samples{values: []float64{v}} }
	got := map[string]*samples{"keys": one(keys), "allowed": one(float64(2*returned + 20))}
	r.note = fmt.Sprintf("%d returned; %s", returned, r.note)
	b.report(r, r.result(t.topology, measure{ops: 1}, got))
	return nil
}

// keysExamined runs a command again under explain, which never writes.
func keysExamined(ctx context.Context, t *target, db string, command bson.Raw) (int64, error) {
	var all, kept bson.D
	if err := bson.Unmarshal(command, &all); err != nil {
		return 0, err
	}
	for _, e := range all {
		switch e.Key {
		case "lsid", "$db", "$clusterTime", "$readPreference", "readConcern", "writeConcern", "ordered": // explain refuses them
		default:
			kept = append(kept, e)
		}
	}
	if len(kept) > 0 && kept[0].Key == "getMore" {
		return 0, nil // its find has counted them
	}
	result, err := t.client.Database(db).RunCommand(ctx, bson.D{{Key: "explain", Value: kept}, {Key: "verbosity", Value: "executionStats"}}).Raw()
	if err != nil {
		return 0, err
	}
	return totalKeys(result), nil
}

// totalKeys sums up an explain result: a pipeline has totals for each of its parts.
func totalKeys(result bson.Raw) (sum int64) {
	if n, ok := result.Lookup("totalKeysExamined").AsInt64OK(); ok {
		return n
	}
	elements, _ := result.Elements()
	for _, e := range elements {
		switch value := e.Value(); value.Type {
		case bson.TypeEmbeddedDocument:
			sum += totalKeys(value.Document())
		case bson.TypeArray:
			sum += totalKeys(bson.Raw(value.Array()))
		}
	}
	return sum
}
