package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseTrace: the timeline of an execution, a ring of steps with rising indexes.
func exerciseTrace(t *testing.T, h *harness) {
	run(t, h.bundle, traceTests)
}

// step is a trace step by json tags alone.
type step struct {
	EventKind string         `json:"event_kind"`
	Context   map[string]any `json:"context_out,omitempty"`
	Index     int64          `json:"index"`
}

func (b *bundle) appendTrace(t *testing.T, id string, step any) {
	t.Helper()
	require.NoError(t, b.store.AppendTrace(t.Context(), id, step))
}

var traceTests = tests{
	"NumbersStepsOfCommitsAndOfAppendTraceInOneRow": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", mongostore.Changes{Trace: d("n", 0)})
		b.appendTrace(t, "o-1", d("n", 1))
		b.appendTrace(t, "o-1", d("n", 2))
		b.commit(t, o, mongostore.Changes{Trace: d("n", 3)})
		b.commit(t, o, mongostore.Changes{})
		b.commit(t, b.load(t, "o-1"), mongostore.Changes{Trace: d("n", 4)})
		b.appendTrace(t, "o-1", d("n", 5))
		var steps []struct{ N, Index int64 }
		require.NoError(t, b.store.ReadTrace(t.Context(), "o-1", &steps))
		require.Len(t, steps, 6)
		for i, s := range steps {
			require.EqualValues(t, i, s.N)
			require.EqualValues(t, i, s.Index)
		}
	},

	"KeepsTheNewestTraceMax": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.TraceMax = 3 })
		o := newOrder("o-1")
		for range 4 {
			_, err := store.Commit(t.Context(), o, mongostore.Changes{Trace: d("by", "commit")})
			require.NoError(t, err)
			require.NoError(t, store.AppendTrace(t.Context(), "o-1", d("by", "append")))
		}
		require.Equal(t, []int64{5, 6, 7}, indexes(t, b.doc(t, "o-1")), "indexes go on after the ring has turned")
	},

	"KeepsTwoHundredByDefaultAndAllWhenNegative": func(t *testing.T, b *bundle) {
		all := b.with(t, func(c *mongostore.Config) { c.TraceMax = -1 })
		b.create(t, "o-1")
		b.create(t, "o-2")
		var steps bson.A
		for i := range 200 {
			steps = append(steps, d("index", i))
		}
		for _, id := range []string{"o-1", "o-2"} {
			b.set(t, id, d("trace", steps, "trace_next", 200))
		}
		b.commit(t, b.load(t, "o-1"), mongostore.Changes{Trace: d("n", 1)})
		b.appendTrace(t, "o-1", d("n", 2))
		require.Equal(t, int64(2), indexes(t, b.doc(t, "o-1"))[0])
		require.Len(t, values(t, b.doc(t, "o-1"), "trace"), 200)
		require.NoError(t, all.AppendTrace(t.Context(), "o-2", d("n", 1)))
		o := &order{}
		require.NoError(t, all.Load(t.Context(), "o-2", o))
		_, err := all.Commit(t.Context(), o, mongostore.Changes{Trace: d("n", 2)})
		require.NoError(t, err)
		require.Len(t, values(t, b.doc(t, "o-2"), "trace"), 202)
	},

	"KeepsAnIndexThatTheCallerGivesToAppendTraceOnly": func(t *testing.T, b *bundle) {
		b.appendTrace(t, "o-1", d("index", 7, "n", 0))
		b.appendTrace(t, "o-1", d("n", 1))
		b.appendTrace(t, "o-1", d("index", "a text"))
		b.appendTrace(t, "o-1", d("n", 2))
		doc := b.doc(t, "o-1")
		require.Equal(t, "a text", values(t, doc, "trace")[2].Document().Lookup("index").StringValue())
		require.EqualValues(t, 9, values(t, doc, "trace")[3].Document().Lookup("index").AsInt64())
		b.byHand = true // a text is no index that rises

		b.create(t, "o-2", mongostore.Changes{Trace: d("index", 7, "n", 0)})
		require.Equal(t, []int64{0}, indexes(t, b.doc(t, "o-2")), "in a commit the store numbers")
	},

	"MendsTheIndexOfAValueThatIsBehind": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", mongostore.Changes{Trace: d("n", 0)})
		for range 3 {
			b.appendTrace(t, "o-1", d("by", "another"))
		}
		b.commit(t, o, mongostore.Changes{Trace: d("n", 1)})
		require.Equal(t, []int64{0, 1, 2, 3, 4}, indexes(t, b.doc(t, "o-1")))
	},

	"GoesOnFromWhatHarelTraced": func(t *testing.T, b *bundle) {
		for _, id := range []string{"by commit", "by append"} {
			b.insert(t, d("_id", id, "version", 1, "data", `{"version":1}`, "trace", bson.A{d("index", 3), d("index", 4)}))
		}
		b.commit(t, b.load(t, "by commit"), mongostore.Changes{Trace: d("n", 1)})
		b.appendTrace(t, "by append", d("n", 1))
		for _, id := range []string{"by commit", "by append"} {
			require.Equal(t, []int64{3, 4, 5}, indexes(t, b.doc(t, id)), id)
			require.EqualValues(t, 6, b.doc(t, id).Lookup("trace_next").AsInt64())
		}
	},

	"TakesAnyValueThatIsADocument": func(t *testing.T, b *bundle) {
		raw, err := bson.Marshal(d("event_kind", "Go"))
		require.NoError(t, err)
		type tagged struct {
			Kind string `bson:"event_kind" json:"other"`
		}
		given := []any{d("event_kind", "Go"), bson.M{"event_kind": "Go"}, map[string]string{"event_kind": "Go"},
			step{EventKind: "Go", Index: 99}, &step{EventKind: "Go"}, tagged{"Go"}, bson.Raw(raw)}
		o := newOrder("o-1")
		for _, v := range given {
			b.commit(t, o, mongostore.Changes{Trace: v})
		}
		var steps []step
		require.NoError(t, b.store.ReadTrace(t.Context(), "o-1", &steps))
		require.Len(t, steps, len(given))
		for i, s := range steps {
			require.Equal(t, step{EventKind: "Go", Index: int64(i)}, s)
		}
		var none *step
		b.commit(t, o, mongostore.Changes{Trace: none})
		require.Len(t, values(t, b.doc(t, "o-1"), "trace"), len(given), "a nil pointer is no step")
	},

	"IsReadIntoAnySliceOfDocuments": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", mongostore.Changes{Trace: step{EventKind: "Go", Context: map[string]any{"a.b": bson.D{{Key: "$c", Value: bson.A{1}}}}}})
		read := func(steps any) {
			t.Helper()
			require.NoError(t, b.store.ReadTrace(t.Context(), "o-1", steps))
		}
		var typed []step
		read(&typed)
		require.Equal(t, map[string]any{"$c": bson.A{int32(1)}}, typed[0].Context["a.b"])
		var pointers []*step
		read(&pointers)
		require.Equal(t, typed[0], *pointers[0])
		maps := []map[string]any{{"of": "another execution"}, {}}
		read(&maps)
		require.Len(t, maps, 1)
		require.Equal(t, "Go", maps[0]["event_kind"])
		require.NotContains(t, maps[0], "of")
		var docs []bson.D
		read(&docs)
		require.Equal(t, "event_kind", docs[0][0].Key)
		var raws []bson.Raw
		read(&raws)
		require.Equal(t, values(t, b.doc(t, "o-1"), "trace")[0].Document(), raws[0])
	},

	"IsEmptyForAnUnknownExecution": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		for _, id := range []string{"unknown", "o-1"} {
			steps := []step{{EventKind: "of another execution"}}
			require.NoError(t, b.store.ReadTrace(t.Context(), id, &steps))
			require.Empty(t, steps, id)
		}
	},

	"OfAnExecutionThatIsYetToComeIsNoExecution": func(t *testing.T, b *bundle) {
		b.appendTrace(t, "stub", d("n", 0))
		require.ErrorIs(t, b.store.Load(t.Context(), "stub", &order{}), mongostore.ErrNotFound)
		for _, opts := range []mongostore.ListOptions{{}, {Statuses: []string{""}}, {RootsOnly: true}, {IDPrefix: "s"}, {UpdatedBefore: b.clock.Now().Add(9e9)}} {
			page, err := b.store.List(t.Context(), opts)
			require.NoError(t, err)
			require.Empty(t, page.Items, "%+v", opts)
		}
		n, err := b.store.Adopt(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		var steps []step
		require.NoError(t, b.store.ReadTrace(t.Context(), "stub", &steps))
		require.Len(t, steps, 1)
		require.Empty(t, b.damage.take())
	},

	"RefusesWhatIsNoStepAndNoSlice": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", mongostore.Changes{Trace: d("n", "a text")})
		before := b.doc(t, "o-1")
		var none *step
		for _, bad := range []any{nil, none, 5, "text", []int{1}, make(chan int), map[string]any{"f": func() {}}} {
			requireInvalid(t, b.store.AppendTrace(t.Context(), "o-1", bad), "step")
		}
		for _, id := range []string{"", "a\x00b", "a\xff"} {
			requireInvalid(t, b.store.AppendTrace(t.Context(), id, d("n", 1)), "id")
			requireInvalid(t, b.store.ReadTrace(t.Context(), id, &[]step{}), "id")
		}
		var nowhere *[]step
		for _, bad := range []any{nil, []step{}, step{}, &step{}, nowhere, 5} {
			requireInvalid(t, b.store.ReadTrace(t.Context(), "o-1", bad), "steps")
		}
		require.Equal(t, before, b.doc(t, "o-1"))
		var wrong []struct{ N int }
		requireDamaged(t, b.store.ReadTrace(t.Context(), "o-1", &wrong), "o-1", "trace.0")
	},
}
