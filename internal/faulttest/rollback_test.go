//go:build faults

package faulttest_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestTheLastWritesAreRolledBack kills a primary whose last writes have reached no other
// member: the set goes on without them. None of them may have been acknowledged, and
// each has to be told to be unknown until the next primary has it.
func TestTheLastWritesAreRolledBack(t *testing.T) {
	t.Parallel()
	from := seed(t)
	cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true, Nodes: 3})
	r := &row{Fault: "writes that no other member has, then SIGKILL of the primary", Topology: setOfThree}
	work := newCommits(16, r)
	client := cluster.Client(options.Client().SetServerSelectionTimeout(2 * time.Second))
	store, err := mongostore.New(client, mongostore.Config{Database: "rollback"})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	for w := range 16 {
		workers.Go(func() { work.work(ctx, t, store, w, rand.New(rand.NewPCG(from, uint64(w)))) })
	}
	for range times(t, 1) {
		time.Sleep(500 * time.Millisecond) // of work, before the next fault
		primary := cluster.Primary()
		others := []*mongotest.Node{}
		for _, n := range cluster.Nodes() {
			if n != primary {
				others = append(others, n)
			}
		}
		replicate(t, others, false)
		time.Sleep(time.Second) // of writes that stay where they are
		primary.Kill()
		r.Injected++
		replicate(t, others, true)
		cluster.Primary()
		time.Sleep(500 * time.Millisecond) // of work without it
		primary.Restart()
	}
	time.Sleep(500 * time.Millisecond)
	stop()
	workers.Wait()
	work.check(t, cluster.Client().Database("rollback"))
	enter(t, r)
}

// replicate says whether nodes take what the primary writes.
func replicate(t *testing.T, nodes []*mongotest.Node, on bool) {
	t.Helper()
	mode := "alwaysOn"
	if on {
		mode = "off"
	}
	for _, n := range nodes {
		point := bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}}
		require.NoError(t, n.Client().Database("admin").RunCommand(t.Context(), point).Err())
	}
}
