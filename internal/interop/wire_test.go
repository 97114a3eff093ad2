package interop

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// The fields of a document, in their order.
var harelsFields = []string{"_id", "definition_id", "version", "data", "outbox", "spawns", "trace", "processed", "timers"}

// ownFields are mongostore's, with the types that each may have.
var ownFields = map[string][]bson.Type{
	"status":      {bson.TypeString},
	"parent_id":   {bson.TypeString, bson.TypeNull},
	"outcome":     {bson.TypeString},
	"active_path": {bson.TypeString},
	"updated_at":  {bson.TypeDouble},
	"finished_at": {bson.TypeDouble},
	"commits":     {bson.TypeEmbeddedDocument},
	"trace_next":  {bson.TypeInt32},
	"due_at":      {bson.TypeDouble},
	"timer_at":    {bson.TypeDouble},
}

// The shapes of what the arrays hold.
var (
	outboxShape = map[string][]bson.Type{"seq": {bson.TypeInt32}, "target_id": {bson.TypeString, bson.TypeNull}, "event": {bson.TypeString}}
	spawnShape  = map[string][]bson.Type{
		"seq": {bson.TypeInt32}, "parent_id": {bson.TypeString}, "child_id": {bson.TypeString},
		"root_path": {bson.TypeString}, "context": {bson.TypeEmbeddedDocument},
	}
)

// requireHarelsDocuments: what harel stores is what the store's design took it for.
func (b *bundle) requireHarelsDocuments(t *testing.T) {
	t.Helper()
	traced := 0
	for _, doc := range b.documents(t) {
		require.Equal(t, harelsFields, keysOf(t, doc))
		requireSeedFields(t, doc)
		if len(elementsOf(t, doc, "trace")) > 0 {
			traced++
		}
	}
	counters := b.counterDocuments(t)
	require.Equal(t, traced, len(counters)-2, "one counter for each traced execution, outbox and spawn")
	require.Contains(t, counters, "outbox")
	require.Contains(t, counters, "spawn")
	require.Contains(t, counters, "trace:plain-running")
}

// requireOwnDocument: harel's fields first and in harel's order, then only ours.
func requireOwnDocument(t *testing.T, doc bson.Raw) {
	t.Helper()
	keys := keysOf(t, doc)
	require.Equal(t, harelsFields, keys[:len(harelsFields)])
	requireSeedFields(t, doc)
	for _, key := range keys[len(harelsFields):] {
		require.Contains(t, ownFields, key)
		require.Contains(t, ownFields[key], doc.Lookup(key).Type, key)
	}
	for _, key := range []string{"status", "parent_id", "outcome", "active_path", "updated_at", "commits", "trace_next"} {
		require.Contains(t, keys, key)
	}
}

// requireSeedFields checks the types of the fields that both sides read.
func requireSeedFields(t *testing.T, doc bson.Raw) {
	t.Helper()
	for _, key := range []string{"_id", "definition_id", "data"} {
		require.Equal(t, bson.TypeString, doc.Lookup(key).Type, key)
	}
	require.Equal(t, bson.TypeInt32, doc.Lookup("version").Type)
	data := doc.Lookup("data").StringValue()
	require.NotContains(t, data, `\u003c`, "JSON escapes no HTML")
	require.False(t, strings.ContainsAny(data, "\n\t"), "JSON is compact")
	require.EqualValues(t, doc.Lookup("version").AsInt64(), decoded(t, data).Version)
	requireShape(t, doc, "outbox", outboxShape)
	requireShape(t, doc, "spawns", spawnShape)
	for _, step := range elementsOf(t, doc, "trace") {
		require.Equal(t, bson.TypeInt32, step.Document().Lookup("index").Type, "also where the server counts it, in AppendTrace")
	}
	for _, event := range elementsOf(t, doc, "processed") {
		require.Equal(t, bson.TypeString, event.Type)
	}
	timers, err := doc.Lookup("timers").Document().Elements()
	require.NoError(t, err)
	for _, timer := range timers {
		require.NotContains(t, timer.Key(), ".")
		require.Equal(t, bson.TypeDouble, timer.Value().Type)
	}
}

func requireShape(t *testing.T, doc bson.Raw, field string, shape map[string][]bson.Type) {
	t.Helper()
	for _, element := range elementsOf(t, doc, field) {
		keys := keysOf(t, element.Document())
		require.Len(t, keys, len(shape))
		for _, key := range keys {
			require.Contains(t, shape[key], element.Document().Lookup(key).Type, "%s.%s", field, key)
		}
	}
}

func keysOf(t *testing.T, doc bson.Raw) (keys []string) {
	t.Helper()
	elements, err := doc.Elements()
	require.NoError(t, err)
	for _, e := range elements {
		keys = append(keys, e.Key())
	}
	return keys
}

func elementsOf(t *testing.T, doc bson.Raw, field string) []bson.RawValue {
	t.Helper()
	require.Equal(t, bson.TypeArray, doc.Lookup(field).Type, field)
	values, err := doc.Lookup(field).Array().Values()
	require.NoError(t, err)
	return values
}

func (b *bundle) counterDocuments(t *testing.T) map[string]int64 {
	t.Helper()
	cursor, err := b.counters.Find(t.Context(), bson.D{})
	require.NoError(t, err)
	var docs []bson.Raw
	require.NoError(t, cursor.All(t.Context(), &docs))
	values := map[string]int64{}
	for _, doc := range docs {
		require.Equal(t, []string{"_id", "n"}, keysOf(t, doc))
		values[doc.Lookup("_id").StringValue()] = doc.Lookup("n").AsInt64()
	}
	return values
}

// testLargeIndexes: a trace's numbers are int32 up to the last that fits, then int64,
// as harel's driver writes them.
func testLargeIndexes(t *testing.T, b *bundle) {
	for _, id := range []string{"appended", "committed"} {
		exe := &Execution{Header: mongostore.Header{ID: id, DefinitionID: "D", Status: "RUNNING"}}
		_, err := b.store.Commit(t.Context(), exe, mongostore.Changes{})
		require.NoError(t, err)
		require.NoError(t, b.store.AppendTrace(t.Context(), id, bson.D{{Key: "index", Value: int32(math.MaxInt32 - 2)}}))
		for i, next := range []bson.Type{bson.TypeInt32, bson.TypeInt64, bson.TypeInt64} {
			step := bson.D{{Key: "event_kind", Value: "Next"}}
			if id == "appended" {
				err = b.store.AppendTrace(t.Context(), id, step)
			} else {
				_, err = b.store.Commit(t.Context(), exe, mongostore.Changes{Trace: step})
			}
			require.NoError(t, err)
			doc := b.documents(t)[id]
			steps := elementsOf(t, doc, "trace")
			index := steps[len(steps)-1].Document().Lookup("index")
			require.EqualValues(t, math.MaxInt32-1+i, index.AsInt64())
			require.Equal(t, narrowest(index.AsInt64()), index.Type)
			require.Equal(t, next, doc.Lookup("trace_next").Type)
			require.EqualValues(t, math.MaxInt32+i, doc.Lookup("trace_next").AsInt64())
		}
		b.requireSameTrace(t, id)
	}
}

// narrowest is the type that harel's driver writes an integer as.
func narrowest(n int64) bson.Type {
	if n > math.MaxInt32 {
		return bson.TypeInt64
	}
	return bson.TypeInt32
}
