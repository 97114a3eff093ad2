package mongostore_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestACommitThatWasSeenAndThenLostIsSentAgain loses the reply to a commit, lets the store
// see that it has landed, and then takes it out of the document, as a standalone does that
// is killed before its journal is written: what is acknowledged must be there.
func TestACommitThatWasSeenAndThenLostIsSentAgain(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for name, after := range map[string]mongotest.Action{"while the store waits": mongotest.Pass, "and the connection too": mongotest.Cut} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b, o, before := committedOnce(t, server)
				var updates, lost atomic.Int64
				b.proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
				b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
					if m.Command != "update" || updates.Add(1) != 2 { // the second waits for the journal
						return mongotest.Pass
					}
					res, err := b.executions.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: o.ID}, {Key: "version", Value: 2}}, before)
					if noError(t, err, "lose the commit") {
						lost.Add(res.ModifiedCount)
					}
					return after
				})

				res, err := b.store.Commit(t.Context(), o, everything("ev-2"))
				require.NoError(t, err)
				require.EqualValues(t, 1, lost.Load(), "it had landed, and was lost")
				require.EqualValues(t, 2, res.Version)
				in, err := b.direct.Inspect(t.Context(), o.ID)
				require.NoError(t, err)
				require.EqualValues(t, 2, in.Summary.Version)
				require.Len(t, in.Outbox, 2)
				require.Equal(t, res.OutboxSeqs[0], in.Outbox[1].Seq)
			})
		}
	})
}

// committedOnce is a store behind a proxy, an order that was committed with ev-1, and its
// document, for a server that loses what comes after it.
func committedOnce(t *testing.T, server *mongotest.Server) (b *behind, o *order, before bson.D) {
	t.Helper()
	b, o = newBehind(t, server, mongostore.Config{}), newOrder("ord-1")
	_, err := b.direct.Commit(t.Context(), o, everything("ev-1"))
	require.NoError(t, err)
	require.NoError(t, b.executions.FindOne(t.Context(), bson.D{{Key: "_id", Value: o.ID}}).Decode(&before))
	return b, o, before
}

// TestAnEventThatWasSeenAndThenLostIsNotToldAsHandled takes a commit out of the document
// between the read that shows it and the answer, as a standalone does that is killed before
// its journal is written: who is told that an event was handled forgets it.
func TestAnEventThatWasSeenAndThenLostIsNotToldAsHandled(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		b, o, before := committedOnce(t, server)
		_, err := b.direct.Commit(t.Context(), o, everything("ev-2"))
		require.NoError(t, err)
		b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
			if m.Command == "update" {
				_, err := b.executions.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: o.ID}, {Key: "version", Value: 2}}, before)
				noError(t, err, "lose the commit")
			}
			return mongotest.Pass
		})

		var got order
		seen, err := b.store.LoadForEvent(t.Context(), o.ID, "ev-2", &got)
		require.NoError(t, err)
		require.False(t, seen)
		require.EqualValues(t, 1, got.Version, "as it is now")
		seen, err = b.store.LoadForEvent(t.Context(), o.ID, "ev-1", &got)
		require.NoError(t, err)
		require.True(t, seen)
	})
}

// TestAnExecutionThatIsDeletedWhileTheJournalIsAwaitedLeavesTheCallersValueAlone deletes
// the document between the read and the wait.
func TestAnExecutionThatIsDeletedWhileTheJournalIsAwaitedLeavesTheCallersValueAlone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		b := newBehind(t, server, mongostore.Config{})
		_, err := b.direct.Commit(t.Context(), newOrder("ord-1"), everything("ev-1"))
		require.NoError(t, err)
		b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
			if m.Command == "update" {
				_, err := b.executions.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "ord-1"}})
				noError(t, err, "delete")
			}
			return mongotest.Pass
		})
		got := order{Total: 42}
		_, err = b.store.LoadForEvent(t.Context(), "ord-1", "ev-1", &got)
		require.ErrorIs(t, err, mongostore.ErrNotFound)
		require.Equal(t, order{Total: 42}, got)
	})
}

// TestAHandledEventInASnapshotSession: what such a session shows stays as it was, and no
// wait brings it nearer to what is stored now.
func TestAHandledEventInASnapshotSession(t *testing.T) {
	t.Parallel()
	server := mongotest.ReplicaSet(t)
	client, database := server.Database(t)
	s := newStore(t, client, database, mongostore.Config{ProcessedMax: 1})
	o := newOrder("ord-1")
	_, err := s.Commit(t.Context(), o, mongostore.Changes{Processed: "ev-1"})
	require.NoError(t, err)
	sess, err := client.StartSession(options.Session().SetSnapshot(true))
	require.NoError(t, err)
	defer sess.EndSession(context.Background())
	ctx := mongo.NewSessionContext(t.Context(), sess)
	var got order
	require.NoError(t, s.Load(ctx, "ord-1", &got))
	_, err = s.Commit(t.Context(), o, mongostore.Changes{Processed: "ev-2"})
	require.NoError(t, err)
	seen, err := s.LoadForEvent(ctx, "ord-1", "ev-1", &got)
	require.NoError(t, err)
	require.True(t, seen, "of the snapshot")
}
