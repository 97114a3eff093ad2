package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	driverevent "go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
)

const (
	outboxBacklog = 500_000 // that wait behind one busy head
	outboxKeys    = 100_000
	outboxFew     = 100 // due, in each population but that of many keys
	keysAllowed   = 60  // that a claim may examine, whatever waits
)

// outboxPopulation is one that claims are measured on.
type outboxPopulation struct {
	side string
	lay  func(ctx context.Context, b *bench, o *outboxDB) error
}

func outboxPopulations() []outboxPopulation {
	due := func(ctx context.Context, o *outboxDB, then func() error) error {
		if err := o.layDue(ctx, outboxFew); err != nil {
			return err
		}
		return then()
	}
	return []outboxPopulation{
		{"few", func(ctx context.Context, _ *bench, o *outboxDB) error { return o.layDue(ctx, outboxFew) }},
		{"backlog", func(ctx context.Context, b *bench, o *outboxDB) error {
			return due(ctx, o, func() error { return o.layBehind(ctx, b.size(outboxBacklog, 2000)) })
		}},
		{"keys", func(ctx context.Context, b *bench, o *outboxDB) error { return o.layDue(ctx, b.size(outboxKeys, 1000)) }},
		{"few blocked", func(ctx context.Context, _ *bench, o *outboxDB) error {
			return due(ctx, o, func() error { return o.layBlocked(ctx, 100) })
		}},
		{"blocked", func(ctx context.Context, b *bench, o *outboxDB) error {
			return due(ctx, o, func() error { return o.layBlocked(ctx, b.size(outboxKeys, 1000)) })
		}},
	}
}

// outboxClaimPart are claims of ten, and a repair, where much waits or is blocked.
func outboxClaimPart() part {
	rows := []row{
		{name: "outbox/claim/backlog", ours: "backlog", floor: "few", bar: 1.2,
			note: "a claim of 10 of 100 that are due, with 500,000 waiting behind one busy head; floor: without them"},
		{name: "outbox/claim/keys", ours: "keys", floor: "few", bar: 1.2,
			note: "a claim of 10 of 100,000 keys with one delivery each; floor: of 100 keys"},
		{name: "outbox/claim/keys/blocked", ours: "blocked", floor: "few blocked", bar: 1.2,
			note: "a claim of 10 of 100 that are due, with 100,000 keys blocked by a delayed head; floor: with 100"},
		{name: "outbox/repair", ours: "blocked", floor: "by _id", bar: 3,
			note: "one round without suspects, with 100,000 keys blocked by a delayed head, as the command monitor times it; floor: a raw find by _id"},
	}
	for i := range rows {
		rows[i].unit, rows[i].better, rows[i].barOn = "µs", lower, map[string]float64{replicaset: rows[i].bar}
	}
	return part{rows: rows, on: []string{replicaset}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		all := map[string]*outboxDB{}
		var claims []row
		m := measure{workers: 1, ops: b.size(20, 2), chunks: b.size(10, 1), pairs: b.size(15, 1), value: p50}
		for _, p := range outboxPopulations() {
			if !slices.ContainsFunc(rows, func(r row) bool { return slices.Contains(r.sides(), p.side) }) {
				continue
			}
			o, err := openOutbox(ctx, t, fmt.Sprintf("claim_%d", len(all)))
			if err != nil {
				return err
			}
			defer o.drop()
			start := time.Now()
			if err := p.lay(ctx, b, o); err != nil {
				return err
			}
			fmt.Printf("# outbox, %s: laid in %s\n", p.side, time.Since(start).Round(time.Millisecond))
			all[p.side] = o
			m.sides = append(m.sides, o.claimSide(p.side))
		}
		for _, r := range rows {
			switch r.name {
			case "outbox/repair":
				if err := repairRow(ctx, b, t, all["blocked"], r); err != nil {
					return err
				}
				continue
			case "outbox/claim/backlog":
				keys, byID, err := all["backlog"].claimKeys(ctx)
				if err != nil {
					return err
				}
				r.note += fmt.Sprintf("; %d keys examined to find them and look at their lanes, at most %d, and %d by _id", keys, keysAllowed, byID)
				if keys > keysAllowed {
					b.failures = append(b.failures, r.name+" (keys examined)")
				}
			}
			claims = append(claims, r)
		}
		if len(claims) == 0 {
			return nil
		}
		return b.compare(ctx, t, m, claims)
	}}
}

// claimKeys counts the index keys that a claim of ten examines in its steady state, by
// explain of every command that it sends: those that it needs to find what is due and to
// look at the lanes, and those by which it then gets at documents whose _id it knows, of
// which the server counts one a document where ids follow each other, and two elsewhere.
func (o *outboxDB) claimKeys(ctx context.Context) (found, byID int64, err error) {
	var sent mongotest.Commands
	watched, err := newTarget(o.t.topology, o.t.uri, options.Client().SetMonitor(sent.Monitor()))
	if err != nil {
		return 0, 0, err
	}
	defer watched.close()
	s, err := o.on(watched.client)
	if err != nil {
		return 0, 0, err
	}
	var commands []mongotest.Command
	for range 2 { // the first one repairs too
		sent.Reset()
		ds, err := o.claim(ctx, s)
		if err != nil {
			return 0, 0, err
		}
		commands = sent.Commands()
		if err := o.putBack(ctx, ds); err != nil {
			return 0, 0, err
		}
	}
	for _, command := range commands {
		n, err := keysExamined(ctx, o.t, o.name, command.Body)
		if err != nil {
			return 0, 0, err
		}
		if command.Name == "update" || command.Body.Lookup("filter", "_id").Type != 0 {
			byID += n
		} else {
			found += n
		}
	}
	return found, byID, nil
}

// outboxFinishedPart counts what a claim examines beside much that is finished.
func outboxFinishedPart() part {
	const under = 50
	r := row{name: "outbox/claim/finished", unit: "keys examined", better: lower, ours: "keys", floor: "allowed", barOn: map[string]float64{replicaset: 1}, exact: true,
		note: "by explain, to find what a claim of 10 takes and to look at the lanes, beside 200,000 completed and 2,000 dead deliveries; floor: 49"}
	return part{rows: []row{r}, on: []string{replicaset}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		o, err := openOutbox(ctx, t, "finished")
		if err != nil {
			return err
		}
		defer o.drop()
		if err := o.layDue(ctx, outboxFew); err != nil {
			return err
		}
		if err := o.layFinished(ctx, b.size(200_000, 2000), b.size(2000, 20)); err != nil {
			return err
		}
		keys, byID, err := o.claimKeys(ctx)
		if err != nil {
			return err
		}
		r := rows[0]
		r.note += fmt.Sprintf("; %d more by _id", byID)
		b.reportCount(t, r, "keys", float64(keys), under-1)
		return nil
	}}
}

// reportCount reports what was counted against what is allowed.
func (b *bench) reportCount(t *target, r row, name string, counted, allowed float64) {
	one := func(v float64) *samples { return &samples{values: []float64{v}} }
	b.report(r, r.result(t.topology, measure{ops: 1}, map[string]*samples{name: one(counted), r.floor: one(allowed)}))
}

// outboxFirstPart is the first claim after much was loaded: a claim that tidied up the
// backlog on sight would pay for all of it there.
func outboxFirstPart() part {
	r := row{name: "outbox/claim/backlog/first", unit: "µs", better: lower, ours: "first", floor: "steady", barOn: map[string]float64{replicaset: 1.5},
		note: "the first claim of 10, 5 s after 100,000 were loaded behind one busy head, without the repair before it, for 3 fresh loads; floor: claims without a backlog, which go on for these 5 s, so that no side finds the server asleep"}
	return part{rows: []row{r}, on: []string{replicaset}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		var clock claimClock
		watched, err := newTarget(t.topology, t.uri, options.Client().SetMonitor(clock.monitor()))
		if err != nil {
			return err
		}
		defer watched.close()
		few, err := openOutbox(ctx, watched, "steady")
		if err != nil {
			return err
		}
		defer few.drop()
		if err := few.layDue(ctx, outboxFew); err != nil {
			return err
		}
		first, steady := &samples{}, &samples{}
		for range b.size(3, 1) {
			took, times, err := firstClaim(ctx, b, watched, &clock, few)
			if err != nil {
				return err
			}
			first.values, first.latencies = append(first.values, micros(took)), append(first.latencies, took)
			steady.values = append(steady.values, micros(quantile(times, 0.5)))
		}
		b.report(rows[0], rows[0].result(t.topology, measure{ops: 1}, map[string]*samples{"first": first, "steady": steady}))
		return nil
	}}
}

// firstClaim loads a fresh database and times the first claim there. Before it, while the
// load is flushed, it times claims of few: a first claim after 5 s of silence is slower
// than the next ones on any data, also where nothing waits.
func firstClaim(ctx context.Context, b *bench, watched *target, clock *claimClock, few *outboxDB) (took time.Duration, steady []time.Duration, err error) {
	o, err := openOutbox(ctx, watched, "first")
	if err != nil {
		return 0, nil, err
	}
	defer o.drop()
	if err := o.layDue(ctx, outboxFew); err != nil {
		return 0, nil, err
	}
	if err := o.layBehind(ctx, b.size(outboxKeys, 1000)); err != nil {
		return 0, nil, err
	}
	for loaded := time.Now(); time.Since(loaded) < time.Duration(b.size(5000, 10))*time.Millisecond; {
		took, err := clock.time(ctx, few)
		if err != nil {
			return 0, nil, err
		}
		steady = append(steady, took)
	}
	took, err = clock.time(ctx, o)
	return took, steady, err
}

// claimClock tells when a claim began to look for what is due: a repair may stand before.
type claimClock struct {
	mu    sync.Mutex
	began time.Time
}

func (c *claimClock) monitor() *driverevent.CommandMonitor {
	return &driverevent.CommandMonitor{Started: func(_ context.Context, e *driverevent.CommandStartedEvent) {
		if e.CommandName != "find" || e.Command.Lookup("filter", "due_at").Type == 0 {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.began = time.Now()
	}}
}

func (c *claimClock) time(ctx context.Context, o *outboxDB) (time.Duration, error) {
	ds, err := o.claim(ctx, o.store)
	ended := time.Now()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return ended.Sub(c.began), o.putBack(ctx, ds)
}
