package mongotest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// explainCollection has 300 documents, 30 for each value of the indexed field a.
func explainCollection(t *testing.T, server *Server) (*mongo.Collection, *Commands) {
	t.Helper()
	rec := &Commands{}
	_, name := server.Database(t)
	c := server.Client(t, options.Client().SetMonitor(rec.Monitor())).Database(name).Collection("c")
	var docs []any
	for i := range 300 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i % 10}, {Key: "o", Value: bson.A{i}}})
	}
	_, err := c.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	_, err = c.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "a", Value: 1}}})
	require.NoError(t, err)
	rec.Reset()
	return c, rec
}

func TestExplain(t *testing.T) {
	t.Parallel()
	match := bson.D{{Key: "$match", Value: bson.D{{Key: "a", Value: 3}}}}
	union := bson.D{{Key: "$unionWith", Value: bson.D{{Key: "coll", Value: "c"}, {Key: "pipeline", Value: bson.A{
		bson.D{{Key: "$match", Value: bson.D{{Key: "a", Value: 5}}}}}}}}}
	unwind := bson.D{{Key: "$unwind", Value: "$o"}}
	limit := bson.D{{Key: "$limit", Value: 7}}
	sort := bson.D{{Key: "$sort", Value: bson.D{{Key: "o", Value: 1}}}}
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: 1}}}}
	three := bson.D{{Key: "a", Value: 3}}
	aggregate := func(stages ...bson.D) func(context.Context, *mongo.Collection) error {
		return func(ctx context.Context, c *mongo.Collection) error {
			cursor, err := c.Aggregate(ctx, stages)
			if err != nil {
				return err
			}
			return cursor.Close(ctx)
		}
	}
	for _, tc := range []struct {
		name                 string
		run                  func(context.Context, *mongo.Collection) error
		keys, docs, returned int64
		stage                string
	}{
		{"Find", func(ctx context.Context, c *mongo.Collection) error { _, err := c.Find(ctx, three); return err }, 30, 30, 30, "IXSCAN"},
		{"FindByScan", func(ctx context.Context, c *mongo.Collection) error {
			return c.FindOne(ctx, bson.D{{Key: "o", Value: 299}}).Err()
		}, 0, 300, 1, "COLLSCAN"},
		{"UpdateMany", func(ctx context.Context, c *mongo.Collection) error {
			_, err := c.UpdateMany(ctx, three, set)
			return err
		}, 30, 30, 0, "UPDATE"},
		{"UpdateByPipeline", func(ctx context.Context, c *mongo.Collection) error {
			_, err := c.UpdateOne(ctx, three, mongo.Pipeline{set})
			return err
		}, 1, 1, 0, "UPDATE"},
		{"DeleteOfNothing", func(ctx context.Context, c *mongo.Collection) error {
			_, err := c.DeleteMany(ctx, bson.D{{Key: "a", Value: 77}})
			return err
		}, 0, 0, 0, "DELETE"},
		{"FindAndModify", func(ctx context.Context, c *mongo.Collection) error {
			return c.FindOneAndUpdate(ctx, three, set).Err()
		}, 1, 1, 1, "UPDATE"},
		{"AggregatePushedDown", aggregate(match), 30, 30, 30, "IXSCAN"},
		{"AggregateInParts", aggregate(match, unwind, sort, limit), 30, 30, 7, "$unwind"},
		{"AggregateOfTwo", aggregate(match, union), 60, 60, 60, "$unionWith"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, rec := explainCollection(t, Standalone(t))
			require.NoError(t, tc.run(t.Context(), c))
			got := Explain(t, c.Database(), rec.Commands()[0].Body)
			require.Equal(t, []int64{tc.keys, tc.docs, tc.returned}, []int64{got.KeysExamined, got.DocsExamined, got.Returned})
			require.Contains(t, got.Stages, tc.stage)
			require.Equal(t, tc.stage == "COLLSCAN", got.CollectionScan())
		})
	}
}

func TestExplainTakesWhatAReplicaSetClientSends(t *testing.T) {
	t.Parallel()
	c, rec := explainCollection(t, ReplicaSet(t))
	_, err := c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: 1}}}})
	require.NoError(t, err)
	got := Explain(t, c.Database(), rec.Commands()[0].Body)
	require.EqualValues(t, 1, got.DocsExamined)
}
