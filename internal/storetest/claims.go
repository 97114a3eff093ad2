package storetest

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseClaims: what is due is found, by one claimer each.
func exerciseClaims(t *testing.T, h *harness) {
	run(t, h.withIndexes, claimTests)
}

func leasedIDs(leases []*mongostore.Lease) []string {
	ids := []string{}
	for _, l := range leases {
		ids = append(ids, l.ExecutionID)
	}
	return ids
}

var claimTests = tests{
	"TakeTheLongestDueFirst": func(t *testing.T, b *bundle) {
		ids := numbered("o-", 25)
		for _, id := range ids {
			b.emitted(t, id)
			b.clock.Advance(time.Second)
		}
		require.Equal(t, ids[:10], leasedIDs(b.claim(t, 0)), "10 by default")
		require.Equal(t, ids[10:13], leasedIDs(b.claim(t, 3)))
		require.Equal(t, ids[13:], leasedIDs(b.claim(t, 100)))
		require.Empty(t, b.claim(t, 100))
	},

	"NeverHoldOneExecutionTwice": func(t *testing.T, b *bundle) {
		const executions, claimers = 120, 8
		for _, id := range numbered("o-", executions) {
			b.emitted(t, id)
		}
		var held sync.Map
		var total atomic.Int64
		var wg sync.WaitGroup
		for range claimers {
			wg.Go(func() {
				for total.Load() < executions {
					leases, err := b.store.Claim(t.Context(), mongostore.ClaimOptions{Limit: 7})
					if !assertNoError(t, err) {
						return
					}
					for _, l := range leases {
						if other, had := held.LoadOrStore(l.ExecutionID, l.Token); had {
							t.Errorf("%s is held by %s and %s", l.ExecutionID, other, l.Token)
						}
						total.Add(1)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, executions, total.Load())
	},

	"BH-20_WhatIsBusyInFrontHidesNothingBehindIt": func(t *testing.T, b *bundle) {
		busy := map[string]*order{}
		for _, id := range numbered("busy-", 200) {
			busy[id] = b.emitted(t, id)
		}
		require.Len(t, b.claim(t, 200), 200)
		for _, o := range busy {
			b.commit(t, o, emit("more")) // makes it due again
		}
		b.clock.Advance(time.Second)
		for _, id := range numbered("fresh-", 50) {
			b.emitted(t, id)
		}
		seen := map[string]bool{}
		for range 5 {
			for _, id := range leasedIDs(b.claim(t, 10)) {
				require.True(t, strings.HasPrefix(id, "fresh-"), id)
				seen[id] = true
			}
		}
		require.Len(t, seen, 50, "the first five claims return all")
		require.Empty(t, b.claim(t, 10))
		require.Equal(t, b.doc(t, "busy-000").Lookup("lease", "until"), b.doc(t, "busy-000").Lookup("due_at"), "put back")
	},

	"BH-20_WhatFailsDoesNotFillTheClaimsOfOthers": func(t *testing.T, b *bundle) {
		for _, id := range numbered("bad-", 100) {
			b.emitted(t, id)
		}
		for _, l := range b.claim(t, 100) {
			require.NoError(t, b.store.Retry(t.Context(), l, time.Minute, nil))
		}
		b.emitted(t, "fresh")
		require.Equal(t, []string{"fresh"}, leasedIDs(b.claim(t, 10)))
	},

	"WhatOwesNothingLeavesTheIndex": func(t *testing.T, b *bundle) {
		for _, id := range numbered("o-", 100) {
			b.emitted(t, id)
		}
		b.set(t, "o-007", d("due_at", seconds(b.clock.Now())-3600))
		require.NoError(t, b.store.AckOutbox(t.Context(), b.outbox(t, 1000)...))
		b.clock.Advance(time.Second)
		b.emitted(t, "fresh")
		require.Equal(t, []string{"fresh"}, leasedIDs(b.claim(t, 5)), "past a hundred that look due")
		require.Zero(t, b.doc(t, "o-007").Lookup("due_at").Type)
		require.Zero(t, b.doc(t, "o-007").Lookup("lease").Type)
	},

	"ATimerMakesItsExecutionDueWhenItFires": func(t *testing.T, b *bundle) {
		at := b.clock.Now().Add(time.Minute)
		b.create(t, "o-1", arms(mongostore.TimerOp{Path: "Wait", FireAt: at}, mongostore.TimerOp{Path: "Later", FireAt: at.Add(time.Hour)}))
		require.Empty(t, b.claim(t, 0))
		b.clock.Advance(time.Minute)
		l := b.claimOnly(t)
		require.Len(t, l.Timers, 1)
		require.Equal(t, "Wait", l.Timers[0].Path)
		require.NoError(t, b.store.Complete(t.Context(), l))
		require.Equal(t, seconds(at.Add(time.Hour)), b.doc(t, "o-1").Lookup("due_at").Double())
	},

	"BH-22_ATimerThatWasArmedAnewStays": func(t *testing.T, b *bundle) {
		at := b.clock.Now().Add(100 * time.Second)
		for name, c := range map[string]struct {
			op   mongostore.TimerOp
			left []string
		}{
			"later":        {mongostore.TimerOp{Path: "Wait", FireAt: at.Add(400 * time.Second)}, []string{"Wait"}},
			"cancelled":    {mongostore.TimerOp{Path: "Wait", Cancel: true}, nil},
			"the very one": {mongostore.TimerOp{Path: "Wait", FireAt: at}, nil},
		} {
			b.create(t, "ord-"+name, arms(mongostore.TimerOp{Path: "Wait", FireAt: at}))
			_ = c
		}
		b.clock.Advance(120 * time.Second)
		leases := b.claim(t, 0)
		require.Len(t, leases, 3)
		for _, l := range leases {
			require.Len(t, l.Timers, 1)
			o := b.load(t, l.ExecutionID)
			var left int
			switch l.ExecutionID {
			case "ord-later":
				b.commit(t, o, arms(mongostore.TimerOp{Path: "Wait", FireAt: at.Add(400 * time.Second)}))
				left = 1
			case "ord-cancelled":
				b.commit(t, o, arms(mongostore.TimerOp{Path: "Wait", Cancel: true}))
			default:
				b.commit(t, o, arms(mongostore.TimerOp{Path: "Wait", FireAt: at}))
			}
			require.NoError(t, b.store.Complete(t.Context(), l))
			require.Len(t, b.inspect(t, l.ExecutionID).Timers, left, l.ExecutionID)
		}
		require.Empty(t, b.claim(t, 0), "500 is not due at 120")
		b.clock.Advance(time.Hour)
		require.Equal(t, []string{"ord-later"}, leasedIDs(b.claim(t, 0)))
	},

	"BH-21_WhatCannotBeReadIsBuriedAtOnce": func(t *testing.T, b *bundle) {
		for _, id := range numbered("o-", 20) {
			b.create(t, id, emit("x"))
		}
		b.set(t, "o-001", d("outbox.0.event", "not json"))
		b.unset(t, "o-002", "outbox.0.seq")
		b.set(t, "o-003", d("outbox", "gone"))
		b.set(t, "o-004", d("outbox.0", 5))
		b.set(t, "o-005", d("spawns", bson.A{d("seq", 1, "context", 7)}))
		b.set(t, "o-006", d("timers", d("A", "soon", "B", seconds(b.clock.Now()))))
		b.set(t, "o-007", d("timers", 5))
		b.set(t, "o-008", d("lease", "mine"))
		b.set(t, "o-009", d("lease", d("token", 5, "until", "never", "attempts", bson.A{}, "head", d())))
		b.set(t, "o-010", d("lease", d("until", nan)))
		b.set(t, "o-011", d("dead", "lost"))
		b.insert(t, d("_id", 5, "version", 1, "data", "{}", "due_at", 1.0, "outbox", bson.A{d("seq", 1, "event", "{}")}))
		delivered := 0
		for _, l := range b.claim(t, 100) {
			delivered += len(l.Outbox)
			require.NoError(t, b.store.Complete(t.Context(), l))
		}
		require.Equal(t, 16, delivered, "the good entries, in the first pass")
		require.Empty(t, b.claim(t, 100), "the bad ones do not come again")
		told := b.damage.take()
		for _, line := range []string{"o-001 outbox.event", "o-002 outbox.seq", "o-003 outbox", "o-004 outbox", "o-005 spawns.context", "o-006 timers.A", "o-007 timers"} {
			require.Contains(t, told, line)
		}
		for _, id := range []string{"o-001", "o-002", "o-003", "o-004", "o-005", "o-006", "o-007"} {
			dead := b.doc(t, id).Lookup("dead").Array()
			letter := dead.Index(0).Document()
			require.NotEmpty(t, letter.Lookup("cause").StringValue(), id)
			require.NotZero(t, letter.Lookup("value").Type, "%s: what was there is kept", id)
		}
		page, err := b.store.DeadLetters(t.Context(), mongostore.DeadLetterOptions{})
		require.NoError(t, err)
		require.Len(t, page.Items, 7)
		for _, l := range page.Items {
			require.NotNil(t, l.Entry)
			n, err := b.store.Requeue(t.Context(), l.Entry)
			require.NoError(t, err)
			require.Zero(t, n, "what cannot be read stays dead")
		}
	},
}
