package rawdocs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/internal/rawdocs"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

func TestAll(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	coll := client.Database(database).Collection("docs")
	var want []any
	for i := range 250 {
		want = append(want, bson.D{{Key: "_id", Value: int32(i)}, {Key: "text", Value: "some"}})
	}
	_, err := coll.InsertMany(t.Context(), want)
	require.NoError(t, err)
	sorted := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})
	for name, batch := range map[string]int32{"in one batch": 300, "in several": 100} {
		cur, err := coll.Find(t.Context(), bson.D{}, sorted.SetBatchSize(batch))
		require.NoError(t, err)
		docs, err := rawdocs.All(t.Context(), cur)
		require.NoError(t, err)
		require.Len(t, docs, 250, name)
		for i, doc := range docs {
			require.EqualValues(t, i, doc.Lookup("_id").Int32(), name)
		}
		require.Zero(t, cur.ID(), "it is closed")
	}
	cur, err := coll.Find(t.Context(), bson.D{{Key: "_id", Value: "none"}})
	require.NoError(t, err)
	docs, err := rawdocs.All(t.Context(), cur)
	require.NoError(t, err)
	require.Empty(t, docs)

	ctx, cancel := context.WithCancel(t.Context())
	cur, err = coll.Find(ctx, bson.D{}, sorted.SetBatchSize(100))
	require.NoError(t, err)
	cancel()
	_, err = rawdocs.All(ctx, cur)
	require.ErrorIs(t, err, context.Canceled)
}
