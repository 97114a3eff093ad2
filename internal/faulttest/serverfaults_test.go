//go:build faults

package faulttest_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
)

// writeCommands are all that both stores write with.
var writeCommands = []string{"insert", "update", "findAndModify", "delete", "commitTransaction", "abortTransaction"}

// codes are errors that servers give: some that say that a write may be tried again, some
// that it may have landed, and some that it was refused.
var codes = []int{6, 7, 50, 64, 89, 91, 112, 189, 262, 9001, 10107, 11600, 11601, 11602, 13435, 13436, 1, 2, 251}

// concerns are codes of write concern errors.
var concerns = []int{64, 79, 91, 100, 189, 10107, 11600, 11602}

// mishap is a fail point by chance.
func mishap(rnd *rand.Rand) mongotest.FailPoint {
	fp := mongotest.FailPoint{Times: 1 + rnd.IntN(4), Commands: writeCommands}
	if rnd.IntN(2) == 0 {
		n := rnd.IntN(len(writeCommands))
		fp.Commands = writeCommands[n : n+1]
	}
	switch rnd.IntN(3) {
	case 0:
		fp.ErrorLabels = []string{}
	case 1:
		fp.ErrorLabels = []string{"RetryableWriteError"}
	}
	switch rnd.IntN(5) {
	case 0, 1:
		fp.WriteConcernError = bson.D{{Key: "code", Value: concerns[rnd.IntN(len(concerns))]}, {Key: "errmsg", Value: "by chance"}}
	case 2:
		fp.CloseConnection = true
	default:
		fp.ErrorCode = codes[rnd.IntN(len(codes))]
	}
	return fp
}

// TestWritesFailOnTheServer lets writes of all kinds fail with all kinds of errors.
func TestWritesFailOnTheServer(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology.name, func(t *testing.T) {
			t.Parallel()
			from := seed(t)
			cluster := mongotest.Start(t, topology.opts)
			var clients []*mongo.Client
			for i := range 8 { // many: one that is told that its primary has gone looks for it for half a second
				clients = append(clients, cluster.Client(impatientSelection, polling, options.Client().SetRetryWrites(i%2 == 0 && topology.opts.ReplicaSet)))
			}
			w := crowd{
				fault: "write concern errors, retryable and final errors of the server", topology: topology.name, seed: from,
				committers: 32, others: 8, transactions: topology.opts.ReplicaSet, sound: cluster.Client(), client: among(clients...),
			}.start(t)
			rnd := rand.New(rand.NewPCG(from, 1000))
			control := cluster.Client()
			before := struckSoFar(t, control)
			for end := time.Now().Add(duration(t)); time.Now().Before(end); {
				mongotest.FailCommand(t, control, mishap(rnd))
				time.Sleep(time.Duration(20+rnd.IntN(60)) * time.Millisecond) // of work, before the next fault
			}
			after := struckSoFar(t, control)
			w.struck(after - before)
			w.finish(t)
		})
	}
}

// polling asks the server what it is as often as may be. A server that only pretends to
// have stepped down does not tell by itself that it is there.
var polling = options.Client().SetServerMonitoringMode(options.ServerMonitoringModePoll).SetHeartbeatInterval(500 * time.Millisecond)

// struckSoFar ends the fail point, and tells how often it has failed a command.
func struckSoFar(t *testing.T, control *mongo.Client) int64 {
	t.Helper()
	var reply struct{ Count int64 }
	off := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "off"}}
	require.NoError(t, control.Database("admin").RunCommand(t.Context(), off).Decode(&reply))
	return reply.Count
}

// TestAPoolOfTwo gives 64 goroutines of each store two connections.
func TestAPoolOfTwo(t *testing.T) {
	t.Parallel()
	cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true})
	pools, waited := map[string]*mongo.Client{}, map[string]*atomic.Int64{}
	for _, store := range []string{"executions", "relay", "outbox"} {
		waited[store] = &atomic.Int64{}
		pools[store] = cluster.Client(poolOfTwo(waited[store]))
	}
	w := crowd{
		fault: "64 goroutines, two connections", topology: "replica set of one", seed: seed(t), committers: 64, others: 32, transactions: true,
		sound: cluster.Client(), client: func(store string, _ int) *mongo.Client { return pools[store] },
	}.start(t)
	time.Sleep(duration(t))
	for _, r := range w.rows {
		r.Injected = waited[r.Store].Load()
	}
	w.finish(t)
}

// poolOfTwo counts who had to wait for a connection.
func poolOfTwo(waited *atomic.Int64) *options.ClientOptions {
	return options.Client().SetMaxPoolSize(2).SetPoolMonitor(&event.PoolMonitor{Event: func(e *event.PoolEvent) {
		if e.Type == event.ConnectionCheckedOut && e.Duration > time.Millisecond {
			waited.Add(1)
		}
	}})
}
