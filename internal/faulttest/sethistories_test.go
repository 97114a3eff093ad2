//go:build faults

package faulttest_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/mongotest"
)

// TestHistoriesOfASet takes the primary away from the clients. While a set changes its
// primary, loads may be stale: one that was frozen or cut off answers before it learns
// that there is another, and a new one does not know at once what is committed.
func TestHistoriesOfASet(t *testing.T) {
	t.Parallel()
	t.Run("Killed", func(t *testing.T) {
		t.Parallel()
		cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true, Nodes: 3})
		historyOfSet(t, cluster, "SIGKILL and step-down of the primary; histories", cluster.Client(), impatientClients(cluster, 3), killOrStepDown(t))
	})
	t.Run("Frozen", func(t *testing.T) {
		t.Parallel()
		cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true, Nodes: 3})
		historyOfSet(t, cluster, "SIGSTOP of the primary beyond an election; histories", cluster.Client(), impatientClients(cluster, 3), func(primary *mongotest.Node) func() {
			primary.Pause()
			time.Sleep(3 * time.Second) // an election takes two
			return primary.Resume
		})
	})
	t.Run("CutOff", func(t *testing.T) {
		t.Parallel()
		m := startMembers(t)
		p := &pinned{}
		p.point(m.Primary())
		clients := []*mongo.Client{m.client(t, impatientSelection), m.client(t, impatientSelection), p.client(t, impatientSelection)}
		historyOfSet(t, m.Cluster, "the primary cut off, and answering still; histories", m.client(t), clients, func(primary *mongotest.Node) func() {
			p.point(primary)
			heal := m.cut(m.index(primary))
			next := m.elect(t, primary)
			time.Sleep(2 * time.Second) // with two that take themselves for the primary
			return func() {
				p.point(next)
				heal()
				m.settled(t)
			}
		})
	})
}

// historyOfSet strikes under the clients. Strike gives what puts things right again.
func historyOfSet(t *testing.T, cluster *mongotest.Cluster, fault string, sound *mongo.Client, clients []*mongo.Client, strike func(primary *mongotest.Node) (restore func())) {
	from := seed(t)
	r := &row{Fault: fault, Topology: setOfThree}
	rec := record(t, sound, from, r, untilStopped, clients...)
	rnd := rand.New(rand.NewPCG(from, 1000))
	for range times(t, 2) {
		time.Sleep(time.Duration(500+rnd.IntN(500)) * time.Millisecond) // of work, before the next fault
		done := rec.changes()
		restore := strike(cluster.Primary())
		r.Injected++
		cluster.Primary()
		time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond) // of work without the old one
		restore()
		cluster.Primary()
		done()
		time.Sleep(2 * time.Second) // until nothing is stale any more
	}
	time.Sleep(500 * time.Millisecond)
	rec.stop()
	rec.check(t, rec.sound, rec.db)
	enter(t, r)
}

// killOrStepDown kills the primary and lets the next one step down, in turns.
func killOrStepDown(t *testing.T) func(*mongotest.Node) func() {
	turn := 0
	return func(primary *mongotest.Node) func() {
		if turn++; turn%2 == 1 {
			primary.Kill()
			return primary.Restart
		}
		stepDown := bson.D{{Key: "replSetStepDown", Value: 5}, {Key: "force", Value: true}}
		if err := primary.Client().Database("admin").RunCommand(t.Context(), stepDown).Err(); err != nil {
			t.Logf("step down: %v", err) // it may have lost the connection by it
		}
		return func() {}
	}
}
