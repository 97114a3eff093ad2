package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseSweeps: what is pending, oldest first, and its acknowledgement.
func exerciseSweeps(t *testing.T, h *harness) {
	run(t, h.withIndexes, sweepTests)
}

func emit(events ...any) mongostore.Changes {
	var ch mongostore.Changes
	for _, e := range events {
		ch.Emits = append(ch.Emits, mongostore.Emit{TargetID: "target", Event: e})
	}
	return ch
}

func (b *bundle) outbox(t *testing.T, limit int) []mongostore.OutboxEntry {
	t.Helper()
	entries, err := b.store.PendingOutbox(t.Context(), limit)
	require.NoError(t, err)
	return entries
}

func (b *bundle) spawns(t *testing.T, limit int) []mongostore.SpawnEntry {
	t.Helper()
	entries, err := b.store.PendingSpawns(t.Context(), limit)
	require.NoError(t, err)
	return entries
}

func outboxSeqs(entries []mongostore.OutboxEntry) []int64 {
	list := []int64{}
	for _, e := range entries {
		list = append(list, e.Seq)
	}
	return list
}

var sweepTests = tests{
	"GiveEntriesAsTheyWereEmitted": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		entries := b.outbox(t, 0)
		require.Len(t, entries, 3)
		require.Equal(t, "outbox:o-1:1", entries[0].EntryID())
		require.Equal(t, mongostore.OutboxEntry{ExecutionID: "o-1", TargetID: "bill-7", Seq: 1, Event: []byte(`{"kind":"Billed","n":1}`)}, entries[0])
		require.Empty(t, entries[1].TargetID)
		var ev event
		require.NoError(t, entries[1].Decode(&ev))
		require.Equal(t, event{"Logged", 2}, ev)

		spawns := b.spawns(t, 0)
		require.Len(t, spawns, 2)
		require.Equal(t, "spawn:o-1:1", spawns[0].EntryID())
		require.Equal(t, "o-1 c1 Fork.A", spawns[0].ParentID+" "+spawns[0].ChildID+" "+spawns[0].RootPath)
		var input struct{ N int }
		require.NoError(t, spawns[0].Decode(&input))
		require.Equal(t, 1, input.N)
		var empty map[string]any
		require.NoError(t, spawns[1].Decode(&empty))
		require.Empty(t, empty)
	},

	"GiveTheOldestFirstWhateverTheLimitAndTheirDocuments": func(t *testing.T, b *bundle) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		loaded := map[string]*order{}
		total := 0
		for range 40 {
			id := fmt.Sprint("o-", rnd.IntN(12))
			if loaded[id] == nil {
				loaded[id] = newOrder(id)
			}
			ch := emit(slices.Repeat([]any{"e"}, rnd.IntN(4))...)
			for range len(ch.Emits) {
				ch.Spawns = append(ch.Spawns, mongostore.Spawn{ChildID: "c"})
			}
			b.commit(t, loaded[id], ch)
			total += len(ch.Emits)
		}
		for limit := 1; limit <= total+1; limit++ {
			entries, spawns := b.outbox(t, limit), b.spawns(t, limit)
			require.Len(t, entries, min(limit, total))
			require.Len(t, spawns, min(limit, total))
			for i := range entries {
				require.EqualValues(t, i+1, entries[i].Seq, "limit %d", limit)
				require.EqualValues(t, i+1, spawns[i].Seq, "limit %d", limit)
			}
		}
	},

	"GiveAHundredByDefault": func(t *testing.T, b *bundle) {
		o := newOrder("o-1")
		var ops []mongostore.TimerOp
		ch := emit(slices.Repeat([]any{"e"}, 101)...)
		for i := range ch.Emits {
			ch.Spawns = append(ch.Spawns, mongostore.Spawn{ChildID: "c"})
			ops = append(ops, arm(fmt.Sprint(i), 5))
		}
		ch.Timers = ops
		b.commit(t, o, ch)
		require.Len(t, b.outbox(t, 0), 100)
		require.Len(t, b.spawns(t, 0), 100)
		require.Len(t, b.due(t, 5, 0), 100)
		require.Len(t, b.outbox(t, 1000), 101)
	},

	"FindTheOldestOfDocumentsThatHoldManyYoungerOnes": func(t *testing.T, b *bundle) {
		// Documents come by their lowest number; here each one's others are far away.
		for i := range 10 {
			seqs := bson.A{d("seq", i+1, "target_id", nil, "event", "{}")}
			for j := range 20 {
				seqs = append(seqs, d("seq", 1000-i*20+j, "target_id", nil, "event", "{}"))
			}
			b.insert(t, d("_id", fmt.Sprint("o-", i), "version", 1, "data", "{}", "outbox", seqs))
		}
		for _, limit := range []int{1, 5, 10, 11, 30, 200} {
			got := outboxSeqs(b.outbox(t, limit))
			require.True(t, slices.IsSorted(got))
			for i := range min(limit, 10) {
				require.EqualValues(t, i+1, got[i])
			}
			if limit > 10 {
				require.EqualValues(t, 820, got[10])
			}
		}
	},

	"AcksTakeAwayExactlyTheirEntries": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		b.create(t, "o-2", b.everything("ev-1"))
		entries, spawns := b.outbox(t, 0), b.spawns(t, 0)
		require.NoError(t, b.store.AckOutbox(t.Context(), entries[1]))
		require.NoError(t, b.store.AckOutbox(t.Context(), entries[1]), "gone: no error")
		require.NoError(t, b.store.AckOutbox(t.Context(), entries[0], entries[4], entries[5]))
		require.Equal(t, []int64{3, 4}, outboxSeqs(b.outbox(t, 0)))
		require.NoError(t, b.store.AckSpawn(t.Context(), spawns[0], spawns[3]))
		left := b.spawns(t, 0)
		require.Len(t, left, 2)
		require.Equal(t, []int64{2, 3}, []int64{left[0].Seq, left[1].Seq})
		require.NoError(t, b.store.AckOutbox(t.Context()))
		require.NoError(t, b.store.AckSpawn(t.Context()))
		require.NoError(t, b.store.AckOutbox(t.Context(), mongostore.OutboxEntry{ExecutionID: "unknown", Seq: 3}))
		require.EqualValues(t, 1, b.load(t, "o-1").Version, "an ack does not move the version")
		require.Len(t, b.outbox(t, 0), 2)
	},

	"AcksGoByExecutionAndNumber": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", emit("a"))
		_, err := b.counters.DeleteMany(t.Context(), d())
		require.NoError(t, err)
		b.create(t, "o-2", emit("b"))
		b.byHand = true // the lost counter gave a number twice
		require.Equal(t, []int64{1, 1}, outboxSeqs(b.outbox(t, 0)))
		require.NoError(t, b.store.AckOutbox(t.Context(), mongostore.OutboxEntry{ExecutionID: "o-2", Seq: 1}))
		require.Equal(t, "o-1", b.outbox(t, 0)[0].ExecutionID)
	},

	"AcksAreFencedByTheirToken": func(t *testing.T, b *bundle) {
		for _, id := range []string{"o-1", "o-2", "o-3"} {
			b.create(t, id, mongostore.Changes{Emits: []mongostore.Emit{{Event: 1}}, Spawns: []mongostore.Spawn{{ChildID: "c"}}})
		}
		b.lease(t, "o-1", "mine")
		b.lease(t, "o-2", "another")
		entries, spawns := b.outbox(t, 0), b.spawns(t, 0)
		for i := range 2 {
			entries[i].Token, spawns[i].Token = "mine", "mine"
		}
		for _, err := range []error{b.store.AckOutbox(t.Context(), entries...), b.store.AckSpawn(t.Context(), spawns...)} {
			var lost *mongostore.LeaseLostError
			require.ErrorAs(t, err, &lost)
			require.Equal(t, []string{"o-2"}, lost.IDs)
			require.ErrorIs(t, err, mongostore.ErrLeaseLost)
		}
		require.Equal(t, []int64{2}, outboxSeqs(b.outbox(t, 0)), "the others landed")
		require.Len(t, b.spawns(t, 0), 1)
		require.NoError(t, b.store.AckOutbox(t.Context(), entries[0]), "gone, and the lease is held")
		require.Equal(t, "another", b.doc(t, "o-2").Lookup("lease", "token").StringValue())
	},

	"RefuseWhatCannotBe": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		_, err := b.store.PendingOutbox(t.Context(), -1)
		requireInvalid(t, err, "limit")
		_, err = b.store.PendingSpawns(t.Context(), -1)
		requireInvalid(t, err, "limit")
		good := mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1}
		for _, id := range []string{"", "a\x00", "a\xff"} {
			requireInvalid(t, b.store.AckOutbox(t.Context(), good, mongostore.OutboxEntry{ExecutionID: id, Seq: 2}), "entries[1] execution id")
			requireInvalid(t, b.store.AckSpawn(t.Context(), mongostore.SpawnEntry{ParentID: id, Seq: 2}), "entries[0] execution id")
		}
		require.Len(t, b.outbox(t, 0), 3, "the good one beside it waits too")
	},

	"DecodeGivesErrDamagedForAnotherShape": func(t *testing.T, b *bundle) {
		ch := emit("a text")
		ch.Spawns = []mongostore.Spawn{{ChildID: "c", Input: d("n", "a text")}}
		b.create(t, "o-1", ch)
		var number int
		requireDamaged(t, b.outbox(t, 0)[0].Decode(&number), "o-1", "outbox.event")
		var input struct{ N int }
		requireDamaged(t, b.spawns(t, 0)[0].Decode(&input), "o-1", "spawns.context")
	},

	"BH-21_GoPastEntriesThatCannotBeDecoded": func(t *testing.T, b *bundle) {
		for _, id := range numbered("o-", 100) {
			b.create(t, id, emit(event{"E", 1}))
		}
		b.set(t, "o-010", d("outbox.0.event", "not json"))
		b.unset(t, "o-020", "outbox.0.seq")
		b.set(t, "o-030", d("outbox", "a string"))
		b.set(t, "o-040", d("outbox.0.event", 5))
		delivered, undecodable := 0, 0
		for range 10 {
			for _, e := range b.outbox(t, 0) {
				var ev event
				if err := e.Decode(&ev); err != nil {
					requireDamaged(t, err, "o-010", "outbox.event")
					undecodable++ // a relay buries it
				} else {
					require.Equal(t, event{"E", 1}, ev)
					delivered++
				}
				require.NoError(t, b.store.AckOutbox(t.Context(), e))
			}
			require.Equal(t, 96, delivered, "all in the first pass, none again")
			require.Equal(t, 1, undecodable)
			require.Equal(t, []string{"o-040 outbox.event"}, b.damage.take(), "found by its number, and told")
		}
		_, err := b.store.Adopt(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"o-020 outbox.seq", "o-030 outbox", "o-040 outbox.event"}, b.damage.take(), "what has no number is told by Adopt")
	},

	"BH-21_GoPastDamageWhateverTheLimit": func(t *testing.T, b *bundle) {
		for i, id := range numbered("o-", 30) {
			ch := b.everything("ev-1")
			b.create(t, id, ch)
			if i%3 != 0 { // two documents of three give nothing
				b.set(t, id, d("outbox.$[].event", 5, "spawns.$[].context", 5))
			}
		}
		wantOutbox, wantSpawns := outboxSeqs(b.outbox(t, 1000)), b.spawns(t, 1000)
		require.Len(t, wantOutbox, 30)
		require.Len(t, wantSpawns, 20)
		for limit := 1; limit <= 30; limit++ {
			require.Equal(t, wantOutbox[:limit], outboxSeqs(b.outbox(t, limit)), "limit %d", limit)
			require.Equal(t, wantSpawns[:min(limit, 20)], b.spawns(t, limit), "limit %d", limit)
		}
	},

	"BH-21_GoPastDamagedEntriesInTheSameDocument": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", emit(1, 2, 3, 4))
		b.set(t, "o-1", d("outbox.0.event", 5, "outbox.1.seq", "x", "outbox.2", "no document"))
		require.Equal(t, []int64{4}, outboxSeqs(b.outbox(t, 0)))
		for limit := 1; limit <= 4; limit++ {
			require.Equal(t, []int64{4}, outboxSeqs(b.outbox(t, limit)), "limit %d", limit)
		}
		require.NoError(t, b.store.AckOutbox(t.Context(), b.outbox(t, 0)...))
		require.Empty(t, b.outbox(t, 0))
		require.Len(t, values(t, b.doc(t, "o-1"), "outbox"), 3, "the damaged ones are kept")
	},
}
