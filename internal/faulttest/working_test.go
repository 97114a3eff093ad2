//go:build faults

package faulttest_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

// crowd says which workloads run on one server, and who works.
type crowd struct {
	fault, topology string
	seed            uint64
	committers      int // that commit executions
	others          int // of each other kind: who emit, relay, publish and consume
	transactions    bool
	sound           *mongo.Client                                // for the checks
	client          func(store string, worker int) *mongo.Client // of a worker
}

// among shares workers out among clients.
func among(clients ...*mongo.Client) func(string, int) *mongo.Client {
	return func(_ string, worker int) *mongo.Client { return clients[worker%len(clients)] }
}

// working are the workloads, each with a row and a database that has the name of its store.
type working struct {
	rows     []*row
	stop     func()
	failed   func() int64 // commits that were not acknowledged at once
	workers  sync.WaitGroup
	finishes []func(t *testing.T)
}

// start lets all workloads begin.
func (c crowd) start(t *testing.T) *working {
	t.Helper()
	w := &working{}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	t.Cleanup(func() { // also after a failure: they tell of theirs by t
		stop()
		w.workers.Wait()
	})
	c.commit(ctx, t, w)
	c.relay(ctx, t, w)
	if c.transactions {
		c.publish(ctx, t, w)
	}
	return w
}

func (c crowd) row(w *working) *row {
	r := &row{Fault: c.fault, Topology: c.topology}
	w.rows = append(w.rows, r)
	return r
}

func (c crowd) random(stream int) *rand.Rand { return rand.New(rand.NewPCG(c.seed, uint64(stream))) }

func (c crowd) commit(ctx context.Context, t *testing.T, w *working) {
	t.Helper()
	r := c.row(w)
	work := newCommits(64, r)
	w.failed = func() int64 { return work.fails.Load() + atomic.LoadInt64(&r.Unknown) }
	require.NoError(t, executionsOn(t, c.sound, r.Store).Setup(t.Context()))
	for i := range c.committers {
		s := executionsOn(t, c.client(r.Store, i), r.Store)
		w.workers.Go(func() { work.work(ctx, t, s, i, c.random(i)) })
	}
	w.finishes = append(w.finishes, func(t *testing.T) { work.check(t, c.sound.Database(r.Store)) })
}

func (c crowd) relay(ctx context.Context, t *testing.T, w *working) {
	t.Helper()
	r := c.row(w)
	work := newRelayed(16, r)
	sound := executionsOn(t, c.sound, r.Store)
	require.NoError(t, sound.Setup(t.Context()))
	for i := range c.others {
		s := executionsOn(t, c.client(r.Store, i), r.Store)
		w.workers.Go(func() { work.emits.work(ctx, t, s, i, c.random(100+i)) })
		if i < (c.others+1)/2 {
			w.workers.Go(func() { work.relay(ctx, t, s) })
		} else {
			w.workers.Go(func() { work.hold(ctx, s, c.random(200+i)) })
		}
	}
	w.finishes = append(w.finishes, func(t *testing.T) { work.check(t, sound, c.sound.Database(r.Store)) })
}

func (c crowd) publish(ctx context.Context, t *testing.T, w *working) {
	t.Helper()
	r := c.row(w)
	work := newEvents(20, r)
	sound, db := eventsOn(t, c.sound, r.Store), c.sound.Database(r.Store)
	require.NoError(t, sound.Setup(t.Context()))
	require.NoError(t, db.CreateCollection(t.Context(), "orders"))
	for i := range c.others {
		client := c.client(r.Store, i)
		s := eventsOn(t, client, r.Store)
		w.workers.Go(func() { work.publish(ctx, t, s, client.Database(r.Store).Collection("orders"), i, c.random(300+i)) })
		w.workers.Go(func() { work.consume(ctx, t, s, c.random(400+i)) })
	}
	w.finishes = append(w.finishes, func(t *testing.T) { work.check(t, sound, db) })
}

func executionsOn(t *testing.T, client *mongo.Client, database string) *mongostore.Store {
	t.Helper()
	s, err := mongostore.New(client, mongostore.Config{Database: database})
	require.NoError(t, err)
	return s
}

func eventsOn(t *testing.T, client *mongo.Client, database string) *outbox.Store {
	t.Helper()
	s, err := outbox.New(client, outbox.Config{Database: database})
	require.NoError(t, err)
	return s
}

// struck counts faults that all workloads have felt.
func (w *working) struck(times int64) {
	for _, r := range w.rows {
		r.Injected += times
	}
}

// finish ends all workloads, checks them and enters their rows.
func (w *working) finish(t *testing.T) {
	t.Helper()
	w.stop()
	w.workers.Wait()
	for i, check := range w.finishes {
		check(t)
		enter(t, w.rows[i])
	}
}

var (
	impatientSelection = options.Client().SetServerSelectionTimeout(2 * time.Second)
	patientSelection   = options.Client().SetServerSelectionTimeout(30 * time.Second)
)

// aWhile is work before the next fault.
func aWhile(rnd *rand.Rand) { time.Sleep(time.Duration(500+rnd.IntN(1000)) * time.Millisecond) }
