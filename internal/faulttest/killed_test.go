//go:build faults

package faulttest_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

const leastKills = 20

// TestAStandaloneIsKilled kills the server under 32 committing goroutines, and starts it
// again on its data.
func TestAStandaloneIsKilled(t *testing.T) {
	t.Parallel()
	cluster := mongotest.Start(t, mongotest.Options{})
	r := &row{Fault: "SIGKILL of the server", Topology: "standalone"}
	work := newCommits(64, r)
	client := cluster.Client(options.Client().SetServerSelectionTimeout(2 * time.Second))
	store, err := mongostore.New(client, mongostore.Config{Database: "faults"})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	from := seed(t)
	var workers sync.WaitGroup
	for w := range 32 {
		workers.Go(func() { work.work(ctx, t, store, w, rand.New(rand.NewPCG(from, uint64(w)))) })
	}
	rnd := rand.New(rand.NewPCG(from, 1000))
	began := time.Now()
	for n := 0; n < leastKills || time.Since(began) < duration(t); n++ {
		work := time.Duration(100+rnd.IntN(300)) * time.Millisecond // before the next fault
		if n >= leastKills && n%2 == 0 {
			work *= 20 // a killed server has little to lose so soon
		}
		time.Sleep(work)
		cluster.Node(0).Kill()
		r.Injected++
		cluster.Node(0).Restart()
	}
	time.Sleep(300 * time.Millisecond)
	stop()
	workers.Wait()
	work.check(t, client.Database("faults"))
	enter(t, r)
}
