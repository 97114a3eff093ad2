package mongostore_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestManyWritersOfOneExecution: 16 goroutines, 2,000 commits, and a relay that
// drains what they emit; make test/long runs 64 and 10,000 by
// MONGOSTORE_TEST_WRITERS and MONGOSTORE_TEST_COMMITS.
func TestManyWritersOfOneExecution(t *testing.T) {
	t.Parallel()
	writers, commits := fromEnv("MONGOSTORE_TEST_WRITERS", 16), fromEnv("MONGOSTORE_TEST_COMMITS", 2000)
	for name, cfg := range map[string]mongostore.Config{
		"numbers one commit at a time": {ProcessedMax: -1},
		"numbers in blocks":            {ProcessedMax: -1, SeqBlock: 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, database := mongotest.Standalone(t).Database(t)
			// Two stores, as in two processes: each has blocks of its own.
			stores := []*mongostore.Store{newStore(t, client, database, cfg), newStore(t, client, database, cfg)}
			done := make(chan struct{})
			relayed := make(chan *relay, 1)
			go func() { relayed <- drain(t, stores[0], done) }()
			var results commitLog
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for i := w; i < commits; i += writers {
						results.add(count(t, stores[w%2], fmt.Sprintf("e-%d", i)))
					}
				})
			}
			wg.Wait()
			close(done)
			addUp(t, stores[0], commits, results.list, <-relayed)
		})
	}
}

// count adds one to the execution, with everything that a commit can hold.
func count(t *testing.T, s *mongostore.Store, eventID string) mongostore.CommitResult {
	var o order
	res, err := s.Update(t.Context(), "one", &o, mongostore.UpdateOptions{EventID: eventID, Create: true},
		func(ch *mongostore.Changes) error {
			o.Total++
			*ch = everything(eventID)
			return nil
		})
	noError(t, err, eventID)
	return res
}

// commitLog is what the commits said of themselves.
type commitLog struct {
	mu   sync.Mutex
	list []mongostore.CommitResult
}

func (l *commitLog) add(res mongostore.CommitResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, res)
}

// relay is what was swept, by number.
type relay struct{ outbox, spawns map[int64]int }

// drain delivers and acks until done is closed and nothing is pending any more.
func drain(t *testing.T, s *mongostore.Store, done <-chan struct{}) *relay {
	r := &relay{outbox: map[int64]int{}, spawns: map[int64]int{}}
	for last := false; ; {
		outbox, err := s.PendingOutbox(t.Context(), 0)
		noError(t, err, "sweep the outbox")
		spawns, err := s.PendingSpawns(t.Context(), 0)
		noError(t, err, "sweep the spawns")
		for _, e := range outbox {
			r.outbox[e.Seq]++
		}
		for _, e := range spawns {
			r.spawns[e.Seq]++
		}
		noError(t, s.AckOutbox(t.Context(), outbox...), "ack the outbox")
		noError(t, s.AckSpawn(t.Context(), spawns...), "ack the spawns")
		if last && len(outbox)+len(spawns) == 0 || t.Failed() {
			return r
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
}

// addUp checks version, numbers, dedupe, trace and snapshot against what the
// commits said and what the relay saw.
func addUp(t *testing.T, s *mongostore.Store, commits int, results []mongostore.CommitResult, r *relay) {
	require.Len(t, results, commits)
	slices.SortFunc(results, func(a, b mongostore.CommitResult) int { return cmp.Compare(a.Version, b.Version) })
	for i, res := range results {
		require.EqualValues(t, i+1, res.Version, "each version was made once")
		require.False(t, res.Deduplicated)
		require.Equal(t, 1, r.outbox[res.OutboxSeqs[0]], "each event was pending until it was acked, once")
		require.Equal(t, 1, r.spawns[res.SpawnSeqs[0]])
		if i > 0 {
			require.Greater(t, res.OutboxSeqs[0], results[i-1].OutboxSeqs[0], "numbers rise in commit order")
			require.Greater(t, res.SpawnSeqs[0], results[i-1].SpawnSeqs[0])
		}
	}
	require.Len(t, r.outbox, commits, "nothing else was pending")
	require.Len(t, r.spawns, commits)
	in, err := s.Inspect(t.Context(), "one")
	require.NoError(t, err)
	require.NoError(t, in.Summary.Err)
	require.EqualValues(t, commits, in.Summary.Version)
	require.Equal(t, commits, in.Processed)
	require.Empty(t, in.Outbox)
	require.Empty(t, in.Spawns)
	require.Len(t, in.Trace, 200)
	var o order
	require.NoError(t, s.Load(t.Context(), "one", &o))
	require.Equal(t, commits, o.Total, "no update is lost")
}

func fromEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}
