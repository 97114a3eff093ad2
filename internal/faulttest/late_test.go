//go:build faults

package faulttest_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestAWriteArrivesAfterItsClientHasGone lets writes reach the server only after their
// connection is lost and the caller has its answer: what stands in the document by then
// must be what the caller was told.
func TestAWriteArrivesAfterItsClientHasGone(t *testing.T) {
	t.Parallel()
	cluster := mongotest.Start(t, mongotest.Options{})
	r := &row{Fault: "a write arrives after its connection is lost", Topology: "standalone", Store: "executions"}
	proxy := mongotest.NewProxy(t, cluster.Node(0).Addr())
	store, err := mongostore.New(cluster.Client(mongotest.Through(proxy), options.Client().SetRetryWrites(false)), mongostore.Config{})
	require.NoError(t, err)
	sound, err := mongostore.New(cluster.Client(), mongostore.Config{})
	require.NoError(t, err)
	require.NoError(t, sound.Setup(t.Context()))
	for i := range times(t, 20) {
		id := fmt.Sprintf("late-%d", i)
		x := &content{Header: mongostore.Header{ID: id}}
		if i%2 == 0 { // else the late one is an insert
			_, err := sound.Commit(t.Context(), x, mongostore.Changes{})
			require.NoError(t, err)
		}
		before := x.register()
		write := newLateWrite(proxy)
		x.Content = "late"
		_, err := store.Commit(t.Context(), x, mongostore.Changes{Processed: "late"})
		r.Injected++
		write.arrives(t)

		now := &content{}
		if err := sound.Load(t.Context(), id, now); !errors.Is(err, mongostore.ErrNotFound) {
			require.NoError(t, err)
		}
		switch {
		case err == nil && now.register() == register{before.version + 1, "late"}:
			r.Acknowledged++
		case err == nil && now.register() == before:
			r.Lost++
		case err == nil:
			r.Doubled++ // it is there, and the version says that something else is too
		case now.register() != before && !errors.Is(err, mongostore.ErrUnknownOutcome):
			r.Wrong++
			t.Logf("%s was told to have failed (%v), and is there", id, err)
		}
	}
	enter(t, r)
}

// lateWrite cuts the client of the next write off, and hands the write on when let.
type lateWrite struct {
	let, answered chan struct{}
	conn          atomic.Int64
}

func newLateWrite(proxy *mongotest.Proxy) *lateWrite {
	l := &lateWrite{let: make(chan struct{}), answered: make(chan struct{})}
	proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
		if (m.Command == "insert" || m.Command == "update") && l.conn.CompareAndSwap(0, int64(m.Conn)) {
			return mongotest.Strand(l.let)
		}
		return mongotest.Pass
	})
	proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
		if int64(m.Conn) == l.conn.Load() {
			close(l.answered)
		}
		return mongotest.Pass
	})
	return l
}

// arrives returns when the server has done it.
func (l *lateWrite) arrives(t *testing.T) {
	t.Helper()
	close(l.let)
	select {
	case <-l.answered:
	case <-time.After(patience):
		t.Fatal("the write did not arrive")
	}
}
