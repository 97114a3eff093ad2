//go:build faults

package faulttest_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/internal/mongod"
	"github.com/execstore/mongostore/internal/mongotest"
)

const setOfThree = "replica set of three"

// TestThePrimaryIsTakenAway takes the primary of a set of three from its clients and from
// the other members, one way each.
func TestThePrimaryIsTakenAway(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		fault  string
		strike func(t *testing.T, primary *mongotest.Node, rnd *rand.Rand) (restore func())
	}{
		"Killed": {"SIGKILL of the primary", func(_ *testing.T, primary *mongotest.Node, _ *rand.Rand) func() {
			primary.Kill()
			return primary.Restart
		}},
		"SteppedDown": {"step-down of the primary", func(t *testing.T, primary *mongotest.Node, rnd *rand.Rand) func() {
			force := bson.D{{Key: "replSetStepDown", Value: 2 + rnd.IntN(3)}, {Key: "secondaryCatchUpPeriodSecs", Value: 0}, {Key: "force", Value: true}}
			if err := primary.Client().Database("admin").RunCommand(t.Context(), force).Err(); err != nil {
				t.Logf("step down: %v", err) // it may have lost the connection by it
			}
			return func() {}
		}},
		"Frozen": {"SIGSTOP of the primary beyond an election", func(_ *testing.T, primary *mongotest.Node, _ *rand.Rand) func() {
			primary.Pause()
			return primary.Resume
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := seed(t)
			rnd := rand.New(rand.NewPCG(from, 1000))
			cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true, Nodes: 3})
			w := crowd{
				fault: fault.fault, topology: setOfThree, seed: from, committers: 32, others: 4, transactions: true,
				sound: cluster.Client(patientSelection), client: among(cluster.Client(impatientSelection), cluster.Client(impatientSelection)),
			}.start(t)
			for range times(t, 2) {
				aWhile(rnd)
				restore := fault.strike(t, cluster.Primary(), rnd)
				w.struck(1)
				cluster.Primary()
				aWhile(rnd)
				restore()
				allInStep(t, cluster)
			}
			w.finish(t)
		})
	}
}

// TestAStalePrimaryStillAnswers cuts the primary off from the other members, who elect
// another one, while clients reach both: some follow the set, and some know only the
// one that they talk to. What it acknowledges must not be lost, and what it does not
// know is told to be unknown.
func TestAStalePrimaryStillAnswers(t *testing.T) {
	t.Parallel()
	from := seed(t)
	rnd := rand.New(rand.NewPCG(from, 1000))
	m := startMembers(t)
	p := &pinned{}
	p.point(m.Primary())
	w := crowd{
		fault: "the primary cut off, and answering still", topology: setOfThree, seed: from, committers: 32, others: 4, transactions: true,
		sound: m.client(t, patientSelection), client: among(m.client(t, impatientSelection), p.client(t, impatientSelection)),
	}.start(t)
	for n := range times(t, 2) {
		aWhile(rnd)
		old := m.Primary()
		p.point(old)
		aWhile(rnd)
		heal := m.cut(m.index(old))
		began := time.Now()
		next := m.elect(t, old)
		stale := time.Since(began)
		require.True(t, mongod.IsWritable(t.Context(), old.URI()) || stale > cutElection, "the old primary has heard of the new one")
		if stale < cutElection {
			w.struck(1)
		}
		if n%2 == 0 { // it learns of the next one by itself, or when it is back
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			for mongod.IsWritable(ctx, old.URI()) {
				time.Sleep(100 * time.Millisecond)
			}
			cancel()
		} else {
			aWhile(rnd)
		}
		p.point(next)
		heal()
		m.settled(t)
	}
	w.finish(t)
}

// elect makes another member the primary.
func (m *members) elect(t *testing.T, old *mongotest.Node) (next *mongotest.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		for _, n := range m.Nodes() {
			if n == old {
				continue
			}
			err := n.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepUp", Value: 1}}).Err()
			if err == nil && mongod.WaitWritable(ctx, n.URI()) == nil {
				return n
			} // one that lags is not elected
		}
	}
	t.Fatal("nobody else is elected")
	return nil
}
