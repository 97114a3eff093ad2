package mongostore_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// makeAnew deletes o if it is still there, and makes it anew at the same version.
func (b *behind) makeAnew(t *testing.T) {
	_ = b.direct.Delete(context.Background(), "o", 1)
	_, err := b.direct.Commit(context.Background(), newOrder("o"), mongostore.Changes{Emits: []mongostore.Emit{{Event: "new life"}}})
	noError(t, err, "make anew")
}

func TestADeleteLeavesAloneWhatIsMadeAnewAfterItsFirstLook(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for name, second := range map[string]struct{ request, reply mongotest.Action }{
			"before the second delete":           {mongotest.Pass, mongotest.Pass},
			"after the second, its reply lost":   {mongotest.Pass, mongotest.Cut},
			"after the second, its request lost": {mongotest.Cut, mongotest.Pass},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBehind(t, server, mongostore.Config{})
				_, err := b.direct.Commit(t.Context(), newOrder("o"), mongostore.Changes{})
				require.NoError(t, err)
				var again sync.Once
				anew := func() { again.Do(func() { b.makeAnew(t) }) }
				b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
					switch {
					case m.Command == "delete" && m.N == 1:
						return mongotest.Cut // so that the old one still stands at the first look
					case m.Command == "delete" && m.N == 2:
						if second.reply == mongotest.Pass {
							anew()
						}
						return second.request
					}
					return mongotest.Pass
				})
				b.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
					if m.Command == "delete" && second.reply != mongotest.Pass {
						anew()
						return mongotest.Cut
					}
					return mongotest.Pass
				})
				require.NoError(t, b.store.Delete(t.Context(), "o", 1), "the one to delete is gone")
				in, err := b.direct.Inspect(t.Context(), "o")
				require.NoError(t, err)
				require.Len(t, in.Outbox, 1, "the new one stands")
			})
		}
	})
}

// What Delete says it cannot tell apart, it deletes.
func TestADeleteCannotTellWhatIsMadeAnewBeforeItsFirstLook(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), mongostore.Config{})
	_, err := b.direct.Commit(t.Context(), newOrder("o"), mongostore.Changes{})
	require.NoError(t, err)
	b.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
		if m.Command == "delete" && m.N == 1 {
			b.makeAnew(t)
			return mongotest.Cut
		}
		return mongotest.Pass
	})
	require.NoError(t, b.store.Delete(t.Context(), "o", 1))
	require.ErrorIs(t, b.direct.Load(t.Context(), "o", &order{}), mongostore.ErrNotFound)
}

// A commit on top after the reply was lost is seen: the delete did not land.
func TestADeleteThatWasTooLateConflicts(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), mongostore.Config{})
	_, err := b.direct.Commit(t.Context(), newOrder("o"), mongostore.Changes{})
	require.NoError(t, err)
	b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
		if m.Command == "delete" && m.N == 1 {
			b.commitOn(t, "o", 1)
			return mongotest.Cut
		}
		return mongotest.Pass
	})
	require.ErrorIs(t, b.store.Delete(t.Context(), "o", 1), mongostore.ErrConflict)
	require.EqualValues(t, 2, b.load(t, "o").Version)
}

// The execution is gone by then, so that is no failure of the delete.
func TestALostReplyForTheTraceCounterDoesNotFailADelete(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), mongostore.Config{})
	_, err := b.direct.Commit(t.Context(), newOrder("o"), mongostore.Changes{})
	require.NoError(t, err)
	counters := b.executions.Database().Collection("counters")
	_, err = counters.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "trace:o"}, {Key: "n", Value: 3}})
	require.NoError(t, err)
	b.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
		if m.Command == "delete" && m.N == 2 {
			return mongotest.Cut
		}
		return mongotest.Pass
	})
	require.NoError(t, b.store.Delete(t.Context(), "o", 1))
	require.Equal(t, 1, b.proxy.Replies().Cut, "the counter's reply was lost")
	require.ErrorIs(t, b.direct.Load(t.Context(), "o", &order{}), mongostore.ErrNotFound)
}
