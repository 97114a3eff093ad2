//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

// events is a workload of the outbox: publishers write a document of their own and an
// event in one transaction, workers claim and complete. Everybody remembers what they
// were told.
type events struct {
	keys int

	mu        sync.Mutex
	published map[string]bool            // acknowledged event ids
	delivered map[string][]deliveredOnce // by lane, in the order of first claims
	seen      map[string]bool            // delivery ids that were claimed before
	completed map[string]int             // acknowledged completions, by delivery id
	row       *row
	fails     atomic.Int64
}

type deliveredOnce struct {
	id       string
	sequence int64
}

var eventHandlers = []string{"mailer", "ledger"}

func newEvents(keys int, r *row) *events {
	r.Store = "outbox"
	return &events{
		keys: keys, row: r, published: map[string]bool{}, delivered: map[string][]deliveredOnce{},
		seen: map[string]bool{}, completed: map[string]int{},
	}
}

// publish appends until ctx ends. An event whose transaction has an unknown outcome is
// published again under its id: that stores it once.
func (e *events) publish(ctx context.Context, t *testing.T, store *outbox.Store, orders *mongo.Collection, worker int, rnd *rand.Rand) {
	for n := 0; ctx.Err() == nil && !t.Failed(); n++ {
		id, key := fmt.Sprintf("e-%d-%d", worker, n), fmt.Sprintf("k-%d", rnd.IntN(e.keys))
		if err := e.publishOne(store, orders, id, key); err != nil {
			t.Errorf("publish %s: %v", id, err)
		}
	}
}

func (e *events) publishOne(store *outbox.Store, orders *mongo.Collection, id, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	unknown := false
	for {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := store.Transaction(one, func(ctx context.Context) error {
			if err := store.Append(ctx, outbox.Message{ID: id, Type: "t", Key: key, Payload: id, Handlers: eventHandlers}); err != nil {
				return err
			}
			_, err := orders.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "key", Value: key}}}}, upsert)
			return err
		})
		cancel()
		switch {
		case err == nil:
			e.mu.Lock()
			defer e.mu.Unlock()
			e.published[id] = true
			e.row.Acknowledged++
			if unknown {
				e.row.Resolved++
			}
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("no answer in %s: %w", patience, err)
		case errors.Is(err, mongostore.ErrUnknownOutcome) && !unknown:
			unknown = true
			atomic.AddInt64(&e.row.Unknown, 1)
		default:
			e.fails.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// consume claims and completes until ctx ends, or nothing comes any more after drained
// is closed.
func (e *events) consume(ctx context.Context, t *testing.T, store *outbox.Store, rnd *rand.Rand) {
	for ctx.Err() == nil && !t.Failed() {
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		ds, err := store.Claim(one, outbox.ClaimOptions{Handlers: eventHandlers, Limit: 1 + rnd.IntN(20), LeaseFor: leaseTime})
		cancel()
		if err != nil {
			e.fails.Add(1)
		}
		if len(ds) == 0 {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		e.claimed(ds)
		e.complete(ctx, store, ds)
	}
}

const leaseTime = 3 * time.Second

func (e *events) claimed(ds []*outbox.Delivery) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range ds {
		if e.seen[d.ID] {
			continue
		}
		e.seen[d.ID] = true
		lane := d.Handler + ":" + d.Message.Key
		e.delivered[lane] = append(e.delivered[lane], deliveredOnce{d.ID, d.Sequence})
	}
}

func (e *events) complete(ctx context.Context, store *outbox.Store, ds []*outbox.Delivery) {
	one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := store.Complete(one, ds...)
	var lost *mongostore.LeaseLostError
	switch {
	case errors.As(err, &lost):
	case err != nil:
		e.fails.Add(1)
		return // they come again, when their leases end
	}
	gone := map[string]bool{}
	if lost != nil {
		for _, id := range lost.IDs {
			gone[id] = true
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range ds {
		if !gone[d.ID] {
			e.completed[d.ID]++
			e.row.Acknowledged++
		}
	}
}

// check drains what is left, and compares what was told with what is stored.
func (e *events) check(t *testing.T, store *outbox.Store, db *mongo.Database) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e.drain(ctx, t, store)
	e.mu.Lock()
	defer e.mu.Unlock()
	status := map[string]string{}
	cur, err := db.Collection("outbox_deliveries").Find(ctx, bson.D{})
	require.NoError(t, err)
	for cur.Next(ctx) {
		var doc struct {
			ID     string `bson:"_id"`
			Status string
		}
		require.NoError(t, cur.Decode(&doc))
		status[doc.ID] = doc.Status
	}
	require.NoError(t, cur.Err())
	orders := idsIn(ctx, t, db.Collection("orders"))
	stored := idsIn(ctx, t, db.Collection("outbox_events"))
	for id := range e.published {
		if !stored[id] || !orders[id] {
			e.row.Lost++
		}
		for _, h := range eventHandlers {
			if status[h+":"+id] != "completed" {
				e.row.Lost++
			}
		}
	}
	for id := range stored {
		if !e.published[id] || !orders[id] {
			e.row.Wrong++ // half a transaction, or one that was told to have failed for good
		}
	}
	require.Len(t, status, len(stored)*len(eventHandlers), "each event has a delivery a handler")
	for id, n := range e.completed {
		if status[id] != "completed" {
			e.row.Lost++
		}
		if n > 1 {
			e.row.Doubled++
		}
	}
	for _, lane := range e.delivered {
		for i := 1; i < len(lane); i++ {
			if lane[i].sequence <= lane[i-1].sequence {
				e.row.Reordered++
			}
		}
	}
	t.Logf("%d calls failed and were repeated", e.fails.Load())
}

// drain completes what is left, leases that died included.
func (e *events) drain(ctx context.Context, t *testing.T, store *outbox.Store) {
	t.Helper()
	for {
		s, err := store.Stats(ctx)
		if err == nil && s.Pending+s.Waiting+s.Processing == 0 {
			return
		}
		require.NoError(t, ctx.Err(), "deliveries are left: %+v", s)
		ds, err := store.Claim(ctx, outbox.ClaimOptions{Handlers: eventHandlers, Limit: 100, LeaseFor: leaseTime})
		if err != nil || len(ds) == 0 {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		e.claimed(ds)
		e.complete(ctx, store, ds)
	}
}

func idsIn(ctx context.Context, t *testing.T, coll *mongo.Collection) map[string]bool {
	t.Helper()
	cur, err := coll.Find(ctx, bson.D{})
	require.NoError(t, err)
	ids := map[string]bool{}
	for cur.Next(ctx) {
		id, _ := cur.Current.Lookup("_id").StringValueOK()
		ids[id] = true
	}
	require.NoError(t, cur.Err())
	return ids
}
