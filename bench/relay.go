package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// The rows relay and claim: how fast a relay drains, how soon it starts, and that a
// claim costs what it takes, whatever stands in line.

const drainWorkers = 16

// relayParts are all rows of leases.
func relayParts() []part {
	return []part{
		drainPart("relay/drain/n=1", 20_000, 1), drainPart("relay/drain/n=20", 1_000, 20),
		latencyPart(), idlePart(), claimPart(), armedPart(),
	}
}

// insertOwing makes executions that owe events, by copies of a committed one.
func insertOwing(ctx context.Context, t *target, db string, store *mongostore.Store, n, each int) error {
	ch := mongostore.Changes{}
	for range each {
		ch.Emits = append(ch.Emits, fullChanges().Emits...)
	}
	m, err := mouldOf(ctx, fastCollection(t, db), store, newOrder(newID(), 0), ch)
	if err != nil {
		return err
	}
	return insertAll(ctx, fastCollection(t, db), n, func(k int) (bson.Raw, error) { return m.pour(idOf(k)), nil })
}

// drainPart is a relay against a loop that claims and consumes one entry at a time.
func drainPart(name string, executions, each int) part {
	r := row{name: name, unit: "deliveries/s", better: higher, ours: "ours", floor: "raw loop", bar: 3,
		note: fmt.Sprintf("%d executions with %d entries each, %d workers, a handler that does nothing; floor: findOneAndUpdate and updateOne for each entry", executions, each, drainWorkers)}
	return part{rows: []row{r}, on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		n := b.size(executions, 20)
		m := measure{workers: 1, ops: 1, pairs: b.size(7, 1)}
		for _, name := range []string{"ours", "raw loop"} {
			db := t.database("drain_" + strings.Fields(name)[0])
			defer t.drop(db)
			s, err := drainSide(ctx, t, db, name, n, each)
			if err != nil {
				return err
			}
			m.sides = append(m.sides, s)
		}
		return b.compare(ctx, t, m, rows)
	}}
}

// drainSide drains a collection of its own, which is filled anew before each segment.
func drainSide(ctx context.Context, t *target, db, name string, n, each int) (side, error) {
	store, err := t.store(ctx, db, mongostore.Config{})
	if err != nil {
		return side{}, err
	}
	relay, err := store.NewRelay(noop(), mongostore.RelayConfig{Workers: drainWorkers, Batch: 64})
	if err != nil {
		return side{}, err
	}
	drain := relay.Drain
	if name != "ours" {
		drain = rawLoop{coll: t.raw(db, "executions")}.drain
	}
	if err := insertOwing(ctx, t, db, store, n, each); err != nil {
		return side{}, err
	}
	docs, err := keep(ctx, t, db)
	if err != nil {
		return side{}, err
	}
	s := side{name: name, before: func(ctx context.Context) error { return restore(ctx, t, db, docs) }}
	var rate float64
	s.gauge = func() float64 { return rate }
	s.timed = func(ctx context.Context, _ int) (time.Duration, error) {
		start := time.Now()
		got, err := drain(ctx)
		took := time.Since(start)
		rate = float64(got) / took.Seconds()
		if err == nil && got != n*each {
			err = fmt.Errorf("%d deliveries, not %d", got, n*each)
		}
		return took, err
	}
	return s, nil
}

func noop() mongostore.Handlers {
	return mongostore.Handlers{
		Outbox: func(context.Context, mongostore.OutboxEntry) error { return nil },
		Spawn:  func(context.Context, mongostore.SpawnEntry) error { return nil },
		Timer:  func(context.Context, mongostore.Timer) error { return nil },
	}
}

// keep reads all documents, to put them back before each segment.
func keep(ctx context.Context, t *target, db string) ([]any, error) {
	cursor, err := t.raw(db, "executions").Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, err
	}
	all := make([]any, len(docs))
	for i, d := range docs {
		all[i] = d
	}
	return all, nil
}

func restore(ctx context.Context, t *target, db string, docs []any) error {
	coll := t.fast().raw(db, "executions")
	if _, err := coll.DeleteMany(ctx, bson.D{}); err != nil {
		return err
	}
	_, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	return err
}

// rawLoop is what one writes without a relay: each worker claims the oldest execution
// that is due, takes its first event, and consumes it.
type rawLoop struct{ coll *mongo.Collection }

func (r rawLoop) drain(ctx context.Context) (int, error) {
	var total atomic.Int64
	errs := make([]error, drainWorkers)
	var wg sync.WaitGroup
	for w := range drainWorkers {
		wg.Go(func() {
			for {
				ok, err := r.one(ctx)
				if err != nil || !ok {
					errs[w] = err
					return
				}
				total.Add(1)
			}
		})
	}
	wg.Wait()
	return int(total.Load()), errors.Join(errs...)
}

func (r rawLoop) one(ctx context.Context) (bool, error) {
	token, now := newID(), float64(time.Now().UnixMicro())/1e6
	doc, err := r.coll.FindOneAndUpdate(ctx, bson.D{{Key: "due_at", Value: bson.D{{Key: "$lte", Value: now}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "due_at", Value: now + 30}, {Key: "lease", Value: bson.D{{Key: "token", Value: token}}}}}},
		options.FindOneAndUpdate().SetSort(bson.D{{Key: "due_at", Value: 1}}).SetProjection(bson.D{{Key: "outbox", Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	entries, _ := doc.Lookup("outbox").Array().Values()
	update := bson.D{{Key: "$pop", Value: bson.D{{Key: "outbox", Value: -1}}}, {Key: "$set", Value: bson.D{{Key: "due_at", Value: now}}}, {Key: "$unset", Value: bson.D{{Key: "lease", Value: ""}}}}
	if len(entries) <= 1 {
		update = bson.D{{Key: "$pop", Value: bson.D{{Key: "outbox", Value: -1}}}, {Key: "$unset", Value: bson.D{{Key: "lease", Value: ""}, {Key: "due_at", Value: ""}}}}
	}
	_, err = r.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: doc.Lookup("_id")}, {Key: "lease.token", Value: token}}, update)
	return err == nil, err
}

// latencyPart is how long after a commit its event reaches a handler: in the same
// process, and in another one that is busy or idle (here another store, whose commits
// do not wake the relay).
func latencyPart() part {
	note := "from Commit's return to the start of the handler; floor: one raw update"
	rows := []row{
		{name: "relay/latency/local", unit: "µs", better: lower, ours: "local", floor: "floor", bar: 2, note: note},
		{name: "relay/latency/remote/busy", unit: "µs", better: lower, ours: "busy", floor: "floor", note: note + "; the relay polls 50 ms after work"},
		{name: "relay/latency/remote/idle", unit: "µs", better: lower, ours: "idle", floor: "floor", note: note + "; the relay has been idle and polls every second"},
	}
	return part{rows: rows, on: topologies, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("latency")
		defer t.drop(db)
		l, err := startLatency(ctx, t, db)
		if err != nil {
			return err
		}
		defer l.stop()
		fl := newFloor(t.raw(db, "floor"), 0)
		if err := fl.insert(ctx, 100); err != nil {
			return err
		}
		base := side{name: "floor", op: func(ctx context.Context, _, i int) error { return fl.plain(ctx, i%100) }}
		quick := measure{workers: 1, ops: b.size(40, 3), chunks: 1, pairs: b.size(15, 1), value: p50,
			sides: []side{{name: "local", timed: l.after(l.store, 5*time.Millisecond)}, base}}
		slow := measure{workers: 1, ops: b.size(3, 1), pairs: b.size(7, 1), value: p50, sides: []side{
			{name: "busy", timed: l.after(l.remote, 0)}, {name: "idle", timed: l.after(l.remote, time.Duration(b.size(1900, 1))*time.Millisecond)}, base,
		}}
		for _, m := range []measure{quick, slow} {
			if of := rowsOf(rows, m); len(of) > 0 {
				if err := b.compare(ctx, t, m, of); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

// rowsOf are the rows that a measure has the side for.
func rowsOf(rows []row, m measure) (of []row) {
	for _, r := range rows {
		for _, s := range m.sides {
			if s.name == r.ours {
				of = append(of, r)
			}
		}
	}
	return of
}

// latency is a relay whose handler tells when it started.
type latency struct {
	store, remote *mongostore.Store
	started       chan time.Time
	stop          func()
}

func startLatency(ctx context.Context, t *target, db string) (*latency, error) {
	l := &latency{started: make(chan time.Time, 1)}
	var err error
	if l.store, err = t.store(ctx, db, mongostore.Config{}); err != nil {
		return nil, err
	}
	if l.remote, err = t.store(ctx, db, mongostore.Config{}); err != nil {
		return nil, err
	}
	h := noop()
	h.Outbox = func(context.Context, mongostore.OutboxEntry) error { l.started <- time.Now(); return nil }
	relay, err := l.store.NewRelay(h, mongostore.RelayConfig{})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	l.stop = func() {
		stop()
		must(<-ended)
	}
	return l, nil
}

// after times one event, after a pause.
func (l *latency) after(s *mongostore.Store, pause time.Duration) func(context.Context, int) (time.Duration, error) {
	emit := mongostore.Changes{Emits: fullChanges().Emits}
	return func(ctx context.Context, _ int) (time.Duration, error) {
		time.Sleep(pause)
		if _, err := s.Commit(ctx, newOrder(newID(), 0), emit); err != nil {
			return 0, err
		}
		committed := time.Now()
		return max((<-l.started).Sub(committed), 0), nil
	}
}

// idlePart counts what a relay sends that has nothing to do.
func idlePart() part {
	r := row{name: "relay/idle", unit: "commands/s", better: lower, ours: "ours", floor: "allowed", bar: 1, note: "a relay at its defaults; floor: 5"}
	return part{rows: []row{r}, on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		db := t.database("idle")
		defer t.drop(db)
		var sent mongotest.Commands
		watched, err := newTarget(t.topology, t.uri, options.Client().SetMonitor(sent.Monitor()))
		if err != nil {
			return err
		}
		defer watched.close()
		store, err := watched.store(ctx, db, mongostore.Config{})
		if err != nil {
			return err
		}
		relay, err := store.NewRelay(noop(), mongostore.RelayConfig{})
		if err != nil {
			return err
		}
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(running) }()
		time.Sleep(time.Duration(b.size(5, 1)) * time.Second)
		sent.Reset()
		span := time.Duration(b.size(20, 1)) * time.Second
		time.Sleep(span)
		n := len(sent.Names())
		stop()
		if err := <-ended; err != nil {
			return err
		}
		one := func(v float64) *samples { return &samples{values: []float64{v}} }
		got := map[string]*samples{"ours": one(float64(n) / span.Seconds()), "allowed": one(5)}
		b.report(rows[0], rows[0].result(t.topology, measure{ops: 1}, got))
		return nil
	}}
}

// claimSide claims ten executions and gives them back, off the clock.
func claimSide(name string, store *mongostore.Store, before func(context.Context) error) side {
	return side{name: name, timed: func(ctx context.Context, _ int) (time.Duration, error) {
		if before != nil {
			if err := before(ctx); err != nil {
				return 0, err
			}
		}
		start := time.Now()
		leases, err := store.Claim(ctx, mongostore.ClaimOptions{Limit: 10})
		took := time.Since(start)
		if err == nil && len(leases) != 10 {
			err = fmt.Errorf("%d leases, not 10", len(leases))
		}
		for _, l := range leases {
			if err := store.Release(ctx, l); err != nil {
				return 0, err
			}
		}
		return took, err
	}}
}

// claimPart is a claim of ten where much is due, and where much that is leased or
// backing off is made due again by commits all the time.
func claimPart() part {
	rows := []row{
		{name: "claim/backlog", unit: "µs", better: lower, ours: "many", floor: "few", bar: 1.3, note: "a claim of 10 where 100,000 are due; floor: where 100 are"},
		{name: "claim/backoff", unit: "µs", better: lower, ours: "busy", floor: "few", bar: 1.5,
			note: "a claim of 10 of 100 that are due, behind 5,000 that are leased and 5,000 that back off, 10 of the leased ones committed to before each claim; floor: without them"},
	}
	return part{rows: rows, on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		stores := map[string]*mongostore.Store{}
		for name, n := range map[string]int{"few": 100, "many": b.size(100_000, 300), "busy": b.size(10_000, 200)} {
			db := t.database("claim_" + name)
			defer t.drop(db)
			store, err := t.store(ctx, db, mongostore.Config{})
			if err != nil {
				return err
			}
			if err := insertOwing(ctx, t, db, store, n, 1); err != nil {
				return err
			}
			stores[name] = store
		}
		disturb, err := makeBusy(ctx, b, stores["busy"])
		if err != nil {
			return err
		}
		m := measure{workers: 1, ops: b.size(20, 2), chunks: b.size(10, 1), pairs: b.size(15, 1), value: p50, sides: []side{
			claimSide("few", stores["few"], nil), claimSide("many", stores["many"], nil), claimSide("busy", stores["busy"], disturb),
		}}
		return b.compare(ctx, t, m, rows)
	}}
}

// makeBusy leases half of what is due for long and lets the other half back off, adds
// 100 that are due, and gives what commits to ten of the leased ones.
func makeBusy(ctx context.Context, b *bench, store *mongostore.Store) (func(context.Context) error, error) {
	var held []*order
	half := b.size(5_000, 100)
	leases, err := store.Claim(ctx, mongostore.ClaimOptions{Limit: 2 * half, LeaseFor: 24 * time.Hour})
	if err != nil {
		return nil, err
	}
	for i, l := range leases {
		if i >= half {
			if err := store.Retry(ctx, l, 24*time.Hour, nil); err != nil {
				return nil, err
			}
			continue
		}
		if len(held) < 1000 {
			o := &order{}
			if err := store.Load(ctx, l.ExecutionID, o); err != nil {
				return nil, err
			}
			held = append(held, o)
		}
	}
	emit := mongostore.Changes{Emits: fullChanges().Emits}
	for range 100 {
		if _, err := store.Commit(ctx, newOrder(newID(), 0), emit); err != nil {
			return nil, err
		}
	}
	next := 0
	return func(ctx context.Context) error {
		for range 10 {
			o := held[next%len(held)]
			next++
			if _, err := store.Commit(ctx, o, emit); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// armedPart is a claim of executions whose timers have fired, among many that are
// armed for later.
func armedPart() part {
	r := row{name: "timers/armed", unit: "µs", better: lower, ours: "many", floor: "few", bar: 1.5,
		note: "a claim of 10 of 100 whose timer has fired, where 1,000,000 are armed; floor: where 1,000 are"}
	return part{rows: []row{r}, on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		m := measure{workers: 1, ops: b.size(20, 2), chunks: b.size(10, 1), pairs: b.size(15, 1), value: p50}
		for _, size := range []struct {
			name string
			n    int
		}{{"few", 1_000}, {"many", b.size(1_000_000, 3_000)}} {
			db := t.database("armed_" + size.name)
			defer t.drop(db)
			store, err := t.store(ctx, db, mongostore.Config{})
			if err != nil {
				return err
			}
			coll := fastCollection(t, db)
			timer := mongostore.Changes{Timers: []mongostore.TimerOp{{Path: timerPath, FireAt: fireAt}}}
			mould, err := mouldOf(ctx, coll, store, newOrder(newID(), 0), timer)
			if err != nil {
				return err
			}
			err = insertAll(ctx, coll, size.n, func(k int) (bson.Raw, error) {
				at := float64(fireAt.Unix()) + float64(k)
				if k%(size.n/100) == 0 {
					at = float64(past.Unix() + int64(k))
				}
				return mould.pourAt(idOf(k), at), nil
			})
			if err != nil {
				return err
			}
			m.sides = append(m.sides, claimSide(size.name, store, nil))
		}
		return b.compare(ctx, t, m, rows)
	}}
}
