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
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// holdTime is how long leases of this test last.
const holdTime = 400 * time.Millisecond

// TestHistoriesOfLeases lets holders be slow, so that they lose their leases, while
// replies are lost, and holds what they were told to the rules of leases.
func TestHistoriesOfLeases(t *testing.T) {
	t.Parallel()
	from := seed(t)
	cluster := mongotest.Start(t, mongotest.Options{})
	r := &row{Fault: "slow holders, replies and requests lost, cut, late, twice", Topology: "standalone", Store: "relay"}
	l := &leaseHistory{events: map[string][]int64{}, row: r}
	cfg := mongostore.Config{Database: "leases"}
	sound, err := mongostore.New(cluster.Client(), cfg)
	require.NoError(t, err)
	require.NoError(t, sound.Setup(t.Context()))
	clients, proxies := lossyClients(t, cluster, from, 3, options.Client().SetRetryWrites(false))
	ctx, cancel := context.WithTimeout(t.Context(), duration(t))
	defer cancel()
	var workers sync.WaitGroup
	for i, client := range clients {
		store, err := mongostore.New(client, cfg)
		require.NoError(t, err)
		proxies[i].start(badWeather)
		for n := range 3 {
			n += 3 * i
			workers.Go(func() { l.hold(ctx, store, rand.New(rand.NewPCG(from, uint64(n)))) })
		}
		workers.Go(func() { l.emit(ctx, t, store, i, rand.New(rand.NewPCG(from, uint64(50+i)))) })
	}
	workers.Wait()
	for _, p := range proxies {
		p.stop()
		r.Injected += struck(p.proxy)
	}
	left, err := l.drain(t.Context(), sound, cluster)
	require.NoError(t, err)
	if left > 0 {
		r.Lost += left
		t.Logf("%d executions owe something that no claim finds", left)
	}
	for i, v := range l.violations() {
		if i < 5 {
			t.Log(v)
		}
	}
	t.Logf("%d leases", len(l.holds))
	enter(t, r)
}

// hold claims, is slow, and ends what it holds in one way or another.
func (l *leaseHistory) hold(ctx context.Context, store *mongostore.Store, rnd *rand.Rand) {
	for ctx.Err() == nil {
		leases := l.claim(ctx, store, 1+rnd.IntN(5))
		if len(leases) == 0 {
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
		}
		for _, h := range leases {
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
			if rnd.IntN(8) == 0 {
				time.Sleep(holdTime) // too slow
			}
			if rnd.IntN(4) == 0 {
				l.extend(ctx, store, h)
			}
			l.end(ctx, store, h, rnd.IntN(10))
		}
	}
}

func (l *leaseHistory) claim(ctx context.Context, store *mongostore.Store, limit int) []*hold {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	claimed := time.Now()
	leases, _ := store.Claim(ctx, mongostore.ClaimOptions{Limit: limit, LeaseFor: holdTime}) // after an error they run out
	return l.claims(claimed, leases)
}

func (l *leaseHistory) extend(ctx context.Context, store *mongostore.Store, h *hold) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := store.Extend(ctx, h.Lease, holdTime); err == nil {
		l.change(func() { h.until = append(h.until, promise{time.Now(), h.Until}) })
	}
}

func (l *leaseHistory) end(ctx context.Context, store *mongostore.Store, h *hold, way int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	l.change(func() { h.ending = time.Now() })
	var err error
	switch way {
	case 0:
		return // died, as it were
	case 1:
		err = store.Release(ctx, h.Lease)
	case 2:
		err = store.Retry(ctx, h.Lease, 20*time.Millisecond, nil)
	default:
		err = store.Complete(ctx, h.Lease)
	}
	l.change(func() {
		if h.ended = time.Now(); way > 2 && err == nil {
			h.completed = true
			l.row.Acknowledged++
		}
	})
}

// leasedExecutions is how many owe something, one emitter each.
const leasedExecutions = 3

// emit commits events to executions of its own, each until its outcome is known.
func (l *leaseHistory) emit(ctx context.Context, t *testing.T, store *mongostore.Store, emitter int, rnd *rand.Rand) {
	for n := 0; ctx.Err() == nil && !t.Failed(); n++ {
		x := &counter{Header: mongostore.Header{ID: fmt.Sprintf("l-%d-%d", emitter, rnd.IntN(leasedExecutions)), Status: "RUNNING"}}
		if err := store.Load(ctx, x.ID, x); err != nil && !errors.Is(err, mongostore.ErrNotFound) {
			continue
		}
		ch := mongostore.Changes{}
		for range 1 + rnd.IntN(3) {
			ch.Emits = append(ch.Emits, mongostore.Emit{Event: n})
		}
		unknown := false
		for {
			one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			res, err := store.Commit(one, x, ch)
			cancel()
			if err == nil {
				l.emitted(x.ID, res.OutboxSeqs)
			}
			if !errors.Is(err, mongostore.ErrUnknownOutcome) {
				if unknown {
					atomic.AddInt64(&l.row.Resolved, 1)
				}
				break
			}
			if !unknown {
				atomic.AddInt64(&l.row.Unknown, 1)
			}
			unknown = true
		}
		time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond)
	}
}

// drain completes what is left, leases that died included, and gives how many
// executions still owe something when nothing comes any more.
func (l *leaseHistory) drain(ctx context.Context, store *mongostore.Store, cluster *mongotest.Cluster) (left int64, err error) {
	executions := cluster.Client().Database("leases").Collection("executions")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for quiet := time.Now(); ; {
		left, err = executions.CountDocuments(ctx, bson.D{{Key: "outbox.0", Value: bson.D{{Key: "$exists", Value: true}}}})
		if err != nil || left == 0 || time.Since(quiet) > 10*holdTime {
			return left, err
		}
		for _, h := range l.claim(ctx, store, 100) {
			quiet = time.Now()
			l.end(ctx, store, h, 3)
		}
	}
}
