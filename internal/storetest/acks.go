package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseAcks: a commit takes away its execution's own entries in the same update.
func exerciseAcks(t *testing.T, h *harness) {
	run(t, h.withIndexes, ackTests)
}

// owing makes an execution that owes three events, two spawns and two timers.
func (b *bundle) owing(t *testing.T, id string) (*order, []mongostore.Entry) {
	t.Helper()
	o := b.create(t, id, b.everything("ev-1"))
	var entries []mongostore.Entry
	outbox, err := b.store.PendingOutbox(t.Context(), 0)
	require.NoError(t, err)
	for _, e := range outbox {
		entries = append(entries, e)
	}
	spawns, err := b.store.PendingSpawns(t.Context(), 0)
	require.NoError(t, err)
	for _, e := range spawns {
		entries = append(entries, e)
	}
	timers, err := b.store.DueTimers(t.Context(), b.clock.Now().Add(3600e9), 0)
	require.NoError(t, err)
	for _, e := range timers {
		entries = append(entries, e)
	}
	require.Len(t, entries, 7)
	return o, entries
}

var ackTests = tests{
	"TakeAwayEntriesOfEveryKind": func(t *testing.T, b *bundle) {
		o, entries := b.owing(t, "o-1")
		b.commit(t, o, mongostore.Changes{Acks: []mongostore.Entry{entries[0], entries[2], entries[4], entries[6]}})
		doc := b.doc(t, "o-1")
		require.Equal(t, []int64{2}, seqs(t, doc, "outbox"))
		require.Equal(t, []int64{1}, seqs(t, doc, "spawns"))
		require.Equal(t, map[string]float64{"Idle": seconds(b.clock.Now()) + 5}, timersOf(t, doc))
		b.commit(t, o, mongostore.Changes{Acks: entries}) // what is gone is no error
		doc = b.doc(t, "o-1")
		require.Empty(t, seqs(t, doc, "outbox"))
		require.Empty(t, seqs(t, doc, "spawns"))
		require.Empty(t, timersOf(t, doc))
	},

	"GoTogetherWithNewEntriesOfTheSameKind": func(t *testing.T, b *bundle) {
		o, entries := b.owing(t, "o-1")
		res := b.commit(t, o, mongostore.Changes{
			Acks:      []mongostore.Entry{entries[0], entries[1], entries[3], entries[5]},
			Emits:     []mongostore.Emit{{TargetID: "$target", Event: "$event"}},
			Spawns:    []mongostore.Spawn{{ChildID: "$child", RootPath: "$root", Input: d("$a.b", "$c")}},
			Timers:    []mongostore.TimerOp{{Path: "$x", FireAt: b.clock.Now()}, {Path: "$y", Cancel: true}, {Path: "Pay.Wait", Cancel: true}},
			Processed: "$processed",
			Trace:     d("note", "$literal"),
		})
		require.Equal(t, mongostore.CommitResult{Version: 2, OutboxSeqs: []int64{4}, SpawnSeqs: []int64{3}}, res)
		doc := b.doc(t, "o-1")
		require.Equal(t, []int64{3, 4}, seqs(t, doc, "outbox"))
		require.Equal(t, []int64{2, 3}, seqs(t, doc, "spawns"))
		require.Equal(t, []string{"ev-1", "$processed"}, texts(t, doc, "processed"))
		require.Equal(t, []int64{0, 1}, indexes(t, doc))
		timers, err := b.store.DueTimers(t.Context(), b.clock.Now().Add(3600e9), 0)
		require.NoError(t, err)
		require.Len(t, timers, 1)
		require.Equal(t, "$x", timers[0].Path)
		spawns, err := b.store.PendingSpawns(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, `{"$a.b": "$c"}`, spawns[1].Input.String())
		require.Equal(t, "$child $root", spawns[1].ChildID+" "+spawns[1].RootPath)
		loaded := b.load(t, "o-1")
		require.EqualValues(t, 2, loaded.Version)
		b.commit(t, loaded, b.everything("ev-3"))
	},

	"KeepTheRingsBoundedBesideNewEntries": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.TraceMax, c.ProcessedMax = 2, 2 })
		o := newOrder("o-1")
		for _, ev := range []string{"ev-1", "ev-2", "ev-3", "ev-3"} {
			entries, err := store.PendingOutbox(t.Context(), 0)
			require.NoError(t, err)
			ch := mongostore.Changes{Emits: []mongostore.Emit{{Event: ev}}, Trace: d("ev", ev), Processed: ev}
			for _, e := range entries {
				ch.Acks = append(ch.Acks, e)
			}
			res, err := store.Commit(t.Context(), o, ch)
			require.NoError(t, err)
			require.Equal(t, ev == "ev-3" && o.Version == 4, res.Deduplicated)
		}
		doc := b.doc(t, "o-1")
		require.Equal(t, []int64{4}, seqs(t, doc, "outbox"))
		require.Equal(t, []int64{2, 3}, indexes(t, doc))
		require.Equal(t, []string{"ev-2", "ev-3"}, texts(t, doc, "processed"))
	},

	"LeaveATimerThatStandsAtAnotherTime": func(t *testing.T, b *bundle) {
		o, entries := b.owing(t, "o-1")
		idle := entries[5].(mongostore.Timer)
		require.Equal(t, "Idle", idle.Path)
		later := b.clock.Now().Add(60e9)
		b.commit(t, o, mongostore.Changes{Timers: []mongostore.TimerOp{{Path: "Idle", FireAt: later}}})
		res := b.commit(t, o, mongostore.Changes{Acks: []mongostore.Entry{idle, entries[0]}})
		require.EqualValues(t, 3, res.Version, "the rest of the commit lands")
		doc := b.doc(t, "o-1")
		require.Equal(t, seconds(later), timersOf(t, doc)["Idle"])
		require.Equal(t, []int64{2, 3}, seqs(t, doc, "outbox"))
	},

	"GiveWayToATimerOpOfTheSamePath": func(t *testing.T, b *bundle) {
		o, entries := b.owing(t, "o-1")
		again := b.clock.Now().Add(90e9)
		b.commit(t, o, mongostore.Changes{
			Acks:   []mongostore.Entry{entries[5], entries[6]},
			Timers: []mongostore.TimerOp{{Path: "Idle", FireAt: again}},
		})
		require.Equal(t, map[string]float64{"Idle": seconds(again)}, timersOf(t, b.doc(t, "o-1")))
	},

	"AreFencedByTheirToken": func(t *testing.T, b *bundle) {
		for _, beside := range []mongostore.Changes{{}, {Emits: []mongostore.Emit{{Event: 1}}}} { // classic and pipeline
			id := map[bool]string{true: "o-1", false: "o-2"}[beside.Emits == nil]
			o := b.create(t, id, b.everything("ev-1"))
			entry := mongostore.OutboxEntry{ExecutionID: id, Seq: seqs(t, b.doc(t, id), "outbox")[0], Token: "mine"}
			beside.Acks = []mongostore.Entry{entry}
			for _, holder := range []string{"", "another"} {
				if holder != "" {
					b.lease(t, id, holder)
				}
				before := b.doc(t, id)
				_, err := b.store.Commit(t.Context(), o, beside)
				require.ErrorIs(t, err, mongostore.ErrLeaseLost)
				var lost *mongostore.LeaseLostError
				require.ErrorAs(t, err, &lost)
				require.Equal(t, []string{id}, lost.IDs)
				require.NotErrorIs(t, err, mongostore.ErrConflict)
				require.EqualValues(t, 1, o.Version)
				require.Equal(t, before, b.doc(t, id))
			}
			b.lease(t, id, "mine")
			lease := b.doc(t, id).Lookup("lease")
			b.commit(t, o, beside)
			require.NotContains(t, seqs(t, b.doc(t, id), "outbox"), entry.Seq)
			require.Equal(t, lease.String(), b.doc(t, id).Lookup("lease").String(), "a commit leaves the lease alone")
		}
	},

	"SayConflictBeforeLeaseLost": func(t *testing.T, b *bundle) {
		stale := b.create(t, "o-1", b.everything("ev-1"))
		b.commit(t, b.load(t, "o-1"), mongostore.Changes{})
		ack := mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1, Token: "lost"}
		_, err := b.store.Commit(t.Context(), stale, mongostore.Changes{Acks: []mongostore.Entry{ack}})
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 1, Actual: 2})
	},
}
