package outbox_test

import (
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
