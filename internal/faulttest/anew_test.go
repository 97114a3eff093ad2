//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// anew is an execution that knows which of those under its id it is.
type anew struct {
	mongostore.Header
	Incarnation string `json:"incarnation"`
}

// TestExecutionsAreMadeAnew deletes executions and makes others under their ids, while
// clients commit what they had loaded before, and the server is killed on the way: no
// commit may land on an execution that was made since.
func TestExecutionsAreMadeAnew(t *testing.T) {
	t.Parallel()
	from := seed(t)
	cluster := mongotest.Start(t, mongotest.Options{})
	r := &row{Fault: "deleted and made anew under its id, SIGKILL of the server", Topology: "standalone", Store: "executions"}
	store, err := mongostore.New(cluster.Client(), mongostore.Config{Database: "anew"})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	for c := range 8 {
		rnd := rand.New(rand.NewPCG(from, uint64(c)))
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				makeAnew(ctx, store, r, fmt.Sprintf("anew-%d", rnd.IntN(3)), fmt.Sprintf("%d-%d", c, n), rnd)
			}
		})
	}
	for range times(t, 3) {
		time.Sleep(time.Second) // of work, before the next fault
		cluster.Node(0).Kill()
		r.Injected++
		cluster.Node(0).Restart()
	}
	time.Sleep(300 * time.Millisecond)
	stop()
	clients.Wait()
	enter(t, r)
}

// makeAnew loads what there is, waits, and commits to it or deletes it; where there is
// nothing, it makes one.
func makeAnew(ctx context.Context, store *mongostore.Store, r *row, id, name string, rnd *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	x := &anew{Header: mongostore.Header{ID: id}}
	err := store.Load(ctx, id, x)
	switch {
	case errors.Is(err, mongostore.ErrNotFound):
		x.Incarnation = name
	case err != nil:
		return
	}
	time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond) // until it may be another
	if x.Version > 0 && rnd.IntN(3) == 0 {
		_ = store.Delete(ctx, id, x.Version) // whatever comes of it
		return
	}
	if _, err := store.Commit(ctx, x, mongostore.Changes{Emits: []mongostore.Emit{{Event: x.Incarnation}}}); err == nil {
		atomic.AddInt64(&r.Acknowledged, 1)
	}
	in, err := store.Inspect(ctx, id)
	if err != nil {
		return
	}
	for _, e := range in.Outbox {
		if string(e.Event) != string(in.Outbox[0].Event) {
			atomic.AddInt64(&r.Wrong, 1) // a commit to one execution is in another
		}
	}
}
