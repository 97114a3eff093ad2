//go:build faults

package faulttest_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// A history is recorded while the fault strikes, by clients that share executions, and
// checked afterwards: there must be one order of all operations, each between its call
// and its return, in which a simple register gives the same answers.

const historyDatabase = "history"

// untilStopped is longer than any test.
const untilStopped = 24 * time.Hour

// impatient settles for an unknown outcome soon, so that there are some.
var impatient = mongostore.Config{Database: historyDatabase, OutcomeTimeout: 100 * time.Millisecond}

// recording is a history that is being made.
type recording struct {
	*registers
	sound *mongostore.Store // behind nothing
	db    *mongo.Database
	stop  func() // ends the clients, and waits for them
}

// record starts clients of a history, five for each mongo client.
func record(t *testing.T, client *mongo.Client, from uint64, r *row, length time.Duration, through ...*mongo.Client) *recording {
	t.Helper()
	const each, shared = 5, 3
	sound, err := mongostore.New(client, mongostore.Config{Database: historyDatabase})
	require.NoError(t, err)
	require.NoError(t, sound.Setup(t.Context()))
	rec := &recording{registers: newRegisters(shared, each*len(through), r), sound: sound, db: client.Database(historyDatabase)}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	var clients sync.WaitGroup
	for i, client := range through {
		store, err := mongostore.New(client, impatient)
		require.NoError(t, err)
		for n := range each {
			n += each * i
			clients.Go(func() { rec.client(ctx, t, store, n, rand.New(rand.NewPCG(from, uint64(n)))) })
		}
	}
	rec.stop = func() { cancel(); clients.Wait() }
	t.Cleanup(rec.stop)
	return rec
}

// TestHistoriesWithLostReplies loses replies and requests, and lets requests arrive late.
func TestHistoriesWithLostReplies(t *testing.T) {
	t.Parallel()
	from := seed(t)
	for _, topology := range topologies {
		t.Run(topology.name, func(t *testing.T) {
			t.Parallel()
			cluster := mongotest.Start(t, topology.opts)
			r := &row{Fault: "replies and requests lost, cut, late, twice; histories", Topology: topology.name}
			clients, proxies := lossyClients(t, cluster, from, 3, options.Client().SetRetryWrites(false))
			for _, l := range proxies {
				l.start(worseWeather)
			}
			rec := record(t, cluster.Client(), from, r, duration(t), clients...)
			<-time.After(duration(t))
			rec.stop()
			for _, l := range proxies {
				l.stop()
				r.Injected += struck(l.proxy)
			}
			rec.check(t, rec.sound, rec.db)
			enter(t, r)
		})
	}
}

// TestHistoriesOfAStandaloneThatIsKilled kills the server under the clients.
func TestHistoriesOfAStandaloneThatIsKilled(t *testing.T) {
	t.Parallel()
	from := seed(t)
	cluster := mongotest.Start(t, mongotest.Options{})
	r := &row{Fault: "SIGKILL of the server; histories", Topology: "standalone"}
	rec := record(t, cluster.Client(), from, r, untilStopped, impatientClients(cluster, 3)...)
	rnd := rand.New(rand.NewPCG(from, 1000))
	for range times(t, 8) {
		time.Sleep(time.Duration(200+rnd.IntN(400)) * time.Millisecond) // of work, before the next fault
		rec.killing(cluster.Node(0).Kill)
		r.Injected++
		cluster.Node(0).Restart()
	}
	time.Sleep(300 * time.Millisecond)
	rec.stop()
	rec.check(t, rec.sound, rec.db)
	enter(t, r)
}

func impatientClients(cluster *mongotest.Cluster, n int) (clients []*mongo.Client) {
	for range n {
		clients = append(clients, cluster.Client(impatientSelection))
	}
	return clients
}
