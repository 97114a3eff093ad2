package interop

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

// prefixes are the collection namings: the seed's and that of harel 0.9.0.
var prefixes = map[string]string{"seed": "", "harel": "harel_"}

// ringSize is how many trace steps both sides keep.
const ringSize = 50

// TestInterop runs harel and mongostore on the same documents, in both namings of
// the collections and with both of harel's stores.
func TestInterop(t *testing.T) {
	python := needsPython(t)
	tests := map[string]func(t *testing.T, b *bundle){
		"HarelWrites":             testHarelWrites,
		"GoWrites":                testGoWrites,
		"GoDeletesWhatHarelWrote": testGoDeletesWhatHarelWrote,
		"HarelRunsWhatGoStarted":  testHarelRunsWhatGoStarted,
		"Paths":                   testPaths,
		"TracedBeforeStored":      testTracedBeforeStored,
		"Times":                   testTimes,
		"GoArmsTTL":               testGoArmsTTL,
		"LargeIndexes":            testLargeIndexes,
		"Turns":                   testTurns,
		"BothAtOnce":              testBothAtOnce,
	}
	for _, naming := range []string{"seed", "harel"} {
		for _, twin := range []string{"sync", "async"} {
			t.Run(naming+"/"+twin, func(t *testing.T) {
				t.Parallel()
				server := mongotest.Standalone(t)
				process := startHarel(t, python, server.URI(), naming, twin)
				for name, test := range tests {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						test(t, setup(t, server, process, naming))
					})
				}
			})
		}
	}
}

// bundle is a database of a test's own with a mongostore and a harel on it.
type bundle struct {
	naming     string
	store      *mongostore.Store
	damage     *damageLog
	harel      *harelSide
	executions *mongo.Collection
	counters   *mongo.Collection
}

func setup(t *testing.T, server *mongotest.Server, process *harelProcess, naming string) *bundle {
	client, name := server.Database(t)
	b := &bundle{naming: naming, damage: &damageLog{}, harel: &harelSide{process: process, database: name, t: t}}
	store, err := mongostore.New(client, mongostore.Config{
		Database: name, Prefix: prefixes[naming], TraceMax: ringSize, OnDamaged: b.damage.add,
	})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	b.store = store
	b.executions = client.Database(name).Collection(prefixes[naming] + "executions")
	b.counters = client.Database(name).Collection(prefixes[naming] + "counters")
	return b
}

// documents reads the whole collection, by id.
func (b *bundle) documents(t *testing.T) map[string]bson.Raw {
	t.Helper()
	cursor, err := b.executions.Find(t.Context(), bson.D{})
	require.NoError(t, err)
	var docs []bson.Raw
	require.NoError(t, cursor.All(t.Context(), &docs))
	byID := make(map[string]bson.Raw, len(docs))
	for _, doc := range docs {
		byID[doc.Lookup("_id").StringValue()] = doc
	}
	return byID
}
