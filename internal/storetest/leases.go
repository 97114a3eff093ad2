package storetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/mongostoretest"
)

// exerciseLeases: who holds an execution may deliver for it, and nobody else.
func exerciseLeases(t *testing.T, h *harness) {
	run(t, h.withIndexes, leaseTests)
}

func (b *bundle) claim(t *testing.T, limit int) []*mongostore.Lease {
	t.Helper()
	leases, err := b.store.Claim(t.Context(), mongostore.ClaimOptions{Limit: limit})
	require.NoError(t, err)
	return leases
}

// claimOnly claims what must be the only execution that is due.
func (b *bundle) claimOnly(t *testing.T) *mongostore.Lease {
	t.Helper()
	leases := b.claim(t, 10)
	require.Len(t, leases, 1)
	return leases[0]
}

func (b *bundle) emitted(t *testing.T, id string) *order {
	t.Helper()
	return b.create(t, id, emit("a", "b"))
}

func requireLost(t *testing.T, err error, ids ...string) {
	t.Helper()
	var lost *mongostore.LeaseLostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, ids, lost.IDs)
	require.ErrorIs(t, err, mongostore.ErrLeaseLost)
}

// underLease is every call that a token fences.
var underLease = map[string]func(ctx context.Context, b *bundle, l *mongostore.Lease) error{
	"Complete": func(ctx context.Context, b *bundle, l *mongostore.Lease) error { return b.store.Complete(ctx, l) },
	"Release":  func(ctx context.Context, b *bundle, l *mongostore.Lease) error { return b.store.Release(ctx, l) },
	"Retry": func(ctx context.Context, b *bundle, l *mongostore.Lease) error {
		return b.store.Retry(ctx, l, time.Minute, errors.New("x"))
	},
	"Extend": func(ctx context.Context, b *bundle, l *mongostore.Lease) error {
		return b.store.Extend(ctx, l, time.Hour)
	},
	"Bury": func(ctx context.Context, b *bundle, l *mongostore.Lease) error {
		return b.store.Bury(ctx, l.Outbox[0], errors.New("x"))
	},
	"AckOutbox": func(ctx context.Context, b *bundle, l *mongostore.Lease) error {
		return b.store.AckOutbox(ctx, l.Outbox...)
	},
	"Commit": func(ctx context.Context, b *bundle, l *mongostore.Lease) error {
		var o order
		if err := b.store.Load(ctx, l.ExecutionID, &o); err != nil {
			return err
		}
		_, err := b.store.Commit(ctx, &o, mongostore.Changes{Acks: []mongostore.Entry{l.Outbox[0]}})
		return err
	},
}

var leaseTests = tests{
	"CarryWhatIsOwedInTheOrderOfDelivery": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		now := b.clock.Advance(time.Hour)
		l := b.claimOnly(t)
		require.Equal(t, "o-1", l.ExecutionID)
		require.NotEmpty(t, l.Token)
		require.Equal(t, now.Add(30*time.Second), l.Until)
		require.Equal(t, 1, l.Attempt)
		require.Len(t, l.Spawns, 2)
		require.Len(t, l.Outbox, 3)
		require.NotEmpty(t, l.Timers)
		require.Equal(t, l.Token, l.Spawns[0].Token)
		require.Equal(t, l.Token, l.Outbox[2].Token)
		require.Equal(t, l.Token, l.Timers[0].Token)
		require.Equal(t, []int64{1, 2, 3}, outboxSeqs(l.Outbox))
		require.Equal(t, 1, l.Outbox[0].Attempt)
		require.NoError(t, b.store.Complete(t.Context(), l))
		require.Empty(t, b.outbox(t, 0))
		require.Empty(t, b.spawns(t, 0))
		require.Empty(t, b.claim(t, 0))
		require.Zero(t, b.doc(t, "o-1").Lookup("lease").Type)
		require.Zero(t, b.doc(t, "o-1").Lookup("due_at").Type, "nothing is owed")
	},

	"EndAtTheVeryInstantOfUntil": func(t *testing.T, b *bundle) {
		b.emitted(t, "o-1")
		first := b.claimOnly(t)
		b.clock.Advance(30*time.Second - time.Microsecond)
		require.Empty(t, b.claim(t, 0), "a microsecond before its end")
		b.clock.Advance(time.Microsecond)
		second := b.claimOnly(t)
		require.NotEqual(t, first.Token, second.Token)
		require.Equal(t, 2, second.Attempt, "a holder that died counts")
		require.Equal(t, 2, second.Outbox[0].Attempt)
		require.Equal(t, 1, second.Outbox[1].Attempt, "it has not been tried")
	},

	"BH-06_LateCallsOfASlowHolderChangeNothing": func(t *testing.T, b *bundle) {
		for name, call := range underLease {
			id := "e-" + name
			b.emitted(t, id)
			late := b.claimOnly(t)
			b.clock.Advance(31 * time.Second)
			holder := b.claimOnly(t)
			before := b.doc(t, id)
			b.clock.Advance(time.Second)
			requireLost(t, call(t.Context(), b, late), id)
			require.Equal(t, before, b.doc(t, id), "%s must not change a byte", name)
			require.NoError(t, b.store.Complete(t.Context(), holder), name)
		}
	},

	"BH-06_AnEndedLeaseThatNobodyTookIsHonoured": func(t *testing.T, b *bundle) {
		for name, call := range underLease {
			b.emitted(t, "e-"+name)
			late := b.claimOnly(t)
			b.clock.Advance(31 * time.Second)
			require.NoError(t, call(t.Context(), b, late), name)
			for _, l := range b.claim(t, 0) {
				require.NoError(t, b.store.Complete(t.Context(), l))
			}
			b.clock.Advance(2 * time.Hour)
			for _, l := range b.claim(t, 0) {
				require.NoError(t, b.store.Complete(t.Context(), l))
			}
		}
	},

	"BH-06_ShortLeasesUnderSlowHolders": func(t *testing.T, b *bundle) {
		const items, claimers = 60, 4
		for i := range items {
			b.create(t, numbered("e-", items)[i], emit("x"))
		}
		var completed sync.Map
		var twice atomic.Int64
		store := b.with(t, func(cfg *mongostore.Config) { cfg.Clock = nil })
		ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
		defer stop()
		var wg sync.WaitGroup
		for w := range claimers {
			wg.Go(func() {
				for ctx.Err() == nil {
					leases, err := store.Claim(ctx, mongostore.ClaimOptions{Limit: 3, LeaseFor: 5 * time.Millisecond})
					if !assertNoError(t, err) {
						return
					}
					left, err := store.Stats(ctx)
					if !assertNoError(t, err) || left.Pending == 0 {
						return
					}
					for _, l := range leases {
						if w%2 == 0 {
							<-time.After(6 * time.Millisecond) // longer than the lease
						}
						switch err := store.Complete(ctx, l); {
						case err == nil:
							if _, had := completed.LoadOrStore(l.ExecutionID, true); had && len(l.Outbox) > 0 {
								twice.Add(1)
							}
						case !errors.Is(err, mongostore.ErrLeaseLost):
							assertNoError(t, err)
						}
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, ctx.Err())
		require.Zero(t, twice.Load(), "each item is completed once")
	},

	"BH-07_ClocksThatDisagree": func(t *testing.T, b *bundle) {
		fast := &mongostoretest.Clock{}
		b.emitted(t, "e-11")
		ahead := b.with(t, func(cfg *mongostore.Config) { cfg.Clock = fast })
		fast.Advance(b.clock.Now().Sub(fast.Now()) + 25*time.Second)
		slow, err := b.store.Claim(t.Context(), mongostore.ClaimOptions{LeaseFor: 20 * time.Second})
		require.NoError(t, err)
		require.Len(t, slow, 1)
		stolen, err := ahead.Claim(t.Context(), mongostore.ClaimOptions{LeaseFor: 20 * time.Second})
		require.NoError(t, err)
		require.Len(t, stolen, 1, "clocks that differ by more than is allowed")
		requireLost(t, b.store.Complete(t.Context(), slow[0]), "e-11")
		require.NoError(t, ahead.Complete(t.Context(), stolen[0]), "one completion at most")

		b.emitted(t, "e-12")
		l := b.claimOnly(t)
		until := l.Until
		b.clock.Advance(-10 * time.Second)
		require.NoError(t, b.store.Extend(t.Context(), l, 20*time.Second))
		require.Equal(t, until, l.Until, "never shortened")
		require.Equal(t, seconds(until), b.doc(t, "e-12").Lookup("lease", "until").Double())
		require.Equal(t, seconds(until), b.doc(t, "e-12").Lookup("due_at").Double())
	},

	"CompleteAcksExactlyWhatItCarries": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		b.clock.Advance(time.Hour)
		l := b.claimOnly(t)
		o := b.load(t, "o-1")
		later := b.clock.Now().Add(time.Hour)
		b.commit(t, o, mongostore.Changes{
			Emits:  []mongostore.Emit{{Event: "new"}},
			Timers: []mongostore.TimerOp{{Path: l.Timers[0].Path, FireAt: later}},
		})
		require.NoError(t, b.store.Complete(t.Context(), l))
		require.Equal(t, []int64{4}, outboxSeqs(b.outbox(t, 0)))
		next := b.claimOnly(t)
		require.Equal(t, []int64{4}, outboxSeqs(next.Outbox))
		require.Empty(t, next.Timers, "armed anew for later")
		require.NoError(t, b.store.Complete(t.Context(), next))
		require.Equal(t, seconds(later), b.doc(t, "o-1").Lookup("due_at").Double())
		require.Equal(t, seconds(later), b.doc(t, "o-1").Lookup("timer_at").Double())
	},

	"ReleaseIsAsIfNeverClaimed": func(t *testing.T, b *bundle) {
		b.emitted(t, "o-1")
		for range 3 {
			l := b.claimOnly(t)
			require.Equal(t, 1, l.Attempt)
			require.NoError(t, b.store.Release(t.Context(), l))
		}
		died := b.claimOnly(t)
		b.clock.Advance(time.Minute)
		second := b.claimOnly(t)
		require.Equal(t, 2, second.Attempt)
		require.NoError(t, b.store.Release(t.Context(), second))
		require.Equal(t, 2, b.claimOnly(t).Attempt)
		_ = died
	},

	"RetryKeepsItBackWhateverCommitsDo": func(t *testing.T, b *bundle) {
		o := b.emitted(t, "o-1")
		l := b.claimOnly(t)
		require.NoError(t, b.store.Retry(t.Context(), l, time.Minute, errors.New("busy")))
		require.Empty(t, b.claim(t, 0))
		b.commit(t, o, emit("c"))
		require.Empty(t, b.claim(t, 0), "a commit does not undo the backoff")
		b.clock.Advance(time.Minute - time.Microsecond)
		require.Empty(t, b.claim(t, 0))
		b.clock.Advance(time.Microsecond)
		again := b.claimOnly(t)
		require.Equal(t, 2, again.Attempt)
		require.Len(t, again.Outbox, 3)
		requireLost(t, b.store.Complete(t.Context(), l), "o-1")
		require.NoError(t, b.store.Retry(t.Context(), again, -time.Hour, nil), "less than nothing is at once")
		require.Equal(t, 3, b.claimOnly(t).Attempt)
	},

	"AttemptsAreThoseOfTheFirstEntry": func(t *testing.T, b *bundle) {
		b.emitted(t, "o-1")
		for want := 1; want <= 3; want++ {
			l := b.claimOnly(t)
			require.Equal(t, want, l.Attempt)
			if want == 3 {
				require.NoError(t, b.store.AckOutbox(t.Context(), l.Outbox[0]))
			}
			require.NoError(t, b.store.Retry(t.Context(), l, 0, nil))
		}
		l := b.claimOnly(t)
		require.Equal(t, 2, l.Attempt, "the second entry was tried once, in the lease that acked the first")
		require.Equal(t, []int64{2}, outboxSeqs(l.Outbox))
	},

	"ACommitThatAcksConsumesTheEntryInOneWrite": func(t *testing.T, b *bundle) {
		b.emitted(t, "o-1")
		l := b.claimOnly(t)
		o := b.load(t, "o-1")
		b.commit(t, o, mongostore.Changes{Processed: l.Outbox[0].EntryID(), Acks: []mongostore.Entry{l.Outbox[0]}})
		require.Equal(t, []int64{2}, outboxSeqs(b.outbox(t, 0)))
		require.NoError(t, b.store.Complete(t.Context(), l), "what was acked before is no error")
		require.Empty(t, b.outbox(t, 0))
	},

	"CarryAtMostAHundredOfAKindAndNoEventBeforeAllSpawns": func(t *testing.T, b *bundle) {
		var ch mongostore.Changes
		for _, id := range numbered("c-", 150) {
			ch.Spawns = append(ch.Spawns, mongostore.Spawn{ChildID: id})
			ch.Emits = append(ch.Emits, mongostore.Emit{Event: id})
		}
		b.create(t, "o-1", ch)
		var sizes []int
		for range 3 {
			l := b.claimOnly(t)
			sizes = append(sizes, len(l.Spawns), len(l.Outbox))
			require.NoError(t, b.store.Complete(t.Context(), l))
		}
		require.Equal(t, []int{100, 0, 50, 100, 0, 50}, sizes)
		require.Empty(t, b.claim(t, 0))
	},

	"RefuseWhatCannotBeBeforeAnythingIsWritten": func(t *testing.T, b *bundle) {
		ctx := t.Context()
		b.emitted(t, "o-1")
		before := b.doc(t, "o-1")
		_, err := b.store.Claim(ctx, mongostore.ClaimOptions{Limit: -1})
		requireInvalid(t, err, "ClaimOptions.Limit")
		_, err = b.store.Claim(ctx, mongostore.ClaimOptions{LeaseFor: -1})
		requireInvalid(t, err, "ClaimOptions.LeaseFor")
		_, err = b.with(t, func(cfg *mongostore.Config) { cfg.Clock = fixedClock{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} }).
			Claim(ctx, mongostore.ClaimOptions{LeaseFor: 200 * 365 * 24 * time.Hour})
		requireInvalid(t, err, "ClaimOptions.LeaseFor")
		require.Equal(t, before, b.doc(t, "o-1"))

		l := b.claimOnly(t)
		before = b.doc(t, "o-1")
		requireInvalid(t, b.store.Extend(ctx, l, 0), "LeaseFor")
		atTheEnd := b.with(t, func(cfg *mongostore.Config) { cfg.Clock = fixedClock{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} })
		requireInvalid(t, atTheEnd.Extend(ctx, l, 48*time.Hour), "LeaseFor")
		requireInvalid(t, atTheEnd.Retry(ctx, l, 48*time.Hour, nil), "after")
		requireInvalid(t, b.store.Complete(ctx, nil), "Lease")
		requireInvalid(t, b.store.Release(ctx, &mongostore.Lease{Token: "t"}), "Lease.ExecutionID")
		requireInvalid(t, b.store.Retry(ctx, &mongostore.Lease{ExecutionID: "o-1"}, 0, nil), "Lease.Token")
		requireInvalid(t, b.store.Bury(ctx, nil, nil), "entry")
		requireInvalid(t, b.store.Bury(ctx, mongostore.OutboxEntry{}, nil), "entry.ExecutionID")
		requireInvalid(t, b.store.Bury(ctx, mongostore.Timer{ExecutionID: "o-1", Path: "a\x00"}, nil), "entry.Path")
		require.Equal(t, before, b.doc(t, "o-1"))
	},

	"HostileTextStaysText": func(t *testing.T, b *bundle) {
		b.emitted(t, "o-1")
		l := b.claimOnly(t)
		hostile := "$data" + strings.Repeat("é", 2000) + "\xff"
		require.NoError(t, b.store.Retry(t.Context(), l, 0, errors.New(hostile)))
		cause := b.doc(t, "o-1").Lookup("lease", "cause").StringValue()
		require.True(t, strings.HasPrefix(cause, "$dataé"), cause)
		require.LessOrEqual(t, len(cause), 1100)
		l = b.claimOnly(t)
		require.NoError(t, b.store.Bury(t.Context(), l.Outbox[0], errors.New("$outbox")))
		require.Equal(t, "$outbox", b.inspect(t, "o-1").Dead[0].Cause)
		for _, token := range []string{"$lease.token", `{"$ne": null}`} {
			requireLost(t, b.store.Complete(t.Context(), &mongostore.Lease{ExecutionID: "o-1", Token: token}), "o-1")
		}
	},
}

type fixedClock struct{ at time.Time }

func (c fixedClock) Now() time.Time { return c.at }
