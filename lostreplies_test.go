package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestEverySeventhReplyIsLost commits 500 times through a proxy that cuts every
// seventh reply, of first and later commits, while another writer commits up to
// seven times on top of each write whose reply was lost: no wrong conflict, no entry
// twice, no unknown outcome.
func TestEverySeventhReplyIsLost(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for _, retries := range []bool{false, true} {
			t.Run(fmt.Sprintf("with the driver's retries %t", retries), func(t *testing.T) {
				t.Parallel()
				client, database := server.Database(t)
				proxy := mongotest.NewProxy(t, server.Addr(t))
				through := server.Client(t, mongotest.Through(proxy), options.Client().SetRetryWrites(retries))
				lossy := newStore(t, through, database, mongostore.Config{})
				top := &onTop{store: newStore(t, client, database, mongostore.Config{}), made: map[string]int{}}
				const executions, commits, workers = 50, 10, 5 // more workers keep the driver's pool down for good
				proxy.OnReply(top.losing(t, 7))

				var wg sync.WaitGroup
				var again atomic.Int64
				for w := range workers {
					wg.Go(func() {
						for e := w; e < executions; e += workers {
							commitAll(t, lossy, fmt.Sprintf("x-%d", e), commits, &again)
						}
					})
				}
				wg.Wait()
				proxy.OnReply(nil)
				t.Logf("%d replies lost, %d commits on top, %d calls failed before anything was written",
					proxy.Replies().Cut, top.total, again.Load())
				require.Greater(t, proxy.Replies().Cut, executions*commits/7)
				require.Greater(t, top.total, 50)
				for e := range executions {
					id := fmt.Sprintf("x-%d", e)
					addsUp(t, top.store, id, commits+top.made[id])
				}
			})
		}
	})
}

// onTop makes commits on the executions whose reply is being lost.
type onTop struct {
	store *mongostore.Store

	mu    sync.Mutex
	made  map[string]int // commits on top, by execution
	total int
}

// losing cuts every n-th reply, after zero to seven commits on top of the write.
func (o *onTop) losing(t *testing.T, n int64) mongotest.Hook {
	nth := mongotest.EveryNth(n, mongotest.Cut)
	return func(m *mongotest.Message) mongotest.Action {
		action := nth(m)
		if id := writtenID(m.Request); action != mongotest.Pass && id != "" {
			o.commit(t, id, m.N%8)
		}
		return action
	}
}

func (o *onTop) commit(t *testing.T, id string, n int) {
	for range n {
		var x order
		_, err := o.store.Update(context.Background(), id, &x, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
			*ch = everything(fmt.Sprintf("top-%d", x.Version))
			return nil
		})
		if errors.Is(err, mongostore.ErrNotFound) || !noError(t, err, "on top of "+id) {
			return // the first commit did not match
		}
		o.mu.Lock()
		o.made[id]++
		o.total++
		o.mu.Unlock()
	}
}

// writtenID is the execution that a write command is about.
func writtenID(command bson.Raw) string {
	for _, path := range [][]string{{"updates", "0", "q", "_id"}, {"documents", "0", "_id"}} {
		if id, ok := command.Lookup(path...).StringValueOK(); ok {
			return id
		}
	}
	return ""
}

// commitAll makes n commits of a writer's own events, loading again after each
// conflict. A conflict over an event that is in the document would be a wrong one.
func commitAll(t *testing.T, s *mongostore.Store, id string, n int, again *atomic.Int64) {
	for i := range n {
		eventID := fmt.Sprintf("e-%d", i)
		for !commitEvent(t, s, id, eventID) {
			again.Add(1)
			if t.Failed() {
				return
			}
		}
	}
}

// commitEvent loads and commits; false: to be done again.
func commitEvent(t *testing.T, s *mongostore.Store, id, eventID string) (done bool) {
	o := newOrder(id)
	seen, err := s.LoadForEvent(t.Context(), id, eventID, o)
	switch {
	case seen:
		return noError(t, errors.New("a commit that was refused is in the document"), eventID)
	case err != nil && !errors.Is(err, mongostore.ErrNotFound):
		return false // a read whose reply was lost twice
	}
	version := o.Version
	_, err = s.Commit(t.Context(), o, everything(eventID))
	if errors.Is(err, mongostore.ErrUnknownOutcome) {
		return noError(t, err, "unknown outcome while the server is up")
	}
	if err != nil && o.Version != version {
		return noError(t, fmt.Errorf("the version in memory moved: %w", err), eventID)
	}
	return err == nil // else a conflict, or numbers whose reply was lost twice: nothing is written
}

// addsUp checks that an execution holds exactly n commits of everything.
func addsUp(t *testing.T, s *mongostore.Store, id string, n int) {
	t.Helper()
	in, err := s.Inspect(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, in.Summary.Err)
	require.EqualValues(t, n, in.Summary.Version)
	require.Len(t, in.Outbox, n)
	require.Len(t, in.Spawns, n)
	require.Equal(t, min(n, 1000), in.Processed)
	require.Len(t, in.Trace, min(n, 200))
	for i := 1; i < n; i++ {
		require.Greater(t, in.Outbox[i].Seq, in.Outbox[i-1].Seq, "outbox numbers rise in commit order")
		require.Greater(t, in.Spawns[i].Seq, in.Spawns[i-1].Seq, "spawn numbers rise in commit order")
	}
	for i, raw := range in.Trace {
		var step struct{ Index int }
		require.NoError(t, bson.Unmarshal(raw, &step))
		require.Equal(t, n-len(in.Trace)+i, step.Index, "trace indexes have no gap")
	}
}
