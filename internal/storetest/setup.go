package storetest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
)

// exerciseSetup: collections and indexes, whatever is there already.
func exerciseSetup(t *testing.T, h *harness) {
	run(t, h.bundle, setupTests)
}

// indexNames lists the indexes of the executions collection by their keys.
func (b *bundle) indexNames(t *testing.T) map[string]string {
	t.Helper()
	cursor, err := b.executions.Indexes().List(t.Context())
	require.NoError(t, err)
	var specs []bson.Raw
	require.NoError(t, cursor.All(t.Context(), &specs))
	names := map[string]string{}
	for _, spec := range specs {
		names[spec.Lookup("name").StringValue()] = spec.Lookup("key").String()
	}
	return names
}

func (b *bundle) index(t *testing.T, keys bson.D, opts *options.IndexOptionsBuilder) {
	t.Helper()
	_, err := b.executions.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: keys, Options: opts})
	require.NoError(t, err)
}

// ownIndexes is how many Setup makes, beside that of _id.
const ownIndexes = 10

var setupTests = tests{
	"MakesCollectionsAndIndexesAndThenChangesNothing": func(t *testing.T, b *bundle) {
		require.NoError(t, b.store.Setup(t.Context()))
		first := b.indexNames(t)
		require.Len(t, first, ownIndexes+1)
		require.Contains(t, first, "status_id")
		names, err := b.db.ListCollectionNames(t.Context(), d())
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"executions", "counters"}, names)
		b.create(t, "o-1", b.everything("ev-1"))
		require.NoError(t, b.store.Setup(t.Context()))
		require.Equal(t, first, b.indexNames(t))
	},

	"UsesThePrefix": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.Prefix = "harel_" })
		require.NoError(t, store.Setup(t.Context()))
		_, err := store.Commit(t.Context(), newOrder("o-1"), emit(1))
		require.NoError(t, err)
		names, err := b.db.ListCollectionNames(t.Context(), d())
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"harel_executions", "harel_counters"}, names)
	},

	"IsSafeFromManyProcessesAtOnce": func(t *testing.T, b *bundle) {
		var wg sync.WaitGroup
		for range 8 {
			store := b.with(t, func(*mongostore.Config) {})
			wg.Go(func() { assertNoError(t, store.Setup(t.Context())) })
		}
		wg.Wait()
		require.Len(t, b.indexNames(t), ownIndexes+1)
	},

	"BH-14_TakesAnEquivalentIndexUnderAnotherName": func(t *testing.T, b *bundle) {
		b.index(t, d("due_at", 1), options.Index().SetName("legacy_claim").SetSparse(true))
		b.index(t, d("status", int64(1), "_id", 1.0), options.Index().SetName("legacy_status"))
		for range 2 {
			require.NoError(t, b.store.Setup(t.Context()))
			names := b.indexNames(t)
			require.Len(t, names, ownIndexes+1)
			require.Contains(t, names, "legacy_claim")
			require.NotContains(t, names, "due_at")
			require.NotContains(t, names, "status_id")
		}
	},

	"BH-14_NamesADifferentIndexUnderItsName": func(t *testing.T, b *bundle) {
		for field, keys := range map[string]bson.D{"due_at": d("due_at", 1, "_id", 1), "timer_at": d("timer_at", -1)} {
			b.index(t, keys, options.Index().SetName(field))
			b.requireRefused(t, "executions."+field)
		}
	},

	"BH-14_NamesAnIndexWithOtherOptions": func(t *testing.T, b *bundle) {
		for name, opts := range map[string]*options.IndexOptionsBuilder{
			"due_at":  options.Index().SetPartialFilterExpression(d("due_at", d("$gt", 5))),
			"unique":  options.Index().SetUnique(true).SetSparse(true),
			"ttl":     options.Index().SetExpireAfterSeconds(60).SetSparse(true),
			"dense":   options.Index(),
			"hidden":  options.Index().SetHidden(true).SetSparse(true),
			"foreign": options.Index().SetCollation(&options.Collation{Locale: "de"}).SetSparse(true),
		} {
			b.index(t, d("due_at", 1), opts.SetName(name))
			b.requireRefused(t, "executions."+name)
		}
	},

	"BH-14_LeavesTheIndexesOfOthersAlone": func(t *testing.T, b *bundle) {
		b.index(t, d("team", 1), options.Index().SetName("team_idx").SetUnique(true).SetSparse(true))
		b.index(t, d("due_at", 1), options.Index().SetName("due_soon").SetPartialFilterExpression(d("team", "blue")))
		b.index(t, d("status", 1), options.Index().SetName("status"))
		theirs := b.indexNames(t)
		for range 2 {
			require.NoError(t, b.store.Setup(t.Context()))
			names := b.indexNames(t)
			require.Len(t, names, ownIndexes+len(theirs))
			for name, keys := range theirs {
				require.Equal(t, keys, names[name])
			}
		}
	},

	"RefusesACollectionThatDoesNotCompareIDsByteByByte": func(t *testing.T, b *bundle) {
		for _, name := range []string{"executions", "counters"} {
			opts := options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})
			require.NoError(t, b.db.CreateCollection(t.Context(), name, opts))
			requireInvalid(t, b.store.Setup(t.Context()), name)
			require.NoError(t, b.db.Collection(name).Drop(t.Context()))
		}
		require.NoError(t, b.store.Setup(t.Context()))
	},

	"TakesACollectionOfHarel": func(t *testing.T, b *bundle) {
		b.insert(t, harel("o-1", `{"id":"o-1","status":"RUNNING"}`, d("Wait", 5)))
		_, err := b.counters.InsertOne(t.Context(), d("_id", "outbox", "n", 5))
		require.NoError(t, err)
		require.NoError(t, b.store.Setup(t.Context()))
		require.Len(t, b.indexNames(t), ownIndexes+1)
	},
}

// requireRefused: Setup names the index each time, and leaves it as it is.
func (b *bundle) requireRefused(t *testing.T, field string) {
	t.Helper()
	before := b.indexNames(t)
	for range 2 {
		err := b.store.Setup(t.Context())
		requireInvalid(t, err, field)
		require.Equal(t, before, b.indexNames(t))
	}
	require.NoError(t, b.executions.Drop(t.Context()))
}
