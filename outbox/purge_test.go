package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

func TestPurge(t *testing.T) { run(t, purgeTests) }

// purge deletes what was finished before now, of the given states.
func (b *bundle) purge(t testing.TB, states ...string) int64 {
	t.Helper()
	n, err := b.store.Purge(t.Context(), b.purging(states...))
	require.NoError(t, err)
	return n
}

func (b *bundle) purging(states ...string) (opts outbox.PurgeOptions) {
	for _, state := range states {
		switch state {
		case "completed":
			opts.CompletedBefore = b.clock.Now()
		case "dead":
			opts.DeadBefore = b.clock.Now()
		}
	}
	return opts
}

// requireWhole: no delivery without its event, no event without a delivery.
func (b *bundle) requireWhole(t testing.TB) {
	t.Helper()
	used := map[string]bool{}
	for _, doc := range all(t, b.deliveries) {
		used[doc.Lookup("event_id").StringValue()] = true
	}
	for _, doc := range all(t, b.events) {
		id := doc.Lookup("_id").StringValue()
		require.True(t, used[id], "%s has no delivery", id)
		delete(used, id)
	}
	require.Empty(t, used, "they have no event")
}

func (b *bundle) ids(t testing.TB, coll *mongo.Collection) []string {
	t.Helper()
	ids := []string{}
	for _, doc := range all(t, coll) {
		ids = append(ids, doc.Lookup("_id").StringValue())
	}
	return ids
}

var purgeTests = tests{
	"BH-24_RemovesOnlyTheStatesThatWereAskedFor": func(t *testing.T, b *bundle) {
		far := msg("far", "")
		far.NotBefore = b.clock.Now().Add(365 * 24 * time.Hour)
		b.append(t, msg("shared", "", "mailer", "ledger"), msg("dead", "", "undertaker"), msg("running", "", "runner"), far, msg("done", "k", "mailer"))
		b.complete(t, b.claim(t, 10, "mailer")...)
		require.NoError(t, b.store.Bury(t.Context(), b.claimOne(t, "undertaker"), nil))
		b.claimOne(t, "runner")
		b.clock.Advance(90 * 24 * time.Hour)
		require.EqualValues(t, 2, b.purge(t, "completed"))
		require.Equal(t, []string{"h:far", "ledger:shared", "runner:running", "undertaker:dead"}, b.ids(t, b.deliveries))
		require.Equal(t, []string{"dead", "far", "running", "shared"}, b.ids(t, b.events))
		require.EqualValues(t, 1, b.purge(t, "completed", "dead"))
		require.Equal(t, []string{"far", "running", "shared"}, b.ids(t, b.events))
		require.Zero(t, b.purge(t, "completed", "dead"))
		b.complete(t, b.claim(t, 10, "ledger", "runner")...)
		b.clock.Advance(time.Second)
		require.EqualValues(t, 2, b.purge(t, "completed"))
		require.Equal(t, []string{"far"}, b.ids(t, b.events))
		require.Empty(t, all(t, b.keys))
	},

	"BH-24_BesideRequeueEachIsEitherRequeuedOrGone": func(t *testing.T, b *bundle) {
		const items = 200
		var ids []string
		for i := range items {
			b.append(t, msg(fmt.Sprintf("e-%d", i), []string{"", fmt.Sprintf("k-%d", i%7)}[i%2]))
			ids = append(ids, fmt.Sprintf("h:e-%d", i))
		}
		for left := items; left > 0; {
			ds := b.claim(t, 100)
			left -= len(ds)
			for _, d := range ds {
				require.NoError(t, b.store.Bury(t.Context(), d, nil))
			}
		}
		b.clock.Advance(time.Second)
		opts := b.purging("dead")
		opts.Batch = 10
		var requeued, purged atomic.Int64
		together(4, func(i int) {
			if i < 2 {
				n, err := b.store.Purge(t.Context(), opts)
				purged.Add(n)
				if err != nil {
					t.Error(err)
				}
				return
			}
			for j := range items {
				if j%2 != i%2 {
					continue
				}
				n, err := b.store.Requeue(t.Context(), ids[items-1-j])
				requeued.Add(int64(n))
				if err != nil {
					t.Error(err)
				}
			}
		})
		t.Logf("%d requeued, %d purged", requeued.Load(), purged.Load())
		require.EqualValues(t, items, requeued.Load()+purged.Load())
		require.Equal(t, requeued.Load(), b.count(t, b.deliveries))
		b.requireWhole(t)
	},

	"DeletesWhatWasFinishedBeforeTheTimeAndNotAtIt": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 5)...)
		b.complete(t, b.claim(t, 10)...)
		require.Zero(t, b.purge(t, "completed"))
		b.clock.Advance(time.Millisecond)
		opts := b.purging("completed")
		opts.Batch = 2
		n, err := b.store.Purge(t.Context(), opts)
		require.NoError(t, err)
		require.EqualValues(t, 5, n, "batch after batch")
		b.requireEmpty(t)
	},

	"OfTwoThatEachTakeAPartOfAnEventOneSeesTheOther": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "", "h", "g"))
		b.complete(t, b.claimOne(t, "h"))
		require.NoError(t, b.store.Bury(t.Context(), b.claimOne(t, "g"), nil))
		b.clock.Advance(time.Second)
		slow, proxy := b.proxied(t)
		fast, sent := b.monitored(t)
		release := make(chan struct{})
		proxy.OnRequest(mongotest.Once(mongotest.Hold(release), "commitTransaction"))
		errs := make(chan error, 2)
		go func() { _, err := slow.Purge(context.Background(), b.purging("completed")); errs <- err }()
		eventually(t, func() bool { return proxy.Seen("commitTransaction") > 0 }, "the first is about to commit")
		go func() { _, err := fast.Purge(context.Background(), b.purging("dead")); errs <- err }()
		eventually(t, func() bool { return len(sent.Names()) > 8 || len(errs) > 0 }, "the second conflicts")
		close(release)
		require.NoError(t, errors.Join(<-errs, <-errs))
		b.requireEmpty(t)
	},

	"ConflictsWithANewHandlerForAKnownEvent": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "k"), msg("e-2", "k"))
		for range 2 {
			b.complete(t, b.claimOne(t))
		}
		b.clock.Advance(time.Second)
		late, session := b.begin(t)
		require.NoError(t, b.store.Append(late, msg("e-1", "k", "late")))
		stale, _ := b.begin(t)
		require.NoError(t, b.events.FindOne(stale, kv("_id", "e-2")).Err(), "its snapshot is of before the purge")
		store, sent := b.monitored(t)
		purged := make(chan error, 1)
		go func() { _, err := store.Purge(context.Background(), b.purging("completed")); purged <- err }()
		eventually(t, func() bool { return len(sent.Names()) > 12 }, "the purge conflicts")
		require.NoError(t, session.CommitTransaction(t.Context()))
		require.NoError(t, <-purged)
		require.Equal(t, []string{"e-1"}, b.ids(t, b.events))
		require.Equal(t, []string{"late:e-1"}, b.ids(t, b.deliveries))
		require.Equal(t, "late:e-1", b.claimOne(t, "late").ID)

		err := b.store.Append(stale, msg("e-2", "k", "late"))
		var labeled mongo.LabeledError
		require.ErrorAs(t, err, &labeled)
		require.True(t, labeled.HasErrorLabel("TransientTransactionError"), "%v", err)
		b.requireWhole(t)
	},

	"RacingNewHandlersLeavesNothingHalf": func(t *testing.T, b *bundle) {
		for round := range 30 {
			id := fmt.Sprintf("e-%d", round)
			b.append(t, msg(id, "k"))
			b.complete(t, b.claimOne(t))
			b.clock.Advance(time.Second)
			together(2, func(i int) {
				var err error
				if i == 0 {
					_, err = b.store.Purge(t.Context(), b.purging("completed"))
				} else {
					err = appendBy(t.Context(), b.store, msg(id, "k", "late"))
				}
				if err != nil {
					t.Error(err)
				}
			})
			b.requireWhole(t)
			b.complete(t, b.claimOne(t, "late"))
		}
	},

	"CountersOfDeadKeysBeginAnew_AndNeverBelowALivingNumber": func(t *testing.T, b *bundle) {
		b.append(t, msg("a-0", "a"), msg("a-1", "a"), msg("b-0", "b"))
		b.append(t, msg("c-0", "c", "g"))
		for range 2 {
			b.complete(t, b.claim(t, 10)...)
		}
		b.append(t, msg("a-2", "a"))
		dead := b.claimOne(t)
		require.NoError(t, b.store.Bury(t.Context(), dead, nil))
		b.clock.Advance(time.Second)
		require.EqualValues(t, 3, b.purge(t, "completed"))
		require.Equal(t, []string{"a", "c"}, b.ids(t, b.keys), "a has a dead letter, c one that is pending")
		b.append(t, msg("a-3", "a"), msg("b-1", "b"))
		require.EqualValues(t, 4, b.doc(t, "h:a-3").Lookup("sequence").AsInt64())
		require.EqualValues(t, 1, b.doc(t, "h:b-1").Lookup("sequence").AsInt64())
	},

	"ACounterLostByHandStartsAboveTheHighestNumber": func(t *testing.T, b *bundle) {
		b.append(t, append(msgs("a", "a", 3), msgs("b", "b", 2)...)...)
		lose := func() {
			_, err := b.keys.DeleteMany(t.Context(), kv())
			require.NoError(t, err)
		}
		lose()
		b.append(t, msg("a-3", "a"))
		require.EqualValues(t, 4, b.doc(t, "h:a-3").Lookup("sequence").AsInt64())
		lose()
		b.append(t, msg("a-4", "a"), msg("a-5", "a"), msg("b-2", "b"))
		require.EqualValues(t, 6, b.doc(t, "h:a-5").Lookup("sequence").AsInt64())
		require.EqualValues(t, 3, b.doc(t, "h:b-2").Lookup("sequence").AsInt64())
		edit(t, b.keys, "a", kv("$set", kv("n", 2))) // set back
		b.append(t, msg("a-6", "a"))
		require.EqualValues(t, 7, b.doc(t, "h:a-6").Lookup("sequence").AsInt64())
		b.append(t, msg("a-7", "a"))
		require.EqualValues(t, 8, b.doc(t, "h:a-7").Lookup("sequence").AsInt64())
		for i := range 8 {
			d := b.claimOneOf(t, "a")
			require.Equal(t, fmt.Sprintf("h:a-%d", i), d.ID)
			b.complete(t, d)
		}
	},

	"RacingAppendsNeverGivesANumberTwice": func(t *testing.T, b *bundle) {
		var published atomic.Int64
		together(3, func(i int) {
			for round := range 40 {
				var err error
				switch i {
				case 0:
					b.clock.Advance(time.Millisecond)
					_, err = b.store.Purge(t.Context(), b.purging("completed"))
				case 1:
					var ds []*outbox.Delivery
					if ds, err = b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}}); err == nil {
						err = b.store.Complete(t.Context(), ds...)
					}
				default:
					err = appendBy(t.Context(), b.store, msg(fmt.Sprintf("e-%d", round), "k"))
					published.Add(1)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		numbers := map[int64]bool{}
		for _, doc := range all(t, b.deliveries) {
			n := doc.Lookup("sequence").AsInt64()
			require.False(t, numbers[n], "%d is there twice", n)
			numbers[n] = true
		}
		b.requireWhole(t)
		var last int64
		for b.stats(t).Pending+b.stats(t).Waiting > 0 {
			d := b.claimOne(t)
			require.Greater(t, d.Sequence, last)
			last = d.Sequence
			b.complete(t, d)
		}
	},

	"WhoseCommitCannotBeToldSaysSo": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		b.append(t, msg("e-1", ""))
		b.complete(t, b.claimOne(t))
		b.clock.Advance(time.Second)
		proxy.OnReply(mongotest.Always(mongotest.Cut, "commitTransaction"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n, err := s.Purge(ctx, b.purging("completed"))
		require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
		require.EqualValues(t, 1, n)
		b.requireEmpty(t)
	},

	"IsRefusedInATransaction": func(t *testing.T, b *bundle) {
		ctx, _ := b.begin(t)
		_, err := b.store.Purge(ctx, b.purging("completed"))
		require.ErrorIs(t, err, mongostore.ErrInvalid)
	},

	"LeavesAnEventAloneWhoseHandlersCannotBeRead": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "", "h", "g"))
		b.complete(t, b.claimOne(t))
		edit(t, b.events, "e-1", kv("$set", kv("handlers", "damaged")))
		b.clock.Advance(time.Second)
		require.EqualValues(t, 1, b.purge(t, "completed"))
		require.Len(t, all(t, b.events), 1, "g has a delivery still")
		require.Equal(t, "g:e-1", b.claimOne(t, "g").ID)
	},
}

// claimOneOf leases what is due of h, gives back what is of another key, and keeps the rest.
func (b *bundle) claimOneOf(t testing.TB, key string) (of *outbox.Delivery) {
	t.Helper()
	for _, d := range b.claim(t, 100) {
		if d.Message.Key == key {
			of = d
			continue
		}
		require.NoError(t, b.store.Release(t.Context(), d))
	}
	require.NotNil(t, of)
	return of
}
