package indexes_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/indexes"
	"github.com/execstore/mongostore/internal/mongoerr"
	"github.com/execstore/mongostore/internal/mongotest"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

var specs = []indexes.Spec{
	{Name: "a_b", Keys: indexes.Ascending("a", "b")},
	{Name: "newest", Keys: bson.D{{Key: "at", Value: -1}}, Sparse: true},
	{Name: "done", Keys: indexes.Ascending("done", "_id"), Only: "done"},
}

func collection(t *testing.T) *mongo.Collection {
	t.Helper()
	client, database := mongotest.Standalone(t).Database(t)
	return client.Database(database).Collection("c")
}

func add(ctx context.Context, coll *mongo.Collection, keys bson.D, opts *options.IndexOptionsBuilder) error {
	_, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: keys, Options: opts})
	return err
}

// requireMismatch: the error names what is in the way.
func requireMismatch(t *testing.T, err error, name, reason string) {
	t.Helper()
	var m *indexes.Mismatch
	require.ErrorAs(t, err, &m)
	require.Equal(t, name, m.Name)
	require.Contains(t, m.Reason, reason)
	require.Equal(t, m.Name+" "+m.Reason, m.Error())
}

func TestCreateMakesWhatIsMissing(t *testing.T) {
	t.Parallel()
	coll := collection(t)
	missing, err := indexes.Missing(t.Context(), coll, specs)
	require.NoError(t, err, "a collection that is not there has none")
	require.Equal(t, specs, missing)

	require.NoError(t, add(t.Context(), coll, bson.D{{Key: "at", Value: -1.0}}, options.Index().SetName("theirs").SetSparse(true)))
	missing, err = indexes.Missing(t.Context(), coll, specs)
	require.NoError(t, err)
	require.Equal(t, []indexes.Spec{specs[0], specs[2]}, missing, "another name serves, and a number of another width")

	for range 2 {
		require.NoError(t, indexes.CreateCollection(t.Context(), coll))
		require.NoError(t, indexes.Create(t.Context(), coll, specs))
		missing, err = indexes.Missing(t.Context(), coll, specs)
		require.NoError(t, err)
		require.Nil(t, missing)
	}
}

func TestAnotherIndexInTheWayIsNamed(t *testing.T) {
	t.Parallel()
	coll := collection(t)
	for name, c := range map[string]struct {
		keys   bson.D
		opts   *options.IndexOptionsBuilder
		reason string
	}{
		"newest": {bson.D{{Key: "at", Value: 1}}, options.Index().SetSparse(true), "has the keys"},
		"dense":  {bson.D{{Key: "at", Value: -1}}, options.Index(), "has sparse false"},
		"done":   {indexes.Ascending("done", "_id"), options.Index(), "has the partial filter"},
		"a_b":    {bson.D{{Key: "a", Value: "hashed"}}, options.Index(), "has the keys"},
		"unique": {indexes.Ascending("a", "b"), options.Index().SetUnique(true), "has unique true"},
	} {
		require.NoError(t, add(t.Context(), coll, c.keys, c.opts.SetName(name)))
		requireMismatch(t, indexes.Create(t.Context(), coll, specs), "c."+name, c.reason)
		_, err := indexes.Missing(t.Context(), coll, specs)
		requireMismatch(t, err, "c."+name, c.reason)
		require.NoError(t, coll.Drop(t.Context()))
	}
}

func TestACollationIsRefused(t *testing.T) {
	t.Parallel()
	coll := collection(t)
	opts := options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})
	require.NoError(t, coll.Database().CreateCollection(t.Context(), coll.Name(), opts))
	requireMismatch(t, indexes.CreateCollection(t.Context(), coll), "c", "byte by byte")
}

// Another process makes an index between the look and the command.
func TestAnIndexMadeDifferentlyMeanwhile(t *testing.T) {
	t.Parallel()
	for name, theirs := range map[string]struct {
		keys bson.D
		opts *options.IndexOptionsBuilder
		code int
	}{
		"OtherOptions": {indexes.Ascending("a", "b"), options.Index().SetName("a_b").SetUnique(true), mongoerr.IndexKeyClash},
		"OtherName":    {indexes.Ascending("a", "b"), options.Index().SetName("theirs"), mongoerr.IndexConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			coll := collection(t)
			var first sync.Once
			monitor := &event.CommandMonitor{Started: func(ctx context.Context, e *event.CommandStartedEvent) {
				if e.CommandName == "createIndexes" {
					first.Do(func() {
						if err := add(ctx, coll, theirs.keys, theirs.opts); err != nil {
							t.Error(err)
						}
					})
				}
			}}
			mine := mongotest.Standalone(t).Client(t, options.Client().SetMonitor(monitor)).Database(coll.Database().Name()).Collection("c")
			err := indexes.Create(t.Context(), mine, specs)
			requireMismatch(t, err, "c", "made differently meanwhile")
			require.True(t, mongoerr.HasCode(err, theirs.code), "the server's error stays inside")
		})
	}
}

func TestErrorsOfTheServerStayAsTheyAre(t *testing.T) {
	t.Parallel()
	const invalidNamespace, notOnAView = 73, 166
	db := collection(t).Database()
	require.True(t, mongoerr.HasCode(indexes.CreateCollection(t.Context(), db.Collection("$c")), invalidNamespace))

	require.NoError(t, db.CreateView(t.Context(), "view", "c", mongo.Pipeline{}))
	_, err := indexes.Missing(t.Context(), db.Collection("view"), specs)
	require.True(t, mongoerr.HasCode(err, notOnAView), "%v", err)
	err = indexes.Create(t.Context(), db.Collection("view"), specs)
	require.True(t, mongoerr.HasCode(err, notOnAView), "%v", err)
}
