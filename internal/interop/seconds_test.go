package interop

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// noMicrosecond is a time as time.time() gives it: no whole number of microseconds
// has its double.
const noMicrosecond = 1746053379.0389447

func TestSecondsAndTimesAreExact(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		s := 1.6e9 + 0.6e9*random.Float64()
		require.Equal(t, s, Seconds(TimeOf(s)))
		at := time.UnixMicro(int64(s * 1e6))
		require.Equal(t, float64(at.UnixMicro())/1e6, Seconds(at))
	}
	require.NotEqual(t, noMicrosecond, Seconds(TimeOf(noMicrosecond).Round(time.Microsecond)))
}

// testTimes: a timer that harel armed is due to Go at the very time it says, not a
// double before, and what Go arms at that time is harel's double to the last digit.
func testTimes(t *testing.T, b *bundle) {
	const count = 40
	random := rand.New(rand.NewPCG(3, 4))
	timers := []harelTimer{{"schedule", "n.0", noMicrosecond}}
	for i := 1; i < count; i++ {
		timers = append(timers, harelTimer{"schedule", fmt.Sprintf("n.%d", i), 1.8e9 + 1e8*random.Float64()})
	}
	b.harel.commit(harelCommit{Data: `{"id":"timed","definition_id":"D"}`, Timers: timers})
	_, err := b.store.Adopt(t.Context())
	require.NoError(t, err)
	armed := map[string]float64{}
	for _, timer := range timers {
		armed[timer.Path] = timer.FireAt
	}

	due := b.requireSameTimers(t, forever)
	require.Len(t, due, count)
	for i, timer := range due {
		require.Equal(t, armed[timer.Path], Seconds(timer.FireAt), timer.Path)
		found, err := b.store.DueTimers(t.Context(), timer.FireAt, 0)
		require.NoError(t, err)
		require.Equal(t, due[:i+1], found, "due at its own time")
		found, err = b.store.DueTimers(t.Context(), TimeOf(math.Nextafter(Seconds(timer.FireAt), 0)), 0)
		require.NoError(t, err)
		require.Len(t, found, i, "not due before")
	}

	theirs := b.harel.dueTimers(forever)
	b.armAnew(t, "timed", due)
	require.ElementsMatch(t, theirs, b.harel.dueTimers(forever))
	require.Equal(t, due, b.requireSameTimers(t, forever))
	in, err := b.store.Inspect(t.Context(), "timed")
	require.NoError(t, err)
	require.ElementsMatch(t, due, in.Timers)
	b.damage.requireNone(t)
}

// armAnew cancels the timers in one commit and arms them in the next, so that it is
// Go that wrote them.
func (b *bundle) armAnew(t *testing.T, id string, timers []mongostore.Timer) {
	t.Helper()
	exe := b.load(t, id)
	var cancel, arm []mongostore.TimerOp
	for _, timer := range timers {
		cancel = append(cancel, mongostore.TimerOp{Path: timer.Path, Cancel: true})
		arm = append(arm, mongostore.TimerOp{Path: timer.Path, FireAt: timer.FireAt})
	}
	for _, ops := range [][]mongostore.TimerOp{cancel, arm} {
		_, err := b.store.Commit(t.Context(), exe, mongostore.Changes{Timers: ops})
		require.NoError(t, err)
	}
	require.Len(t, keysOf(t, b.documents(t)[id].Lookup("timers").Document()), len(timers))
}

// testGoArmsTTL: a ttl counts only while its timer's time is the snapshot's
// expires_at; harel's engine ends an execution whose ttl Go armed anew at the time
// that the store gave. The seed has no expires_at, so there it never ends.
func testGoArmsTTL(t *testing.T, b *bundle) {
	b.harel.call("start_sessions", args{"times": 8}, nil)
	_, err := b.store.Adopt(t.Context())
	require.NoError(t, err)
	due := b.requireSameTimers(t, forever)
	require.Len(t, due, 8)
	for i, timer := range due {
		require.Equal(t, ttlPath, timer.Path)
		if i%2 == 0 {
			in, err := b.store.Inspect(t.Context(), timer.ExecutionID)
			require.NoError(t, err)
			timer = in.Timers[0]
		}
		b.armAnew(t, timer.ExecutionID, []mongostore.Timer{timer})
		snapshot := b.load(t, timer.ExecutionID)
		if b.naming == "harel" {
			expires, err := snapshot.ExpiresAt.Float64()
			require.NoError(t, err)
			require.Equal(t, expires, b.documents(t)[timer.ExecutionID].Lookup("timers", ttlPath).Double())
		}
	}
	b.harel.call("expire_sessions", nil, nil)
	for _, timer := range due {
		exe := b.load(t, timer.ExecutionID)
		require.Equal(t, b.standing("session-expired", ended), stand{exe.Status, exe.ActivePath, exe.Outcome}, timer.ExecutionID)
	}
	b.damage.requireNone(t)
}
