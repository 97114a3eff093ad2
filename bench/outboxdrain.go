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

	"github.com/execstore/mongostore/outbox"
)

const (
	drainDeliveries = 50_000
	drainKeys       = 1_000
	drainRaw        = 600 // that the raw loop works in a pair
	drainPairs      = 4
)

// outboxDrainPart is Claim and Complete in a loop, against a loop that claims and
// completes one at a time. A pair is a fifth of the population, so that the sides
// alternate; the raw loop has one population for all rows and works a part of it.
func outboxDrainPart() part {
	var rows []row
	for _, n := range []int{10, 50} {
		for _, w := range []int{2, 8} {
			r := row{name: fmt.Sprintf("outbox/drain/n=%d/w=%d", n, w), unit: "deliveries/s", better: higher, ours: "ours", floor: "raw loop",
				barOn: map[string]float64{replicaset: map[int]float64{10: 2.5, 50: 5}[n]},
				note: fmt.Sprintf("50,000 deliveries over 1,000 keys, claims of %d, %d goroutines, nothing is done with them; a pair is a fifth of them; floor: findOneAndUpdate and updateOne for each delivery on the same documents and indexes, without the order of keys, %d of them in a pair",
					n, w, drainRaw)}
			rows = append(rows, r)
		}
	}
	return part{rows: rows, on: []string{replicaset}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		raw, err := openOutbox(ctx, t, "drain_raw")
		if err != nil {
			return err
		}
		defer raw.drop()
		total, keys, part := b.size(drainDeliveries, 500), b.size(drainKeys, 20), b.size(drainRaw, 20)
		if err := raw.layDrain(ctx, total, total); err != nil { // all of them free
			return err
		}
		for _, r := range rows {
			if err := drainRow(ctx, b, t, raw, r, total, keys, part); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
		return nil
	}}
}

func drainRow(ctx context.Context, b *bench, t *target, raw *outboxDB, r row, total, keys, part int) error {
	var n, w int
	if _, err := fmt.Sscanf(strings.ReplaceAll(r.name, "/", " "), "outbox drain n=%d w=%d", &n, &w); err != nil {
		return err
	}
	o, err := openOutbox(ctx, t, "drain")
	if err != nil {
		return err
	}
	defer o.drop()
	if err := o.layDrain(ctx, total, keys); err != nil {
		return err
	}
	pairs := b.size(drainPairs, 1)
	var worked atomic.Int64
	want := int64(0)
	m := measure{workers: 1, ops: 1, pairs: pairs, sides: []side{
		rateSide("ours", func(ctx context.Context) (int, error) {
			want += int64(total / (pairs + warmUps))
			return together(w, func() (int, error) { return o.claimAndComplete(ctx, n, &worked, want) })
		}),
		rateSide("raw loop", func(ctx context.Context) (int, error) {
			var left atomic.Int64
			left.Store(int64(part))
			return together(w, func() (int, error) { return raw.oneByOne(ctx, &left) })
		}),
	}}
	return b.compare(ctx, t, m, []row{r})
}

// layDrain makes deliveries over keys in turn: the first of each key is pending.
func (o *outboxDB) layDrain(ctx context.Context, n, keys int) error {
	return o.lay(ctx, n, true, func(k int) laid {
		l := laid{id: publishedID(k), handler: outboxHandler, key: fmt.Sprintf("key-%d", k%keys), number: int64(k/keys + 1), status: "waiting",
			at: outboxPast.Add(time.Duration(k) * time.Millisecond)}
		if k < keys {
			l.status = "pending"
		}
		return l
	})
}

// rateSide is a side that tells how many it worked.
func rateSide(name string, work func(ctx context.Context) (int, error)) side {
	var rate float64
	return side{name: name, gauge: func() float64 { return rate }, timed: func(ctx context.Context, _ int) (time.Duration, error) {
		start := time.Now()
		n, err := work(ctx)
		took := time.Since(start)
		rate = float64(n) / took.Seconds()
		return took, err
	}}
}

// together runs w goroutines and adds up what they did.
func together(w int, work func() (int, error)) (int, error) {
	counts, errs := make([]int, w), make([]error, w)
	var wg sync.WaitGroup
	for i := range w {
		wg.Go(func() { counts[i], errs[i] = work() })
	}
	wg.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum, errors.Join(errs...)
}

// claimAndComplete works until all goroutines together have worked as many as wanted.
func (o *outboxDB) claimAndComplete(ctx context.Context, n int, worked *atomic.Int64, want int64) (count int, err error) {
	opts := outbox.ClaimOptions{Handlers: []string{outboxHandler}, Limit: n}
	for worked.Load() < want {
		ds, err := o.store.Claim(ctx, opts)
		if err != nil {
			return count, err
		}
		if err := o.store.Complete(ctx, ds...); err != nil {
			return count, err
		}
		worked.Add(int64(len(ds)))
		count += len(ds)
	}
	return count, nil
}

// oneByOne is what one writes without a store: claim what is longest due, and complete it.
func (o *outboxDB) oneByOne(ctx context.Context, left *atomic.Int64) (count int, err error) {
	coll := o.t.raw(o.name, "outbox_deliveries")
	for left.Add(-1) >= 0 {
		token, now := newID(), time.Now()
		doc, err := coll.FindOneAndUpdate(ctx, bson.D{{Key: "handler", Value: outboxHandler}, {Key: "due_at", Value: bson.D{{Key: "$lte", Value: now}}}},
			bson.D{
				{Key: "$set", Value: bson.D{{Key: "status", Value: "processing"}, {Key: "token", Value: token}, {Key: "due_at", Value: now.Add(30 * time.Second)}}},
				{Key: "$inc", Value: bson.D{{Key: "attempts", Value: int64(1)}}},
			},
			options.FindOneAndUpdate().SetSort(bson.D{{Key: "due_at", Value: 1}, {Key: "_id", Value: 1}}).SetProjection(bson.D{{Key: "event_id", Value: 1}})).Raw()
		if errors.Is(err, mongo.ErrNoDocuments) {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		_, err = coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: doc.Lookup("_id")}, {Key: "status", Value: "processing"}, {Key: "token", Value: token}},
			bson.D{
				{Key: "$set", Value: bson.D{{Key: "status", Value: "completed"}, {Key: "finished_at", Value: time.Now()}}},
				{Key: "$unset", Value: bson.D{{Key: "due_at", Value: ""}, {Key: "active_lane", Value: ""}}},
			})
		if err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}
