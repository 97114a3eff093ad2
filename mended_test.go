package mongostore_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// An attempt is mended while its outcome is asked, what it sends lands, and again
// the reply is lost: committed again, the result must be that of what landed.
func TestTheResultOfATryThatWasMendedWhileItWasOpen(t *testing.T) {
	t.Parallel()
	for name, block := range map[string]int{"numbers one by one": 0, "numbers in blocks": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, cfg := mongotest.Standalone(t), quick
			cfg.SeqBlock = block
			b := newBehind(t, server, cfg)
			other := newStore(t, server.Client(t), b.executions.Database().Name(), cfg)
			emit := func(event string) mongostore.Changes {
				return mongostore.Changes{Processed: "e", Emits: []mongostore.Emit{{Event: event}}}
			}
			_, err := b.store.Commit(t.Context(), newOrder("first, for its block"), emit("x"))
			require.NoError(t, err)
			_, err = other.Commit(t.Context(), newOrder("o"), emit("a"))
			require.NoError(t, err)
			cached := newOrder("o")
			cached.Version = 1 // it knows nothing of the number and the event id that are there
			var updates atomic.Int64
			b.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
				if m.Command == "update" {
					updates.Add(1)
					return mongotest.Cut
				}
				if m.Command == "find" && updates.Load() >= 2 {
					return mongotest.Cut
				}
				return mongotest.Pass
			})
			_, err = b.store.Commit(t.Context(), cached, emit("b"))
			require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
			b.proxy.OnReply(nil)
			res, err := b.store.Commit(t.Context(), cached, emit("b"))
			require.NoError(t, err)
			in, err := b.direct.Inspect(t.Context(), "o")
			require.NoError(t, err)
			require.Len(t, in.Outbox, 2)
			require.Equal(t, []int64{in.Outbox[1].Seq}, res.OutboxSeqs)
			require.Greater(t, in.Outbox[1].Seq, in.Outbox[0].Seq)
			require.True(t, res.Deduplicated, "the event id was there before")
		})
	}
}

func TestCreateChildAfterAnOpenTryWithOtherContents(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), quick)
	child := newOrder("c")
	child.ParentID = "p"
	b.unknown(t, child, mongostore.Changes{}, mongotest.Pass, mongotest.Cut)
	child.Total = 5 // a time stamp, say
	res, err := b.store.CreateChild(t.Context(), mongostore.SpawnEntry{ParentID: "p", ChildID: "c"}, child, mongostore.Changes{})
	require.NoError(t, err, "the child of this parent is there")
	require.True(t, res.Deduplicated)
	require.Zero(t, b.load(t, "c").Total, "as the first try made it")
}

// E11000 tells of an index, and this one is not about the id.
func TestAUniqueIndexOfSomebodyElseIsNoConflict(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	unique := mongo.IndexModel{Keys: bson.D{{Key: "active_path", Value: 1}}, Options: options.Index().SetUnique(true)}
	_, err := client.Database(database).Collection("executions").Indexes().CreateOne(t.Context(), unique)
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), newOrder("a"), mongostore.Changes{})
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), newOrder("b"), mongostore.Changes{})
	require.NotErrorIs(t, err, mongostore.ErrConflict)
	require.NotErrorIs(t, err, mongostore.ErrNotFound)
	require.True(t, mongo.IsDuplicateKeyError(err), "the server's own error: %v", err)
}

// harel keeps every event id. A store that takes over such a document cuts them to
// ProcessedMax, at once and without holding the commit up.
func TestADocumentWithSixtyThousandEventIDs(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		client, database := server.Database(t)
		const opTimeout = 10 * time.Second
		s := newStore(t, client, database, mongostore.Config{ProcessedMax: 500, OpTimeout: opTimeout})
		eventID := func(n int) string { return fmt.Sprintf("event-%018d", n) }
		const many = 60_000
		ids := make([]string, many)
		for n := range ids {
			ids[n] = eventID(n)
		}
		_, err := client.Database(database).Collection("executions").InsertOne(t.Context(), bson.D{
			{Key: "_id", Value: "o"}, {Key: "definition_id", Value: "order"}, {Key: "version", Value: 7},
			{Key: "data", Value: `{"id":"o","definition_id":"order","status":"NEW","total":3}`},
			{Key: "outbox", Value: bson.A{}}, {Key: "spawns", Value: bson.A{}}, {Key: "processed", Value: ids}, {Key: "timers", Value: bson.D{}},
		})
		require.NoError(t, err)

		start := time.Now()
		var o order
		require.NoError(t, s.Load(t.Context(), "o", &o))
		require.Equal(t, 3, o.Total)
		res, err := s.Commit(t.Context(), &o, mongostore.Changes{Processed: "ours"})
		require.NoError(t, err)
		require.EqualValues(t, 8, res.Version)
		require.Less(t, time.Since(start), opTimeout/2)

		in, err := s.Inspect(t.Context(), "o")
		require.NoError(t, err)
		require.Equal(t, 500, in.Processed)
		for id, kept := range map[string]bool{"ours": true, eventID(many - 1): true, eventID(many - 499): true, eventID(many - 500): false, eventID(0): false} {
			seen, err := s.IsProcessed(t.Context(), "o", id)
			require.NoError(t, err)
			require.Equal(t, kept, seen, id)
		}
	})
}
