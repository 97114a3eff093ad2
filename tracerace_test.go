package mongostore_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// A number that leaves no room for those after it would end the execution.
func TestAStepThatNamesAnIndexWithoutRoomAfterIt(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	o := newOrder("o")
	_, err := s.Commit(t.Context(), o, mongostore.Changes{})
	require.NoError(t, err)
	step := func(index any) bson.D { return bson.D{{Key: "index", Value: index}} }
	for _, index := range []any{
		int64(math.MaxInt64), int64(math.MaxInt64 - 1), int64(1) << 53, float64(1 << 53), float64(1 << 62),
		math.NaN(), math.Inf(1), 0.5, -1, int64(math.MinInt64),
	} {
		err := s.AppendTrace(t.Context(), "o", step(index))
		var refused *mongostore.ValidationError
		require.ErrorAs(t, err, &refused, "%v", index)
		require.ErrorIs(t, err, mongostore.ErrInvalid)
		require.Equal(t, "step.index", refused.Field)
	}
	in, err := s.Inspect(t.Context(), "o")
	require.NoError(t, err)
	require.Empty(t, in.Trace, "nothing was written")

	require.NoError(t, s.AppendTrace(t.Context(), "o", step(int64(1)<<53-1)), "the last one that is taken")
	require.NoError(t, s.AppendTrace(t.Context(), "o", bson.D{}))
	for range 2 { // from memory, and as loaded
		_, err = s.Commit(t.Context(), o, mongostore.Changes{Trace: bson.D{}})
		require.NoError(t, err)
		require.NoError(t, s.Load(t.Context(), "o", o))
	}
	require.Equal(t, []int64{1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<53 + 2}, traceIndexes(t, s, "o"))
}

func traceIndexes(t *testing.T, s *mongostore.Store, id string) (indexes []int64) {
	t.Helper()
	var steps []struct {
		Index int64 `bson:"index"`
	}
	require.NoError(t, s.ReadTrace(t.Context(), id, &steps))
	for _, step := range steps {
		indexes = append(indexes, step.Index)
	}
	return indexes
}

// AppendTrace takes the number of the commit's step each time that it is sent. It is
// no other commit, so it is no conflict, and it must not keep one from landing.
func TestACommitLandsThoughAppendTraceIsFasterEachTime(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for name, old := range map[string]int64{"first": 0, "later": 1} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBehind(t, server, mongostore.Config{})
				o := newOrder("o")
				for range old {
					_, err := b.store.Commit(t.Context(), o, mongostore.Changes{Trace: bson.D{}})
					require.NoError(t, err)
				}
				var raced atomic.Int64
				b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
					if m.Command == "update" || m.Command == "insert" {
						raced.Add(1)
						noError(t, b.direct.AppendTrace(context.Background(), "o", bson.D{}), "append")
					}
					return mongotest.Pass
				})
				for n := range int64(2) {
					res, err := b.store.Commit(t.Context(), o, everything("e"))
					require.NoError(t, err)
					require.Equal(t, old+n+1, res.Version)
				}
				b.proxy.OnRequest(nil)
				require.Greater(t, raced.Load(), int64(4), "each commit was sent more than once")

				_, err := b.store.Commit(t.Context(), o, mongostore.Changes{Trace: bson.D{}})
				require.NoError(t, err, "and the next one goes on from there")
				require.Equal(t, old+3, b.load(t, "o").Version)
				indexes := traceIndexes(t, b.direct, "o")
				require.Len(t, indexes, int(old+raced.Load())+3)
				for i, index := range indexes {
					require.EqualValues(t, i, index)
				}
				in, err := b.direct.Inspect(t.Context(), "o")
				require.NoError(t, err)
				require.Len(t, in.Outbox, 2, "everything else landed once")
			})
		}
	})
}
