package storetest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exercisePayload: what users put in comes back as it was, key by key.
func exercisePayload(t *testing.T, h *harness) {
	run(t, h.bundle, payloadTests)
}

// odd is a document whose keys mean something to MongoDB elsewhere.
func odd() bson.D {
	return d("kubernetes.io/app", int32(1), "$set", d("a.b", int32(2), "$inc", d("version", int32(9))), "", int32(3), "q", d("$ne", nil),
		"$where", "1", "a", bson.A{d("$gt", ""), "$data", "$$ROOT"}, "_id", int32(5), "..", d(".", "$"), "$ref", "x", "$id", "y")
}

func encoded(t *testing.T, v any) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(v)
	require.NoError(t, err)
	return raw
}

// asMap is a document as Go maps, whatever the order of its keys.
func asMap(t *testing.T, doc bson.Raw) (m map[string]any) {
	t.Helper()
	decoder := bson.NewDecoder(bson.NewDocumentReader(bytes.NewReader(doc)))
	decoder.DefaultDocumentMap()
	require.NoError(t, decoder.Decode(&m))
	return m
}

// without gives the fields of a document except one, as a document.
func without(t *testing.T, doc bson.Raw, but string) bson.Raw {
	t.Helper()
	var kept, all bson.D
	require.NoError(t, bson.Unmarshal(doc, &all))
	for _, e := range all {
		if e.Key != but {
			kept = append(kept, e)
		}
	}
	return encoded(t, kept)
}

var payloadTests = tests{
	"BH-09_DotsAndDollarsInKeysComeBackKeyByKey": func(t *testing.T, b *bundle) {
		headers := json.RawMessage(`{"kubernetes.io/app":1,"$set":{"a.b":2},"":3,"q":{"$ne":null}}`)
		want := encoded(t, odd())
		o := newOrder("o-1")
		ch := mongostore.Changes{
			Emits:  []mongostore.Emit{{Event: headers}, {Event: map[string]any{"$set": map[string]any{"a.b": 2}}}},
			Spawns: []mongostore.Spawn{{ChildID: "$child", RootPath: "$root.path", Input: odd()}},
			Trace:  odd(), Processed: "$processed",
		}
		b.commit(t, o, ch)             // an insert
		b.commit(t, o, ch)             // an update
		b.appendTrace(t, "o-1", odd()) // a pipeline
		ch.Acks = []mongostore.Entry{mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 99}, mongostore.SpawnEntry{ParentID: "o-1", Seq: 99}}
		b.commit(t, o, ch) // another
		for _, e := range b.spawns(t, 0) {
			require.Equal(t, want, e.Input)
			require.Equal(t, "$child $root.path", e.ChildID+" "+e.RootPath)
			var decoded map[string]any
			require.NoError(t, e.Decode(&decoded))
			require.Equal(t, asMap(t, want), decoded)
		}
		entries := b.outbox(t, 0)
		require.Len(t, entries, 6)
		for i, e := range entries {
			require.Equal(t, map[int]string{0: string(headers), 1: `{"$set":{"a.b":2}}`}[i%2], string(e.Event))
		}
		var steps []bson.Raw
		require.NoError(t, b.store.ReadTrace(t.Context(), "o-1", &steps))
		require.Len(t, steps, 4)
		for i, step := range steps {
			require.Equal(t, want, without(t, step, "index"))
			require.EqualValues(t, i, step.Lookup("index").AsInt64())
		}
		require.Equal(t, []string{"$processed"}, texts(t, b.doc(t, "o-1"), "processed"))
		require.EqualValues(t, 3, b.load(t, "o-1").Version, "nothing of it was executed")
	},

	"BH-09_HeaderAndSnapshotMayHoldAnyText": func(t *testing.T, b *bundle) {
		for _, text := range []string{"$status", "$$NOW", "a.b", "{$ne: null}", "\U0001F600", "\u2028<>&\x01"} {
			id := "id " + text
			o := newOrder(id)
			o.DefinitionID, o.Status, o.Outcome, o.ActivePath, o.ParentID, o.Notes = text, text, text, text, text, []string{text}
			b.commit(t, o, emit(text))
			b.commit(t, o, mongostore.Changes{Emits: emit(text).Emits, Acks: []mongostore.Entry{mongostore.OutboxEntry{ExecutionID: id, Seq: 99}}})
			require.Equal(t, []string{id}, b.list(t, mongostore.ListOptions{DefinitionID: text, Statuses: []string{text}, ParentID: text}))
			loaded := b.load(t, id)
			require.Equal(t, []string{text, text, text, text, text}, []string{loaded.DefinitionID, loaded.Status, loaded.Outcome, loaded.ActivePath, loaded.ParentID})
			require.Equal(t, []string{text}, loaded.Notes)
		}
	},

	"SpawnInputMayBeAnyDocument": func(t *testing.T, b *bundle) {
		type tagged struct {
			ByJSON string `json:"by_json"`
			ByBSON string `bson:"by_bson" json:"other"`
			Plain  string
		}
		ch := mongostore.Changes{}
		for _, input := range []any{nil, bson.D{}, map[string]any{}, (*tagged)(nil), map[string]any(nil), bson.D(nil), bson.Raw(nil), bson.M(nil)} {
			ch.Spawns = append(ch.Spawns, mongostore.Spawn{ChildID: "empty", Input: input})
		}
		full := tagged{"j", "b", "p"}
		for _, input := range []any{full, &full, encoded(t, d("by_json", "j", "by_bson", "b", "plain", "p"))} {
			ch.Spawns = append(ch.Spawns, mongostore.Spawn{ChildID: "full", Input: input})
		}
		b.create(t, "o-1", ch)
		for _, e := range b.spawns(t, 0) {
			if e.ChildID == "empty" {
				require.Equal(t, bson.Raw{5, 0, 0, 0, 0}, e.Input)
				continue
			}
			require.Equal(t, []string{"by_json", "by_bson", "plain"}, fields(t, e.Input))
			var back tagged
			require.NoError(t, e.Decode(&back))
			require.Equal(t, full, back)
		}
	},

	"WholeNumbersStayExact": func(t *testing.T, b *bundle) {
		const big = 1<<62 + 1
		b.create(t, "o-1", mongostore.Changes{
			Emits:  []mongostore.Emit{{Event: map[string]any{"n": int64(big)}}, {Event: json.RawMessage(`{"n":123456789012345678901234567890}`)}},
			Spawns: []mongostore.Spawn{{ChildID: "c", Input: map[string]any{"n": int64(big), "small": 1, "f": 1.0}}},
			Trace:  d("n", int64(big)),
		})
		entries := b.outbox(t, 0)
		require.Equal(t, `{"n":4611686018427387905}`, string(entries[0].Event))
		require.Equal(t, `{"n":123456789012345678901234567890}`, string(entries[1].Event))
		var input map[string]any
		require.NoError(t, b.spawns(t, 0)[0].Decode(&input))
		require.EqualValues(t, big, input["n"])
		require.EqualValues(t, 1, input["small"])
		require.Equal(t, 1.0, input["f"])
	},
}
