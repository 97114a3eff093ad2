package mongostore_test

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestManyWritersOfOneExecution: 16 goroutines, 2,000 commits; make test/long runs
// 64 and 10,000 by MONGOSTORE_TEST_WRITERS and MONGOSTORE_TEST_COMMITS.
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
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for i := w; i < commits; i += writers {
						var o order
						id := fmt.Sprintf("e-%d", i)
						_, err := stores[w%2].Update(t.Context(), "one", &o, mongostore.UpdateOptions{EventID: id, Create: true},
							func(ch *mongostore.Changes) error {
								o.Total++
								*ch = everything("")
								return nil
							})
						noError(t, err, id)
					}
				})
			}
			wg.Wait()
			in, err := stores[0].Inspect(t.Context(), "one")
			require.NoError(t, err)
			require.EqualValues(t, commits, in.Summary.Version)
			require.Equal(t, commits, in.Processed)
			require.Len(t, in.Outbox, commits)
			for i := 1; i < commits; i++ {
				require.Greater(t, in.Outbox[i].Seq, in.Outbox[i-1].Seq)
				require.Greater(t, in.Spawns[i].Seq, in.Spawns[i-1].Seq)
			}
			require.Len(t, in.Trace, 200)
			var o order
			require.NoError(t, stores[0].Load(t.Context(), "one", &o))
			require.Equal(t, commits, o.Total, "no update is lost")
		})
	}
}

func fromEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}
