package storetest

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore"
)

// exerciseClientOptions: whatever is set on the injected client, results and
// documents are the same as with a plain one.
func exerciseClientOptions(t *testing.T, h *harness) {
	var plain travelled
	t.Run("PlainClient", func(t *testing.T) {
		b := h.withIndexes(t)
		plain = tour(t, b, b.on(t, h.server.Client(t), func(*mongostore.Config) {}))
	})
	for name, opts := range clientOptions() {
		t.Run("BH-12_"+name, func(t *testing.T) {
			t.Parallel()
			b := h.withIndexes(t)
			require.Equal(t, plain, tour(t, b, b.on(t, h.server.Client(t, opts), func(*mongostore.Config) {})))
		})
	}
}

// EveryClientOption sets every option of encoding and decoding at once. The concerns
// are left alone: they rule the user's own transactions, and a majority read does not
// see at once what one with w:1 has committed.
func EveryClientOption() *options.ClientOptions {
	bsonOpts := &options.BSONOptions{}
	flags := reflect.ValueOf(bsonOpts).Elem()
	for i := range flags.NumField() {
		if f := flags.Field(i); f.Kind() == reflect.Bool {
			f.SetBool(true)
		}
	}
	return options.Client().SetBSONOptions(bsonOpts).SetRegistry(foreignRegistry())
}

// foreignRegistry makes embedded documents, and times, what others do not expect.
func foreignRegistry() *bson.Registry {
	r := bson.NewRegistry()
	r.RegisterTypeMapEntry(bson.TypeEmbeddedDocument, reflect.TypeFor[map[string]any]())
	r.RegisterTypeMapEntry(bson.TypeArray, reflect.TypeFor[[]any]())
	r.RegisterTypeMapEntry(bson.TypeInt32, reflect.TypeFor[float64]())
	r.RegisterTypeEncoder(reflect.TypeFor[string](), bson.ValueEncoderFunc(func(_ bson.EncodeContext, w bson.ValueWriter, v reflect.Value) error {
		return w.WriteString("another's " + v.String())
	}))
	return r
}

func clientOptions() map[string]*options.ClientOptions {
	all := map[string]*options.ClientOptions{
		"Registry":           options.Client().SetRegistry(foreignRegistry()),
		"Unacknowledged":     options.Client().SetWriteConcern(writeconcern.Unacknowledged()),
		"ReadFromAnywhere":   options.Client().SetReadPreference(readpref.Nearest()),
		"ReadAvailable":      options.Client().SetReadConcern(readconcern.Available()),
		"ReadLinearizable":   options.Client().SetReadConcern(readconcern.Linearizable()),
		"NoRetries":          options.Client().SetRetryWrites(false).SetRetryReads(false),
		"ClientTimeout":      options.Client().SetTimeout(time.Minute),
		"OneConnection":      options.Client().SetMaxPoolSize(1),
		"EveryOptionAtOnce":  EveryClientOption(),
		"ServerAPIVersion":   options.Client().SetServerAPIOptions(options.ServerAPI(options.ServerAPIVersion1).SetStrict(true)),
		"CompressedMessages": options.Client().SetCompressors([]string{"zlib"}),
	}
	flags := reflect.TypeFor[options.BSONOptions]()
	for i := range flags.NumField() {
		f := flags.Field(i)
		if !f.IsExported() || f.Type.Kind() != reflect.Bool {
			continue
		}
		bsonOpts := &options.BSONOptions{}
		reflect.ValueOf(bsonOpts).Elem().Field(i).SetBool(true)
		all[f.Name] = options.Client().SetBSONOptions(bsonOpts)
	}
	return all
}

// travelled is what the tour saw; equal for equal behaviour.
type travelled struct {
	Results   []mongostore.CommitResult
	Loaded    []order
	Outbox    []mongostore.OutboxEntry
	Spawns    []mongostore.SpawnEntry
	Timers    []string
	Rows      []mongostore.Summary
	Trace     []step
	Input     map[string]any
	Adopted   int64
	Documents []string
}

// tour goes through every method once and more.
func tour(t *testing.T, b *bundle, store *mongostore.Store) (saw travelled) {
	t.Helper()
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		require.NoError(t, err)
	}
	result := func(res mongostore.CommitResult, err error) {
		t.Helper()
		ok(err)
		saw.Results = append(saw.Results, res)
	}
	ok(store.Setup(ctx))
	o := newOrder("o-1")
	ch := b.everything("ev-1")
	ch.Spawns[0].Input = d("n", int64(1), "nil", nil, "slice", []string(nil), "map", map[string]int(nil), "doc", map[string]int{"a.b": 2})
	ch.Trace = step{EventKind: "Go", Context: map[string]any{"deep": d("id", bson.ObjectID{1}, "at", time.Unix(5, 0), "none", []byte(nil))}}
	result(store.Commit(ctx, o, ch))
	result(store.Commit(ctx, o, b.everything("ev-2")))
	ch.Acks = []mongostore.Entry{mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1}, mongostore.Timer{ExecutionID: "o-1", Path: "Never", FireAt: at(1)}}
	result(store.Commit(ctx, o, ch))
	result(store.Update(ctx, "o-2", &order{}, mongostore.UpdateOptions{Create: true, EventID: "ev-1"}, func(*mongostore.Changes) error { return nil }))
	ok(store.AppendTrace(ctx, "o-1", ch.Trace))
	ok(store.AppendTrace(ctx, "stub", map[string]any{"n": 1}))
	b.insert(t, harel("o-3", `{"id":"o-3","status":"RUNNING"}`, d("Wait", 5)))
	var err error
	saw.Adopted, err = store.Adopt(ctx)
	ok(err)

	loaded := &order{}
	seen, err := store.LoadForEvent(ctx, "o-1", "ev-2", loaded)
	ok(err)
	require.True(t, seen)
	saw.Loaded = append(saw.Loaded, *plain(loaded))
	member, err := store.IsProcessed(ctx, "o-1", "ev-2")
	ok(err)
	require.True(t, member)
	saw.Outbox, err = store.PendingOutbox(ctx, 0)
	ok(err)
	saw.Spawns, err = store.PendingSpawns(ctx, 0)
	ok(err)
	ok(saw.Spawns[0].Decode(&saw.Input))
	timers, err := store.DueTimers(ctx, at(1e10), 0)
	ok(err)
	saw.Timers = names(timers)
	result(store.CreateChild(ctx, saw.Spawns[0], child(), mongostore.Changes{}))
	result(store.CreateChild(ctx, saw.Spawns[0], child(), mongostore.Changes{}))
	ok(store.AckOutbox(ctx, saw.Outbox[0], mongostore.OutboxEntry{ExecutionID: "o-2", Seq: 1}))
	ok(store.AckSpawn(ctx, saw.Spawns[0]))
	ok(store.DeleteTimer(ctx, timers[0]))
	ok(store.ReadTrace(ctx, "o-1", &saw.Trace))
	in, err := store.Inspect(ctx, "o-1")
	ok(err)
	ok(in.Summary.Err)
	for row, err := range store.All(ctx, mongostore.ListOptions{Limit: 1, Statuses: []string{"RUNNING", "PENDING", ""}}) {
		ok(err)
		saw.Rows = append(saw.Rows, row)
	}
	_, err = store.Commit(ctx, newOrder("o-1"), mongostore.Changes{})
	requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Actual: 3})
	saw.Documents = b.documents(t)
	ok(store.Delete(ctx, "o-1", 3))
	return saw
}

// documents are all that is stored, but for the random ids of commits.
func (b *bundle) documents(t *testing.T) (all []string) {
	t.Helper()
	for _, coll := range []string{"executions", "counters"} {
		cursor, err := b.db.Collection(coll).Find(t.Context(), d(), options.Find().SetSort(d("_id", 1)).SetProjection(d("commits", 0)))
		require.NoError(t, err)
		var docs []bson.Raw
		require.NoError(t, cursor.All(t.Context(), &docs))
		for _, doc := range docs {
			all = append(all, doc.String())
		}
	}
	return all
}
