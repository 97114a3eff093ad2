package mongostore_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// promoted are the fields that Adopt takes from a snapshot.
var promoted = []string{"definition_id", "parent_id", "status", "outcome", "active_path", "updated_at", "finished_at"}

// TestAdoptLeavesANewerCommitAlone: a commit that lands between Adopt's read and its
// write keeps its fields, while the other documents of the batch get theirs.
func TestAdoptLeavesANewerCommitAlone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		client, database := server.Database(t)
		executions := client.Database(database).Collection("executions")
		proxy := mongotest.NewProxy(t, server.Addr(t))
		adopting := newStore(t, server.Client(t, mongotest.Through(proxy)), database, mongostore.Config{})
		committing := newStore(t, client, database, mongostore.Config{})

		overtaken := newOrder("overtaken") // by harel, which leaves the store's fields behind
		_, err := committing.Commit(t.Context(), overtaken, mongostore.Changes{})
		require.NoError(t, err)
		harelWrites(t, executions, "overtaken", 2)
		for _, id := range []string{"calm", "foreign"} {
			harelWrites(t, executions, id, 1)
		}

		newer := map[string]bson.Raw{}
		var once sync.Once
		proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
			if m.Command == "update" {
				once.Do(func() {
					for _, id := range []string{"foreign", "overtaken"} {
						newer[id] = finish(t, committing, executions, id)
					}
				})
			}
			return mongotest.Pass
		})
		changed, err := adopting.Adopt(t.Context())
		require.NoError(t, err)
		require.Len(t, newer, 2, "both were committed while Adopt was at work")
		require.Equal(t, "RUNNING", readDocument(t, executions, "calm").Lookup("status").StringValue())
		for id, want := range newer {
			found := readDocument(t, executions, id)
			require.Equal(t, "DONE", found.Lookup("status").StringValue(), id)
			for _, field := range promoted {
				require.Equal(t, want.Lookup(field), found.Lookup(field), "%s of %s", field, id)
			}
		}
		require.EqualValues(t, 1, changed, "the calm one")

		changed, err = adopting.Adopt(t.Context())
		require.NoError(t, err)
		require.Zero(t, changed, "the commit left nothing to adopt")
	})
}

// harelWrites stores a snapshot as harel does, and none of the store's own fields.
func harelWrites(t *testing.T, executions *mongo.Collection, id string, version int32) {
	t.Helper()
	data := `{"id":"` + id + `","definition_id":"order","status":"RUNNING","active_path":"Wait","outcome":null,"parent_id":null,"updated_at":1704067200.5}`
	set := bson.D{{Key: "definition_id", Value: "order"}, {Key: "version", Value: version}, {Key: "data", Value: data}}
	if version == 1 {
		for _, list := range []string{"outbox", "spawns", "trace", "processed"} {
			set = append(set, bson.E{Key: list, Value: bson.A{}})
		}
		_, err := executions.InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: id}}, append(set, bson.E{Key: "timers", Value: bson.D{}})...))
		require.NoError(t, err)
		return
	}
	_, err := executions.UpdateByID(t.Context(), id, bson.D{{Key: "$set", Value: set}})
	require.NoError(t, err)
}

// finish commits another value in every promoted field, and gives the document then.
func finish(t *testing.T, s *mongostore.Store, executions *mongo.Collection, id string) bson.Raw {
	var o order
	_, err := s.Update(context.Background(), id, &o, mongostore.UpdateOptions{}, func(*mongostore.Changes) error {
		o.DefinitionID, o.ParentID, o.Status, o.Outcome, o.ActivePath = "order-2", "parent", "DONE", "paid", "End"
		return nil
	})
	noError(t, err, "finish "+id)
	doc, err := executions.FindOne(context.Background(), bson.D{{Key: "_id", Value: id}}).Raw()
	noError(t, err, "read "+id)
	return doc
}

func readDocument(t *testing.T, executions *mongo.Collection, id string) bson.Raw {
	t.Helper()
	doc, err := executions.FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
	require.NoError(t, err)
	return doc
}
