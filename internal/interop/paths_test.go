package interop

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// testPaths: a timer that one side armed is the same timer to the other, whatever
// its path. What mongostore has to escape, so that it comes back as it was, harel
// takes for another name; no node of a machine is named like that.
func testPaths(t *testing.T, b *bundle) {
	const at = noMicrosecond
	alike := []string{"A", "A.B", "A.B.C", "@ttl", "a state", ".a", "a..b", "ä.ö", "A:0", strings.Repeat("long.", 200)}
	harels := append([]string{"$x", "$a.b", "\uFF3C", "\uFF3Cq.r"}, alike...)
	timers := []harelTimer{}
	for _, path := range harels {
		timers = append(timers, harelTimer{"schedule", path, at})
	}
	b.harel.commit(harelCommit{Data: `{"id":"harels","definition_id":"D"}`, Timers: timers})
	b.requireTimersBothWays(t, "harels", len(harels))

	exe := &Execution{Header: mongostore.Header{ID: "goes", DefinitionID: "D", Status: "RUNNING"}}
	var ops []mongostore.TimerOp
	for _, path := range alike {
		ops = append(ops, mongostore.TimerOp{Path: path, FireAt: TimeOf(at)})
	}
	_, err := b.store.Commit(t.Context(), exe, mongostore.Changes{Timers: ops})
	require.NoError(t, err)
	b.requireTimersBothWays(t, "goes", len(alike))
	b.damage.requireNone(t)
}

// requireTimersBothWays: each timer is seen, armed anew and cancelled by Go, and
// deleted by harel, without a second one of its path coming to be.
func (b *bundle) requireTimersBothWays(t *testing.T, id string, count int) {
	t.Helper()
	_, err := b.store.Adopt(t.Context())
	require.NoError(t, err)
	due := b.requireSameTimers(t, forever)
	require.Len(t, due, count)
	exe := b.load(t, id)
	for i, timer := range due {
		later := timer.FireAt.Add(time.Minute)
		ops := []mongostore.TimerOp{{Path: timer.Path, FireAt: later}}
		_, err := b.store.Commit(t.Context(), exe, mongostore.Changes{Timers: ops})
		require.NoError(t, err)
		in, err := b.store.Inspect(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, in.Timers, count-i, "%q is one timer", timer.Path)
		require.Equal(t, Seconds(later), Seconds(in.Timers[len(in.Timers)-1].FireAt))
		barely := TimeOf(math.Nextafter(Seconds(later), forever))
		for _, other := range []time.Time{timer.FireAt, barely, later.Add(time.Hour)} {
			missed := mongostore.Timer{ExecutionID: id, Path: timer.Path, FireAt: other}
			require.NoError(t, b.store.DeleteTimer(t.Context(), missed), "one that fires at another time is left alone")
		}

		switch i % 3 {
		case 0:
			_, err = b.store.Commit(t.Context(), exe, mongostore.Changes{Timers: []mongostore.TimerOp{{Path: timer.Path, Cancel: true}}})
			require.NoError(t, err)
		case 1:
			require.NoError(t, b.store.DeleteTimer(t.Context(), in.Timers[len(in.Timers)-1]))
		case 2:
			b.harelDeletes(t, in.Timers[len(in.Timers)-1])
		}
		in, err = b.store.Inspect(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, in.Timers, count-i-1)
	}
}

// harelDeletes finds the timer as harel names it.
func (b *bundle) harelDeletes(t *testing.T, timer mongostore.Timer) {
	t.Helper()
	for _, d := range b.harel.dueTimers(forever) {
		at, err := d.FireAt.Float64()
		require.NoError(t, err)
		if d.ID == timer.ExecutionID && at == Seconds(timer.FireAt) {
			b.harel.deleteTimer(d.ID, d.Path, d.FireAt)
			return
		}
	}
	t.Fatalf("harel does not see %s", timer.EntryID())
}

// testTracedBeforeStored: a trace that either side appends before the first commit
// makes a document that is no execution yet. harel cannot load such a one.
func testTracedBeforeStored(t *testing.T, b *bundle) {
	b.harel.call("append_trace", args{"id": "harels", "step": args{"event_kind": "early"}}, nil)
	require.NoError(t, b.store.AppendTrace(t.Context(), "goes", bson.D{{Key: "event_kind", Value: "early"}}))
	require.Empty(t, b.list(t, mongostore.ListOptions{}))
	for _, id := range []string{"harels", "goes"} {
		require.ErrorIs(t, b.store.Load(t.Context(), id, &Execution{}), mongostore.ErrNotFound)
		require.Error(t, b.harel.try("load", args{"id": id}, nil))
		exe := &Execution{Header: mongostore.Header{ID: id, DefinitionID: "D", Status: "RUNNING"}}
		res, err := b.store.Commit(t.Context(), exe, mongostore.Changes{Trace: bson.D{{Key: "event_kind", Value: "first"}}})
		require.NoError(t, err)
		require.EqualValues(t, 1, res.Version)
		requireSameSnapshot(t, encoded(t, exe), b.harel.load(id))
		require.Len(t, b.requireSameTrace(t, id), 2)
	}
	requireSameRows(t, b.harel.list(nil), b.list(t, mongostore.ListOptions{}))
	b.damage.requireNone(t)
}
