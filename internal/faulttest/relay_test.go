//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
)

// relayed is a workload: executions emit events, relays and holders of leases deliver
// them. Every second entry has an effect on its execution, in a commit that acks it; the
// others are acked by a completion. Everybody remembers what they were told.
type relayed struct {
	emits *commits
	row   *row

	mu      sync.Mutex
	first   map[string][]int64    // numbers by execution, in the order of first deliveries
	seen    map[entryID]bool      // delivered before
	ops     map[string]bool       // operations whose event was delivered
	acked   map[entryID]time.Time // when the end of an entry was acknowledged
	ended   int64                 // acknowledged completions and effects
	unknown int64                 // effects whose outcome was not known
}

type entryID struct {
	execution string
	seq       int64
}

func newRelayed(slots int, r *row) *relayed {
	emits := newCommits(slots, r)
	r.Store = "relay"
	return &relayed{emits: emits, row: r, first: map[string][]int64{}, seen: map[entryID]bool{}, ops: map[string]bool{}, acked: map[entryID]time.Time{}}
}

// relay runs one relay until ctx ends.
func (r *relayed) relay(ctx context.Context, t *testing.T, store *mongostore.Store) {
	t.Helper()
	relay, err := r.newRelay(store)
	if err == nil {
		err = relay.Run(ctx)
	}
	if err != nil {
		t.Errorf("relay: %v", err)
	}
}

func (r *relayed) newRelay(store *mongostore.Store) (*mongostore.Relay, error) {
	return store.NewRelay(mongostore.Handlers{
		Outbox: func(ctx context.Context, e mongostore.OutboxEntry) error { return r.deliver(ctx, store, e) },
		Spawn:  func(context.Context, mongostore.SpawnEntry) error { return nil },
		Timer:  func(context.Context, mongostore.Timer) error { return errors.New("no timer is due") },
	}, mongostore.RelayConfig{MaxAttempts: -1, LeaseFor: leaseTime, PollEvery: 100 * time.Millisecond})
}

// deliver notes that an event has come, and has its effect.
func (r *relayed) deliver(ctx context.Context, store *mongostore.Store, e mongostore.OutboxEntry) error {
	var event struct{ Op string }
	if err := bson.UnmarshalExtJSON(e.Event, false, &event); err != nil {
		return err
	}
	id := entryID{e.ExecutionID, e.Seq}
	r.mu.Lock()
	if !r.seen[id] {
		r.seen[id], r.ops[event.Op] = true, true
		r.first[e.ExecutionID] = append(r.first[e.ExecutionID], e.Seq)
	}
	r.mu.Unlock()
	if !hasEffect(e.Seq) {
		return nil
	}
	x := &counter{}
	_, err := store.Update(ctx, e.ExecutionID, x, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
		x.Handled++
		ch.Acks = []mongostore.Entry{e}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.acknowledge(id)
	case errors.Is(err, mongostore.ErrUnknownOutcome):
		r.unknown++ // it comes again, or it is gone
	}
	return err
}

func hasEffect(seq int64) bool { return seq%2 == 0 }

func (r *relayed) acknowledge(id entryID) {
	r.ended++
	if r.acked[id].IsZero() {
		r.acked[id] = time.Now()
	}
}

// hold claims, delivers and completes by hand until ctx ends.
func (r *relayed) hold(ctx context.Context, store *mongostore.Store, rnd *rand.Rand) {
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		claimed := time.Now()
		leases, _ := store.Claim(one, mongostore.ClaimOptions{Limit: 1 + rnd.IntN(4), LeaseFor: leaseTime}) // after an error they run out
		cancel()
		for _, l := range leases {
			r.held(claimed, l)
			r.work(ctx, store, l)
		}
		if len(leases) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// held sees that nothing comes again whose end was acknowledged before the claim began.
func (r *relayed) held(claimed time.Time, l *mongostore.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range l.Outbox {
		if at := r.acked[entryID{l.ExecutionID, e.Seq}]; !at.IsZero() && at.Before(claimed) {
			r.row.Lost++
		}
	}
}

// work delivers what a lease carries while it can be trusted.
func (r *relayed) work(ctx context.Context, store *mongostore.Store, l *mongostore.Lease) {
	trusted := l.Until.Add(-leaseTime / 2)
	one, cancel := context.WithDeadline(context.WithoutCancel(ctx), trusted)
	defer cancel()
	for _, e := range l.Outbox {
		if one.Err() != nil || r.deliver(one, store, e) != nil {
			_ = store.Release(context.WithoutCancel(ctx), l) // else it runs out
			return
		}
	}
	if store.Complete(one, l) != nil {
		return // it runs out
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range l.Outbox {
		r.acknowledge(entryID{l.ExecutionID, e.Seq})
	}
}

// check delivers what is left, and compares what was told with what is stored.
func (r *relayed) check(t *testing.T, store *mongostore.Store, db *mongo.Database) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.drain(ctx, t, store, db)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.row.Acknowledged += r.ended
	r.row.Unknown += r.unknown
	r.row.Resolved += r.unknown // each entry is gone, and the effects are counted
	for op := range r.emits.told {
		if !r.ops[op] {
			r.row.Lost++
		}
		delete(r.ops, op)
	}
	for op := range r.ops {
		t.Logf("%s was delivered, and nobody was told", op)
		r.row.Wrong++
	}
	effects := map[string]int64{}
	for id, seqs := range r.first {
		for i, seq := range seqs {
			if hasEffect(seq) {
				effects[id]++
			}
			if i > 0 && seqs[i-1] >= seq {
				r.row.Reordered++
			}
		}
	}
	cur, err := db.Collection("executions").Find(ctx, bson.D{})
	require.NoError(t, err)
	for cur.Next(ctx) {
		id := cur.Current.Lookup("_id").StringValue()
		var x counter
		require.NoError(t, bson.UnmarshalExtJSON([]byte(cur.Current.Lookup("data").StringValue()), false, &x))
		r.row.Lost += max(effects[id]-x.Handled, 0)
		r.row.Doubled += max(x.Handled-effects[id], 0)
		require.Empty(t, cur.Current.Lookup("dead"), "%s: no entry is given up", id)
	}
	require.NoError(t, cur.Err())
	t.Logf("%d entries, %d ends acknowledged, %d calls failed and were repeated", len(r.seen), r.ended, r.emits.fails.Load())
}

// drain delivers until nothing is owed, leases that died included.
func (r *relayed) drain(ctx context.Context, t *testing.T, store *mongostore.Store, db *mongo.Database) {
	t.Helper()
	relay, err := r.newRelay(store)
	require.NoError(t, err)
	some := bson.D{{Key: "$exists", Value: true}}
	owed := bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "outbox.0", Value: some}}, bson.D{{Key: "spawns.0", Value: some}}}}}
	for {
		left, err := db.Collection("executions").CountDocuments(ctx, owed)
		if err == nil && left == 0 {
			return
		}
		require.NoError(t, ctx.Err(), "%d executions owe something", left)
		if _, err := relay.Drain(ctx); err != nil {
			t.Log(fmt.Errorf("drain: %w", err))
		}
		time.Sleep(50 * time.Millisecond)
	}
}
