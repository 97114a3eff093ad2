package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// A primary that is cut off takes writes and shows them, and loses them again. Here the
// majority seems to be out of reach for all updates: they land, and that is no success.
func TestWhatTheMajorityMayNotHaveIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	client := mongotest.Start(t, mongotest.Options{ReplicaSet: true}).Client()
	store, err := outbox.New(client, outbox.Config{})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	const writeConcernFailed = 64
	outOfReach := mongotest.FailPoint{Commands: []string{"update"}, WriteConcernError: bson.D{{Key: "code", Value: writeConcernFailed}, {Key: "errmsg", Value: "waiting for replication timed out"}}}

	for name, end := range ends {
		require.NoError(t, appendBy(t.Context(), store, msg("e-"+name, "k", name)))
		claim := outbox.ClaimOptions{Handlers: []string{name}, LeaseFor: 500 * time.Millisecond}
		back := mongotest.FailCommand(t, client, outOfReach)
		ds, err := store.Claim(t.Context(), claim)
		require.Error(t, err, name)
		require.Empty(t, ds, name)
		back()

		eventually(t, func() bool { // when that lease ends
			ds, err = store.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{name}})
			return err == nil && len(ds) == 1
		}, name)
		back = mongotest.FailCommand(t, client, outOfReach)
		err = end(t.Context(), store, ds[0])
		require.Error(t, err, name)
		if name != "Extend" {
			require.ErrorIs(t, err, mongostore.ErrUnknownOutcome, name)
		}
		back()
		require.NoError(t, end(t.Context(), store, ds[0]), "%s again", name)
	}
}
