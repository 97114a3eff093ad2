package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/outbox"
)

// TestAClaimDoesNotWaitForALockedDelivery is about a worker that was killed between the
// completion in its transaction and the commit: the server keeps the delivery locked for
// up to a minute, longer than the lease lasts.
func TestAClaimDoesNotWaitForALockedDelivery(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.append(t, msg("locked", ""))
	locked := b.claimOne(t)
	sess, err := b.client.StartSession()
	require.NoError(t, err)
	defer sess.EndSession(t.Context())
	require.NoError(t, sess.StartTransaction())
	require.NoError(t, b.store.Complete(mongo.NewSessionContext(t.Context(), sess), locked))
	b.clock.Advance(time.Minute)
	b.append(t, msgs("free", "", 25)...)

	began := time.Now()
	first := b.claim(t, 10)
	require.Contains(t, []int{9, 10}, len(first), "all but the locked one")
	second := b.claim(t, 20)
	require.Len(t, append(first, second...), 25)
	require.Less(t, time.Since(began), 5*time.Second, "a command that waits for the lock takes 10 s")

	require.NoError(t, sess.AbortTransaction(t.Context()))
	require.Eventually(t, func() bool {
		ds, err := b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
		return err == nil && len(ds) == 1 && ds[0].Message.ID == "locked"
	}, 20*time.Second, 50*time.Millisecond, "once the lock is gone it is delivered")
}

// TestBlockedHeadsDoNotEndAClaim: what operators put back behind running ones of its key
// stays due, and stands in front.
func TestBlockedHeadsDoNotEndAClaim(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	for i := range 80 {
		key := fmt.Sprintf("k-%d", i)
		b.append(t, msg("first-"+key, key), msg("second-"+key, key))
	}
	dead := b.claim(t, 80)
	for _, d := range dead {
		require.NoError(t, b.store.Bury(t.Context(), d, nil))
	}
	require.Len(t, b.claim(t, 80), 80, "the second of each key runs")
	n, err := b.store.Requeue(t.Context(), idsOf(dead)...)
	require.NoError(t, err)
	require.Equal(t, 80, n)
	b.clock.Advance(time.Second)
	b.append(t, msg("free", ""))
	require.Equal(t, []string{"h:free"}, idsOf(b.claim(t, 1)))
}
