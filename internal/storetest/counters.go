package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// exerciseCounters: numbers are unique, and rise within an execution.
func exerciseCounters(t *testing.T, h *harness) {
	run(t, h.bundle, counterTests)
}

// numbersOf emits and spawns on a store and gives the numbers.
func numbersOf(t *testing.T, store *mongostore.Store, o *order, emits, spawns int) (outbox, spawned []int64) {
	t.Helper()
	ch := emit(slices.Repeat([]any{"e"}, emits)...)
	ch.Spawns = slices.Repeat([]mongostore.Spawn{{ChildID: "c"}}, spawns)
	res, err := store.Commit(t.Context(), o, ch)
	require.NoError(t, err)
	return res.OutboxSeqs, res.SpawnSeqs
}

var counterTests = tests{
	"GiveRunsThatRiseInTheOrderOfTheCommits": func(t *testing.T, b *bundle) {
		next := [2]int64{1, 1}
		for i, o := range []*order{newOrder("o-1"), newOrder("o-2"), newOrder("o-3")} {
			for n := range 4 {
				outbox, spawned := numbersOf(t, b.store, o, n, i)
				for _, seq := range outbox {
					require.Equal(t, next[0], seq)
					next[0]++
				}
				for _, seq := range spawned {
					require.Equal(t, next[1], seq)
					next[1]++
				}
				require.Len(t, outbox, n)
				require.Len(t, spawned, i)
			}
		}
		require.Equal(t, next[0]-1, b.counter(t, "outbox"))
		require.Equal(t, next[1]-1, b.counter(t, "spawn"))
	},

	"AreNotTouchedByCommitsWithoutEntries": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", mongostore.Changes{Processed: "ev-1", Trace: d("n", 1), Timers: []mongostore.TimerOp{arm("Wait", 5)}})
		b.commit(t, o, mongostore.Changes{})
		n, err := b.counters.CountDocuments(t.Context(), d())
		require.NoError(t, err)
		require.Zero(t, n)
	},

	"LeaveGapsAndNothingElseWhenACommitLoses": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		stale := *o
		numbersOf(t, b.store, o, 2, 0)
		_, err := b.store.Commit(t.Context(), &stale, emit(1, 2, 3))
		require.ErrorIs(t, err, mongostore.ErrConflict)
		outbox, _ := numbersOf(t, b.store, o, 1, 0)
		require.Equal(t, []int64{6}, outbox)
		require.Equal(t, []int64{1, 2, 6}, seqs(t, b.doc(t, "o-1"), "outbox"))
	},

	"BH-11_GoOnFromNumbersOfAnyWidth": func(t *testing.T, b *bundle) {
		for i, n := range []any{int32(41), int64(41), 41.0, int64(1) << 40, float64(1 << 52)} {
			_, err := b.counters.DeleteMany(t.Context(), d())
			require.NoError(t, err)
			for _, name := range []string{"outbox", "spawn"} {
				_, err = b.counters.InsertOne(t.Context(), d("_id", name, "n", n))
				require.NoError(t, err)
			}
			o := newOrder(fmt.Sprint("o-", i))
			before := map[bool]int64{true: 41, false: 1 << 40}[i < 3]
			if i == 4 {
				before = 1 << 52
			}
			outbox, spawned := numbersOf(t, b.store, o, 2, 1)
			require.Equal(t, []int64{before + 1, before + 2}, outbox)
			require.Equal(t, []int64{before + 1}, spawned)
			require.Equal(t, outbox, seqs(t, b.doc(t, o.ID), "outbox"))
			require.Equal(t, before+2, b.counter(t, "outbox"))
		}
		b.byHand = true // the counters were reset
	},

	"ThatAreDamagedAreNamedAndNothingIsWritten": func(t *testing.T, b *bundle) {
		for id, n := range map[string]any{"text": "41", "null": nil, "NaN": nan, "fraction": 41.5, "array": []int{1}} {
			_, err := b.counters.DeleteMany(t.Context(), d())
			require.NoError(t, err)
			_, err = b.counters.InsertOne(t.Context(), d("_id", "spawn", "n", n))
			require.NoError(t, err)
			o := newOrder(id)
			_, err = b.store.Commit(t.Context(), o, mongostore.Changes{Spawns: []mongostore.Spawn{{ChildID: "c"}}})
			requireDamaged(t, err, "spawn", "counters.n")
			require.Zero(t, o.Version)
			require.Zero(t, b.count(t))
			b.commit(t, newOrder("other"), emit(1)) // the other counter is well
			require.NoError(t, b.store.Delete(t.Context(), "other", 1))
		}
	},

	"OfABlockRiseWithinAnExecutionWhoeverCommits": func(t *testing.T, b *bundle) {
		stores := make([]*mongostore.Store, 3)
		for i := range stores {
			stores[i] = b.with(t, func(c *mongostore.Config) { c.SeqBlock = 10 })
		}
		seen := map[int64]bool{}
		for n := range 60 {
			id := fmt.Sprint("o-", n%4)
			store := stores[(n*7+n/4)%3]
			o := newOrder(id)
			if err := store.Load(t.Context(), id, o); err != nil {
				require.ErrorIs(t, err, mongostore.ErrNotFound)
			}
			outbox, spawned := numbersOf(t, store, o, n%5, n%2)
			require.Len(t, outbox, n%5)
			require.Len(t, spawned, n%2)
			for _, seq := range outbox {
				require.False(t, seen[seq], "%d twice", seq)
				seen[seq] = true
			}
		}
		for _, id := range []string{"o-0", "o-1", "o-2", "o-3"} {
			require.True(t, slices.IsSorted(seqs(t, b.doc(t, id), "outbox")))
		}
	},

	"OfABlockRiseForAValueThatKnowsNothing": func(t *testing.T, b *bundle) {
		one := b.with(t, func(c *mongostore.Config) { c.SeqBlock = 10 })
		two := b.with(t, func(c *mongostore.Config) { c.SeqBlock = 10 })
		o := newOrder("o-1")
		numbersOf(t, one, o, 1, 1) // 1 of 1 to 10
		numbersOf(t, two, o, 1, 1) // 11 of 11 to 20
		blind := newOrder("o-1")
		blind.Version = o.Version
		outbox, spawned := numbersOf(t, one, blind, 2, 2) // not 2, 3
		require.Equal(t, []int64{21, 22}, outbox)
		require.Equal(t, []int64{21, 22}, spawned)
		require.Equal(t, []int64{1, 11, 21, 22}, seqs(t, b.doc(t, "o-1"), "outbox"))
	},

	"OfABlockStayAboveWhatWasGivenWhenTheCounterIsLost": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.SeqBlock = 5 })
		o := newOrder("o-1")
		for range 4 {
			numbersOf(t, store, o, 3, 0)
		}
		_, err := b.counters.DeleteMany(t.Context(), d())
		require.NoError(t, err)
		fresh := b.with(t, func(c *mongostore.Config) { c.SeqBlock = 5 })
		loaded := &order{}
		require.NoError(t, fresh.Load(t.Context(), "o-1", loaded))
		numbersOf(t, fresh, loaded, 3, 0)
		require.True(t, slices.IsSorted(seqs(t, b.doc(t, "o-1"), "outbox")))
	},

	"MayBeMoreThanABlock": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.SeqBlock = 4 })
		o := newOrder("o-1")
		last := int64(0)
		for _, n := range []int{3, 1, 9, 2, 4, 5} {
			outbox, _ := numbersOf(t, store, o, n, 0)
			require.Len(t, outbox, n)
			require.Greater(t, outbox[0], last)
			last = outbox[n-1]
			require.Equal(t, outbox[0]+int64(n)-1, last, "one run")
		}
	},

	"AreWaitedForUntilCtxEnds": func(t *testing.T, b *bundle) {
		proxy := mongotest.NewProxy(t, b.server.Addr(t))
		store := b.on(t, mongotest.Connect(t, proxy.URI()), func(*mongostore.Config) {})
		release := make(chan struct{})
		proxy.OnRequest(mongotest.Once(mongotest.Hold(release), "findAndModify"))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		o := newOrder("o-1")
		_, err := store.Commit(ctx, o, emit(1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome, "the commit itself was never sent")
		require.Zero(t, o.Version)
		require.Zero(t, b.count(t))
		close(release)
		_, err = store.Commit(t.Context(), o, emit(1))
		require.NoError(t, err, "the numbers that nobody took are a gap")
		require.NoError(t, store.Close(t.Context()))
	},
}
