package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestARelayWhoseRepliesAreLost drains through a proxy that cuts every fifth reply:
// every entry is delivered, in order by first delivery, and each effect is there once.
func TestARelayWhoseRepliesAreLost(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		client, database := server.Database(t)
		sound := newStore(t, client, database, mongostore.Config{})
		const executions = 60
		var entries []mongostore.Emit
		for i := range 5 {
			entries = append(entries, mongostore.Emit{Event: i})
		}
		for i := range executions {
			o := &ledgerOrder{Header: mongostore.Header{ID: fmt.Sprintf("x-%d", i), Status: "RUNNING"}}
			_, err := sound.Commit(t.Context(), o, mongostore.Changes{Emits: entries})
			require.NoError(t, err)
		}
		proxy := mongotest.NewProxy(t, server.Addr(t))
		lossy := newStore(t, server.Client(t, mongotest.Through(proxy), options.Client().SetRetryWrites(false).SetRetryReads(false)), database, mongostore.Config{})
		var mu sync.Mutex
		first := map[string][]int64{}
		relay, err := lossy.NewRelay(mongostore.Handlers{
			Outbox: func(ctx context.Context, e mongostore.OutboxEntry) error {
				mu.Lock()
				if seqs := first[e.ExecutionID]; len(seqs) == 0 || seqs[len(seqs)-1] < e.Seq {
					first[e.ExecutionID] = append(seqs, e.Seq)
				}
				mu.Unlock()
				var o ledgerOrder
				_, err := lossy.Update(ctx, e.ExecutionID, &o, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
					o.Applied = append(o.Applied, e.Seq)
					ch.Acks = []mongostore.Entry{e}
					return nil
				})
				return err
			},
			Spawn: func(context.Context, mongostore.SpawnEntry) error { return nil },
			Timer: func(context.Context, mongostore.Timer) error { return nil },
		}, mongostore.RelayConfig{
			LeaseFor: time.Second, PollEvery: 50 * time.Millisecond, MaxAttempts: -1,
			Backoff: func(int) time.Duration { return 20 * time.Millisecond },
		})
		require.NoError(t, err)
		proxy.OnReply(mongotest.EveryNth(5, mongotest.Cut))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		require.Eventually(t, func() bool {
			st, err := sound.Stats(t.Context())
			return err == nil && st.Pending == 0
		}, 2*time.Minute, 20*time.Millisecond)
		proxy.OnReply(nil)
		stop()
		require.NoError(t, <-ended)
		t.Logf("%d replies lost", proxy.Replies().Cut)
		require.Greater(t, proxy.Replies().Cut, 50)
		for i := range executions {
			id := fmt.Sprintf("x-%d", i)
			var o ledgerOrder
			require.NoError(t, sound.Load(t.Context(), id, &o))
			require.Len(t, o.Applied, 5)
			require.Equal(t, first[id], o.Applied, "each once, and in order")
		}
	})
}

// TestLeaseCallsWhoseReplyIsLost: to do so again is right, and is told apart from a
// lease that is lost.
func TestLeaseCallsWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for name, call := range map[string]func(s *mongostore.Store, l *mongostore.Lease) error{
			"Complete": func(s *mongostore.Store, l *mongostore.Lease) error { return s.Complete(context.Background(), l) },
			"Release":  func(s *mongostore.Store, l *mongostore.Lease) error { return s.Release(context.Background(), l) },
			"Retry":    func(s *mongostore.Store, l *mongostore.Lease) error { return s.Retry(context.Background(), l, 0, nil) },
			"Bury": func(s *mongostore.Store, l *mongostore.Lease) error {
				return s.Bury(context.Background(), l.Outbox[0], errors.New("x"))
			},
			"Requeue": func(s *mongostore.Store, l *mongostore.Lease) error {
				if err := s.Bury(context.Background(), l.Outbox[0], nil); err != nil {
					return err
				}
				n, err := s.Requeue(context.Background(), l.Outbox[0])
				if n != 1 {
					return fmt.Errorf("%d requeued", n)
				}
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				client, database := server.Database(t)
				proxy := mongotest.NewProxy(t, server.Addr(t))
				s := newStore(t, server.Client(t, mongotest.Through(proxy), options.Client().SetRetryWrites(false)), database, mongostore.Config{})
				_, err := newStore(t, client, database, mongostore.Config{}).Commit(t.Context(), newOrder("o"), mongostore.Changes{Emits: []mongostore.Emit{{}, {}}})
				require.NoError(t, err)
				proxy.OnReply(mongotest.Once(mongotest.Cut, "update")) // the claim's
				leases, err := s.Claim(t.Context(), mongostore.ClaimOptions{})
				require.NoError(t, err)
				require.Len(t, leases, 1, "read back by the token, whatever the reply was")
				proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
				require.NoError(t, call(s, leases[0]))
				require.Equal(t, 2, proxy.Replies().Cut)
			})
		}
	})
}
