package mongostore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// armed commits an order with a timer at each path.
func armed(t *testing.T, s *mongostore.Store, paths ...string) *order {
	t.Helper()
	o := newOrder("o")
	var ch mongostore.Changes
	for _, path := range paths {
		ch.Timers = append(ch.Timers, mongostore.TimerOp{Path: path, FireAt: someTime})
	}
	_, err := s.Commit(t.Context(), o, ch)
	require.NoError(t, err)
	return o
}

func ackOf(path string, at ...time.Time) mongostore.Changes {
	var ch mongostore.Changes
	for _, at := range at {
		ch.Acks = append(ch.Acks, mongostore.Timer{ExecutionID: "o", Path: path, FireAt: at})
	}
	return ch
}

func (b *behind) timers(t *testing.T) []mongostore.Timer {
	t.Helper()
	in, err := b.direct.Inspect(t.Context(), "o")
	require.NoError(t, err)
	return in.Timers
}

// dollarPaths are those that a projection would take for its own operators.
var dollarPaths = []string{"$pay", "$", "$[]", "$slice", "a.$.b"}

func TestTheAckOfATimerWhosePathHasADollar(t *testing.T) {
	t.Parallel()
	for _, path := range dollarPaths {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := newBehind(t, mongotest.Standalone(t), mongostore.Config{})
			o := armed(t, b.store, path)
			stale := *o
			_, err := b.store.Commit(t.Context(), o, ackOf(path, someTime))
			require.NoError(t, err)
			require.Empty(t, b.timers(t))
			_, err = b.store.Commit(t.Context(), &stale, ackOf(path, someTime))
			require.ErrorIs(t, err, mongostore.ErrConflict)
			_, err = b.store.Commit(t.Context(), o, ackOf(path, someTime))
			require.NoError(t, err, "the timer is gone already")

			_, err = b.store.Commit(t.Context(), o, mongostore.Changes{Timers: []mongostore.TimerOp{{Path: path, FireAt: someTime}}})
			require.NoError(t, err)
			b.proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
			_, err = b.store.Commit(t.Context(), o, ackOf(path, someTime))
			require.NoError(t, err, "a lost reply is settled")
			require.EqualValues(t, 1, b.proxy.Replies().Cut)
			require.Equal(t, o.Version, b.load(t, "o").Version)
			require.Empty(t, b.timers(t))
		})
	}
}

// An old delivery of a timer and one of its new arming are acked in one commit.
func TestAcksOfOneTimerAtTwoTimes(t *testing.T) {
	t.Parallel()
	before, after := someTime.Add(-time.Hour), someTime.Add(time.Hour)
	for name, c := range map[string]struct {
		at   []time.Time
		left int
	}{
		"the later one stands":   {[]time.Time{before, someTime}, 0},
		"the earlier one stands": {[]time.Time{someTime, after}, 0},
		"neither stands":         {[]time.Time{before, after}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBehind(t, mongotest.Standalone(t), mongostore.Config{})
			o := armed(t, b.store, "p")
			stale := *o
			_, err := b.store.Commit(t.Context(), o, ackOf("p", c.at...))
			require.NoError(t, err)
			require.Len(t, b.timers(t), c.left)
			_, err = b.store.Commit(t.Context(), &stale, ackOf("p", c.at...))
			require.ErrorIs(t, err, mongostore.ErrConflict)
		})
	}
}

// Engines fill timers and acks from maps: their order is none of the contents.
func TestTimersAndAcksInAnotherOrderAreTheSameContents(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), quick)
	o := armed(t, b.direct, "a", "b")
	contents := func() mongostore.Changes {
		ch := ackOf("a", someTime)
		ch.Acks = append(ch.Acks, ackOf("b", someTime).Acks...)
		for seq := range int64(3) {
			ch.Acks = append(ch.Acks, mongostore.OutboxEntry{ExecutionID: "o", Seq: 1 + seq}, mongostore.SpawnEntry{ParentID: "o", Seq: 1 + seq})
		}
		ch.Timers = []mongostore.TimerOp{{Path: "x", FireAt: someTime}, {Path: "y", FireAt: someTime}, {Path: "z", Cancel: true}}
		return ch
	}
	b.unknown(t, o, contents(), mongotest.Pass, mongotest.Cut)
	again := contents()
	slices.Reverse(again.Timers)
	slices.Reverse(again.Acks)
	res, err := b.store.Commit(t.Context(), o, again)
	require.NoError(t, err)
	require.EqualValues(t, 2, res.Version)
	require.Equal(t, int64(2), b.load(t, "o").Version)
	require.Len(t, b.timers(t), 2)
}

func TestOtherTimersAfterAnUnknownOutcomeAreOtherContents(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), quick)
	o := newOrder("o")
	b.unknown(t, o, mongostore.Changes{Timers: []mongostore.TimerOp{{Path: "x", FireAt: someTime}}}, mongotest.Pass, mongotest.Cut)
	_, err := b.store.Commit(t.Context(), o, mongostore.Changes{Timers: []mongostore.TimerOp{{Path: "y", FireAt: someTime}}})
	var conflict *mongostore.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.True(t, conflict.Own)
}
