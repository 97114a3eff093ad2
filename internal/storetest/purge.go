package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exercisePurge: what is finished and owes nothing goes; and the counts of the rest.
func exercisePurge(t *testing.T, h *harness) {
	run(t, h.withIndexes, purgeTests)
}

func (b *bundle) finished(t *testing.T, id string, ch mongostore.Changes) {
	t.Helper()
	o := newOrder(id)
	o.Status = "DONE"
	b.commit(t, o, ch)
}

func (b *bundle) purge(t *testing.T, before time.Time, batch int) int64 {
	t.Helper()
	n, err := b.store.Purge(t.Context(), mongostore.PurgeOptions{FinishedBefore: before, Batch: batch})
	require.NoError(t, err)
	return n
}

var purgeTests = tests{
	"TakesWhatFinishedBeforeAndOwesNothing": func(t *testing.T, b *bundle) {
		for _, id := range numbered("old-", 25) {
			b.finished(t, id, mongostore.Changes{})
		}
		b.finished(t, "owes-event", emit("x"))
		b.finished(t, "owes-spawn", mongostore.Changes{Spawns: []mongostore.Spawn{{ChildID: "c"}}})
		b.finished(t, "owes-timer", arms(mongostore.TimerOp{Path: "A", FireAt: b.clock.Now().Add(time.Hour)}))
		b.finished(t, "owes-dead", emit("x"))
		for _, e := range b.outbox(t, 0) {
			if e.ExecutionID == "owes-dead" {
				require.NoError(t, b.store.Bury(t.Context(), e, nil))
			}
		}
		b.create(t, "running")
		_, err := b.counters.InsertOne(t.Context(), d("_id", "trace:old-003", "n", 5))
		require.NoError(t, err)
		limit := b.clock.Advance(time.Second)
		b.finished(t, "at-the-limit", mongostore.Changes{})
		b.clock.Advance(time.Second)
		require.EqualValues(t, 25, b.purge(t, limit, 4))
		require.Equal(t, []string{"at-the-limit", "owes-dead", "owes-event", "owes-spawn", "owes-timer", "running"}, b.list(t, mongostore.ListOptions{}))
		require.Zero(t, b.counter(t, "trace:old-003"))
		require.Zero(t, b.purge(t, limit, 0))

		leases := b.claim(t, 0)
		require.Zero(t, b.purge(t, limit, 1), "held")
		for _, l := range leases {
			require.NoError(t, b.store.Complete(t.Context(), l))
		}
		require.EqualValues(t, 2, b.purge(t, limit, 1))
	},

	"RefusesWhatWouldMeanEverything": func(t *testing.T, b *bundle) {
		_, err := b.store.Purge(t.Context(), mongostore.PurgeOptions{})
		requireInvalid(t, err, "PurgeOptions.FinishedBefore")
		_, err = b.store.Purge(t.Context(), mongostore.PurgeOptions{FinishedBefore: time.Unix(1<<60, 0)})
		requireInvalid(t, err, "PurgeOptions.FinishedBefore")
		_, err = b.store.Purge(t.Context(), mongostore.PurgeOptions{FinishedBefore: b.clock.Now(), Batch: -1})
		requireInvalid(t, err, "PurgeOptions.Batch")
	},

	"StatsCountWhatIsOwed": func(t *testing.T, b *bundle) {
		st, err := b.store.Stats(t.Context())
		require.NoError(t, err)
		require.Zero(t, st)
		oldest := b.clock.Now()
		for _, id := range numbered("o-", 5) {
			b.create(t, id, emit("1", "2"))
		}
		b.create(t, "later", arms(mongostore.TimerOp{Path: "A", FireAt: oldest.Add(time.Hour)}))
		b.create(t, "nothing")
		b.clock.Advance(time.Second)
		leases := b.claim(t, 3)
		require.NoError(t, b.store.Retry(t.Context(), leases[0], time.Minute, nil))
		for _, e := range leases[1].Outbox {
			require.NoError(t, b.store.Bury(t.Context(), e, nil))
		}
		require.NoError(t, b.store.Complete(t.Context(), leases[1]))
		st, err = b.store.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, mongostore.Stats{Pending: 5, Due: 2, Leased: 1, Dead: 2, OldestDue: oldest}, st)
	},
}
