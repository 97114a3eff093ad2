package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// What is done after a transaction, or a completion, has landed is looked after for two
// seconds only once ctx has ended, though nothing answers: the marks let a repair do it.
func TestNothingAnswersAfterWhatHasLanded(t *testing.T) {
	run(t, tests{
		"a transaction": func(t *testing.T, b *bundle) {
			b.append(t, msg("a", "k"))
			lingers(t, b, "commitTransaction", func(ctx context.Context, s *outbox.Store) error {
				return appendBy(ctx, s, msg("b", "k"))
			})
			require.Equal(t, "waiting", b.status(t, "h:b"))
		},
		"a completion": func(t *testing.T, b *bundle) {
			b.append(t, msg("a", "k"))
			d := b.claimOne(t)
			lingers(t, b, "update", func(ctx context.Context, s *outbox.Store) error { return s.Complete(ctx, d) })
			require.Equal(t, "completed", b.status(t, "h:a"))
		},
		"a purge": func(t *testing.T, b *bundle) {
			b.append(t, msg("a", "k"))
			b.complete(t, b.claimOne(t))
			b.clock.Advance(time.Hour)
			lingers(t, b, "commitTransaction", func(ctx context.Context, s *outbox.Store) error {
				n, err := s.Purge(ctx, outbox.PurgeOptions{CompletedBefore: b.clock.Now()})
				require.EqualValues(t, 1, n)
				return err
			})
			require.Empty(t, all(t, b.deliveries))
		},
	})
}

// lingers cancels ctx at the first read after a command, and lets no read come
// to the server.
func lingers(t *testing.T, b *bundle, after string, do func(ctx context.Context, s *outbox.Store) error) {
	t.Helper()
	proxy := mongotest.NewProxy(t, b.server.Addr(t))
	store := b.on(t, b.server.Client(t, mongotest.Through(proxy)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var cancelled atomic.Int64 // in nanoseconds
	proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
		if m.Command != "aggregate" && m.Command != "find" || proxy.Seen(after) == 0 {
			return mongotest.Pass
		}
		cancelled.CompareAndSwap(0, time.Now().UnixNano())
		cancel()
		return mongotest.Drop
	})
	require.NoError(t, do(ctx, store), "it has landed")
	require.NotZero(t, cancelled.Load(), "nothing was looked at")
	require.Less(t, time.Since(time.Unix(0, cancelled.Load())), 4*time.Second)
}

// The counters of keys are cleaned though ctx ends when the deliveries are gone.
func TestAPurgeThatIsCancelledCleansTheCountersOfWhatItHasDeleted(t *testing.T) {
	run(t, tests{"": func(t *testing.T, b *bundle) {
		b.append(t, msg("a", "k"))
		b.complete(t, b.claimOne(t))
		b.clock.Advance(time.Hour)
		proxy := mongotest.NewProxy(t, b.server.Addr(t))
		store := b.on(t, b.server.Client(t, mongotest.Through(proxy)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
			if m.Command == "commitTransaction" {
				cancel()
			}
			return mongotest.Pass
		})
		_, _ = store.Purge(ctx, outbox.PurgeOptions{CompletedBefore: b.clock.Now()})
		require.Empty(t, all(t, b.deliveries))
		require.Empty(t, all(t, b.keys))
	}})
}
