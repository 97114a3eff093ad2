package outbox_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

func TestRequeue(t *testing.T) { run(t, requeueTests) }

// bury makes dead letters of all that the handler h has of a key, one after the other.
func (b *bundle) bury(t testing.TB, n int) (ids []string) {
	t.Helper()
	for range n {
		d := b.claimOne(t)
		require.NoError(t, b.store.Bury(t.Context(), d, errors.New("no")))
		ids = append(ids, d.ID)
	}
	return ids
}

func (b *bundle) requeue(t testing.TB, ids ...string) int {
	t.Helper()
	n, err := b.store.Requeue(t.Context(), ids...)
	require.NoError(t, err)
	return n
}

var requeueTests = tests{
	"DeliversADeadLetterAgain_ItsAttemptsCountedAnew": func(t *testing.T, b *bundle) {
		for _, key := range []string{"", "k"} {
			b.append(t, msg("e-"+key, key))
			require.NoError(t, b.store.Retry(t.Context(), b.claimOne(t), 0, nil))
			id := b.bury(t, 1)[0]
			require.Empty(t, b.claim(t, 10))
			now := b.clock.Advance(time.Hour)
			require.Equal(t, 1, b.requeue(t, id))
			doc := b.doc(t, id)
			require.Equal(t, []any{"pending", int64(0), int64(1), now, now}, []any{
				doc.Lookup("status").StringValue(), doc.Lookup("attempts").AsInt64(), doc.Lookup("requeues").AsInt64(),
				doc.Lookup("due_at").Time().UTC(), doc.Lookup("available_at").Time().UTC(),
			})
			for _, gone := range []string{"token", "finished_at", "waiting_lane", "suspect_since"} {
				require.Zero(t, doc.Lookup(gone), gone)
			}
			d := b.claimOne(t)
			require.Equal(t, []any{id, 1}, []any{d.ID, d.Attempt})
			b.complete(t, d)
		}
	},

	"CountsOnlyWhatWasDead": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 4)...)
		ds := b.claim(t, 3)
		b.complete(t, ds[0])
		require.NoError(t, b.store.Bury(t.Context(), ds[1], nil))
		before := all(t, b.deliveries)
		require.Equal(t, 0, b.requeue(t))
		require.Equal(t, 0, b.requeue(t, "h:never", ds[0].ID, ds[2].ID, "h:e-3"))
		require.Equal(t, before, all(t, b.deliveries))
		require.Equal(t, 1, b.requeue(t, ds[1].ID, ds[1].ID, "h:never"))
		require.Equal(t, 0, b.requeue(t, ds[1].ID))
	},

	"TakesItsPlaceAmongThoseNotDeliveredYet": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 4)...)
		ids := b.bury(t, 2)
		b.complete(t, b.claimOne(t))
		require.Equal(t, 2, b.requeue(t, ids[1], ids[0]))
		for _, want := range []int{0, 1, 3} {
			d := b.claimOne(t)
			require.Equal(t, fmt.Sprintf("h:e-%d", want), d.ID)
			b.complete(t, d)
		}
	},

	"ManyOfOneKeyComeBackInTheirOrder": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 8)...)
		ids := b.bury(t, 8)
		require.Equal(t, 8, b.requeue(t, ids...))
		require.Equal(t, int64(1), b.stats(t).Pending)
		for _, id := range ids {
			d := b.claimOne(t)
			require.Equal(t, id, d.ID)
			b.complete(t, d)
		}
	},

	"WhosePromotionFailsIsRepaired": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		b.append(t, msg("e-1", "k"))
		id := b.bury(t, 1)[0]
		proxy.OnRequest(mongotest.Once(mongotest.Cut, "aggregate"))
		n, err := s.Requeue(t.Context(), id)
		require.Error(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, "waiting", b.status(t, id))
		eventually(t, func() bool { return len(b.claim(t, 10)) == 1 }, "the repair finds it")
	},

	"WhoseReplyIsLostHasAnUnknownOutcome_AndStrandsNothing": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		b.append(t, msg("e-1", "k"))
		id := b.bury(t, 1)[0]
		proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
		_, err := s.Requeue(t.Context(), id)
		require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
		require.Equal(t, "waiting", b.status(t, id))
		_, err = s.Requeue(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, id, b.claimOne(t).ID, "to do it again is right, whatever is counted")
	},

	"IsRefusedInATransaction": func(t *testing.T, b *bundle) {
		ctx, _ := b.begin(t)
		_, err := b.store.Requeue(ctx, "h:e-1")
		require.ErrorIs(t, err, mongostore.ErrInvalid)
	},

	"CannotStartWhileALaterOneRuns": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 3)...)
		id := b.bury(t, 1)[0]
		running := b.claimOne(t)
		b.requeue(t, id)
		require.Empty(t, b.claim(t, 10))
		require.NoError(t, b.store.Release(t.Context(), running))
		require.Equal(t, id, b.claimOne(t).ID)
		require.Empty(t, b.claim(t, 10), "what was released waits behind it")
	},

	"OfADamagedCountGoesOn": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", ""))
		id := b.bury(t, 1)[0]
		edit(t, b.deliveries, id, kv("$set", kv("requeues", "many")))
		require.Equal(t, 1, b.requeue(t, id))
		require.Equal(t, id, b.claimOne(t).ID)
	},
}
