package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseDeadLetters: what was given up is kept, listed, and goes back to its place.
func exerciseDeadLetters(t *testing.T, h *harness) {
	run(t, h.withIndexes, deadLetterTests)
}

func (b *bundle) letters(t *testing.T, opts mongostore.DeadLetterOptions) []mongostore.DeadLetter {
	t.Helper()
	var all []mongostore.DeadLetter
	for pages := 0; ; pages++ {
		require.Less(t, pages, 1000, "a listing that never ends")
		page, err := b.store.DeadLetters(t.Context(), opts)
		require.NoError(t, err)
		if opts.Limit > 0 {
			require.LessOrEqual(t, len(page.Items), opts.Limit)
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all
		}
		opts.Cursor = page.Next
	}
}

var deadLetterTests = tests{
	"KeepTheEntryTheReasonAndTheCount": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		b.clock.Advance(time.Hour)
		l := b.claimOnly(t)
		for _, e := range []mongostore.Entry{l.Outbox[1], l.Spawns[0], l.Timers[0]} {
			require.NoError(t, b.store.Bury(t.Context(), e, errors.New("broken "+e.EntryID())))
			require.NoError(t, b.store.Bury(t.Context(), e, errors.New("again")), "what is gone is no error")
		}
		dead := b.inspect(t, "o-1").Dead
		require.Len(t, dead, 3)
		byID := map[string]mongostore.DeadLetter{}
		for _, d := range dead {
			byID[d.Entry.EntryID()] = d
		}
		require.Equal(t, byID, map[string]mongostore.DeadLetter{
			"outbox:o-1:2":        {Entry: withoutToken(l.Outbox[1]), Cause: "broken outbox:o-1:2", Attempts: 1, BuriedAt: b.clock.Now()},
			"spawn:o-1:1":         {Entry: withoutToken(l.Spawns[0]), Cause: "broken spawn:o-1:1", Attempts: 1, BuriedAt: b.clock.Now()},
			l.Timers[0].EntryID(): {Entry: withoutToken(l.Timers[0]), Cause: "broken " + l.Timers[0].EntryID(), Attempts: 1, BuriedAt: b.clock.Now()},
		})
		require.Equal(t, l.Until, b.inspect(t, "o-1").LeasedUntil, "the lease stays")
		require.NoError(t, b.store.Complete(t.Context(), l))
		require.Empty(t, b.claim(t, 0), "a buried entry holds back nobody")
		require.Len(t, b.letters(t, mongostore.DeadLetterOptions{}), 3)
	},

	"AnEntryFromASweepCanBeBuriedToo": func(t *testing.T, b *bundle) {
		b.emitted(t, "o-1")
		for _, e := range b.outbox(t, 0) {
			require.NoError(t, b.store.Bury(t.Context(), e, nil))
		}
		require.Empty(t, b.outbox(t, 0))
		require.Zero(t, b.doc(t, "o-1").Lookup("due_at").Type)
		require.NoError(t, b.store.Bury(t.Context(), mongostore.OutboxEntry{ExecutionID: "nobody", Seq: 1}, nil))
	},

	"GoBackToTheirPlace": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", emit("1", "2", "3", "4"))
		l := b.claimOnly(t)
		require.NoError(t, b.store.Bury(t.Context(), l.Outbox[1], nil))
		require.NoError(t, b.store.Bury(t.Context(), l.Outbox[0], nil))
		require.NoError(t, b.store.Release(t.Context(), l))
		n, err := b.store.Requeue(t.Context(), l.Outbox[0], l.Outbox[1], l.Outbox[2])
		require.NoError(t, err)
		require.Equal(t, 2, n)
		n, err = b.store.Requeue(t.Context(), l.Outbox[0])
		require.NoError(t, err)
		require.Zero(t, n, "it is not dead any more")
		require.Equal(t, []int64{1, 2, 3, 4}, outboxSeqs(b.claimOnly(t).Outbox))
		require.Empty(t, b.letters(t, mongostore.DeadLetterOptions{}))
		require.Zero(t, b.doc(t, "o-1").Lookup("dead").Type)
		require.Zero(t, b.doc(t, "o-1").Lookup("dead_at").Type)
	},

	"ATimerGoesBackUnlessItsPathIsArmedAgain": func(t *testing.T, b *bundle) {
		first := b.clock.Now().Add(time.Second)
		o := b.create(t, "o-1", arms(mongostore.TimerOp{Path: "A.$b", FireAt: first}, mongostore.TimerOp{Path: "C", FireAt: first}))
		b.clock.Advance(time.Second)
		l := b.claimOnly(t)
		for _, tm := range l.Timers {
			require.NoError(t, b.store.Bury(t.Context(), tm, nil))
		}
		require.NoError(t, b.store.Complete(t.Context(), l))
		b.commit(t, o, arms(mongostore.TimerOp{Path: "C", FireAt: first.Add(time.Hour)}))
		for _, letter := range b.letters(t, mongostore.DeadLetterOptions{}) {
			n, err := b.store.Requeue(t.Context(), letter.Entry)
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		require.ElementsMatch(t, []string{
			fmt.Sprintf("o-1:A.$b@%v", seconds(first)), fmt.Sprintf("o-1:C@%v", seconds(first.Add(time.Hour))),
		}, names(b.inspect(t, "o-1").Timers))
		require.Len(t, b.claimOnly(t).Timers, 1)
	},

	"ATimerThatHarelArmedAgainStaysAsItIs": func(t *testing.T, b *bundle) {
		first := b.clock.Now()
		b.create(t, "o-1", arms(mongostore.TimerOp{Path: "$x", FireAt: first}))
		l := b.claimOnly(t)
		require.NoError(t, b.store.Bury(t.Context(), l.Timers[0], nil))
		require.NoError(t, b.store.Complete(t.Context(), l))
		b.byHand = true
		_, err := b.executions.UpdateByID(t.Context(), "o-1", bson.A{d("$set", d("timers", d("$literal", d("$x", 5e9))))}) // as harel names it
		require.NoError(t, err)
		n, err := b.store.Requeue(t.Context(), l.Timers[0])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, []string{"o-1:$x@5e+09"}, names(b.inspect(t, "o-1").Timers))
	},

	"BH-19_ADeadEntryGoesBackWhileLaterOnesRun": func(t *testing.T, b *bundle) {
		b.create(t, "acct-3", emit("1", "2", "3", "4", "5"))
		l := b.claimOnly(t)
		require.NoError(t, b.store.Bury(t.Context(), l.Outbox[0], nil))
		require.NoError(t, b.store.AckOutbox(t.Context(), l.Outbox[1])) // 3 runs under the lease
		n, err := b.store.Requeue(t.Context(), l.Outbox[0])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Empty(t, b.claim(t, 0), "nothing of the execution is claimed while 3 runs")
		require.NoError(t, b.store.AckOutbox(t.Context(), l.Outbox[2]))
		require.NoError(t, b.store.Release(t.Context(), l))

		var mu sync.Mutex
		var order []int64
		var running atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					leases, err := b.store.Claim(t.Context(), mongostore.ClaimOptions{})
					if !assertNoError(t, err) {
						return
					}
					for _, l := range leases {
						if running.Add(1) != 1 {
							t.Error("two hold one execution")
						}
						mu.Lock()
						order = append(order, l.Outbox[0].Seq)
						mu.Unlock()
						assertNoError(t, b.store.AckOutbox(t.Context(), l.Outbox[0]))
						running.Add(-1)
						assertNoError(t, b.store.Release(t.Context(), l))
					}
					mu.Lock()
					done := len(order) >= 3
					mu.Unlock()
					if done || t.Failed() {
						return
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, []int64{1, 4, 5}, order)
	},

	"PagesShowEachOneOnceWhateverHappensMeanwhile": func(t *testing.T, b *bundle) {
		const executions, each = 23, 3
		for _, id := range numbered("o-", executions) {
			b.create(t, id, emit("1", "2", "3"))
		}
		for _, l := range b.claim(t, 100) {
			for _, e := range l.Outbox {
				require.NoError(t, b.store.Bury(t.Context(), e, nil))
			}
		}
		for _, limit := range []int{0, 1, 2, 7, executions * each} {
			seen := map[string]int{}
			for _, l := range b.letters(t, mongostore.DeadLetterOptions{Limit: limit}) {
				seen[l.Entry.EntryID()]++
			}
			require.Len(t, seen, executions*each, "limit %d", limit)
		}
		require.Len(t, b.letters(t, mongostore.DeadLetterOptions{ExecutionID: "o-007", Limit: 2}), each)

		page, err := b.store.DeadLetters(t.Context(), mongostore.DeadLetterOptions{Limit: 4})
		require.NoError(t, err)
		_, err = b.store.Requeue(t.Context(), page.Items[0].Entry, page.Items[3].Entry) // one of them where the page ended
		require.NoError(t, err)
		seen := map[string]bool{}
		for _, l := range append(page.Items, b.letters(t, mongostore.DeadLetterOptions{Limit: 4, Cursor: page.Next})...) {
			require.False(t, seen[l.Entry.EntryID()], "%s twice", l.Entry.EntryID())
			seen[l.Entry.EntryID()] = true
		}
		require.Len(t, seen, executions*each)
	},

	"RefuseWhatCannotBe": func(t *testing.T, b *bundle) {
		ctx := t.Context()
		_, err := b.store.DeadLetters(ctx, mongostore.DeadLetterOptions{Limit: -1})
		requireInvalid(t, err, "DeadLetterOptions.Limit")
		_, err = b.store.DeadLetters(ctx, mongostore.DeadLetterOptions{ExecutionID: "a\x00"})
		requireInvalid(t, err, "DeadLetterOptions.ExecutionID")
		for _, cursor := range []string{"x", "e30", "!"} {
			_, err = b.store.DeadLetters(ctx, mongostore.DeadLetterOptions{Cursor: cursor})
			requireInvalid(t, err, "DeadLetterOptions.Cursor")
		}
		b.create(t, "o-1", emit("1", "2"))
		for _, e := range b.outbox(t, 0) {
			require.NoError(t, b.store.Bury(ctx, e, nil))
		}
		page, err := b.store.DeadLetters(ctx, mongostore.DeadLetterOptions{Limit: 1})
		require.NoError(t, err)
		_, err = b.store.DeadLetters(ctx, mongostore.DeadLetterOptions{Cursor: page.Next, ExecutionID: "o-1"})
		requireInvalid(t, err, "DeadLetterOptions.Cursor")
		_, err = b.store.Requeue(ctx, page.Items[0].Entry, nil)
		requireInvalid(t, err, "entries[1]")
		require.Len(t, b.letters(t, mongostore.DeadLetterOptions{}), 2, "nothing was moved")
	},
}

// withoutToken is a claimed entry as the dead letters know it.
func withoutToken(e mongostore.Entry) mongostore.Entry {
	switch e := e.(type) {
	case mongostore.OutboxEntry:
		e.Token, e.Attempt = "", 0
		return e
	case mongostore.SpawnEntry:
		e.Token, e.Attempt = "", 0
		return e
	case mongostore.Timer:
		e.Token, e.Attempt = "", 0
		return e
	}
	return e
}
