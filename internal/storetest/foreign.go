package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseForeign: documents as another language writes them, numbers of any width.
func exerciseForeign(t *testing.T, h *harness) {
	run(t, h.withIndexes, foreignTests)
}

var foreignTests = tests{
	"BH-11_WholeNumbersOfAnyWidthAreReadAlike": func(t *testing.T, b *bundle) {
		numbers := map[string]func(n int) any{
			"int32": func(n int) any { return int32(n) }, "int64": func(n int) any { return int64(n) }, "double": func(n int) any { return float64(n) },
		}
		for id, number := range numbers {
			_, err := b.counters.DeleteMany(t.Context(), d())
			require.NoError(t, err)
			_, err = b.counters.InsertOne(t.Context(), d("_id", "outbox", "n", number(41)))
			require.NoError(t, err)
			b.insert(t, d("_id", id, "definition_id", "M", "version", number(7), "data", `{"id":"`+id+`","status":"RUNNING","version":7}`,
				"outbox", bson.A{d("seq", number(12), "target_id", nil, "event", `{"kind":"E","n":1}`)},
				"spawns", bson.A{d("seq", number(13), "parent_id", id, "child_id", "c", "root_path", "F", "context", d("n", number(5)))},
				"processed", bson.A{"ev-1"}, "timers", d("Wait", number(1800000000)), "trace", bson.A{d("index", number(6))}))
			require.EqualValues(t, 1, b.adopt(t))

			o := b.load(t, id)
			require.EqualValues(t, 7, o.Version)
			entries, spawns, timers := b.outbox(t, 0), b.spawns(t, 0), b.due(t, 1800000000, 0)
			require.Equal(t, []int64{12}, outboxSeqs(entries))
			require.EqualValues(t, 13, spawns[0].Seq)
			require.Equal(t, "timeout:"+id+":Wait:1800000000.0", timers[0].EntryID())
			require.NoError(t, b.store.AckOutbox(t.Context(), entries...))
			require.NoError(t, b.store.AckSpawn(t.Context(), spawns...))
			require.NoError(t, b.store.DeleteTimer(t.Context(), timers[0]))
			res := b.commit(t, o, mongostore.Changes{Emits: []mongostore.Emit{{Event: 1}}, Trace: d("n", 1)})
			require.Equal(t, mongostore.CommitResult{Version: 8, OutboxSeqs: []int64{42}}, res)
			doc := b.doc(t, id)
			require.Equal(t, []int64{42}, seqs(t, doc, "outbox"))
			require.Empty(t, seqs(t, doc, "spawns"))
			require.Empty(t, timersOf(t, doc))
			require.Equal(t, []int64{6, 7}, indexes(t, doc))
			require.NoError(t, b.store.Delete(t.Context(), id, 8))
		}
	},

	"BH-11_AcksAndTimersInACommitMatchAnyWidth": func(t *testing.T, b *bundle) {
		for id, n := range map[string]any{"int32": int32(12), "int64": int64(12), "double": 12.0} {
			for _, pipeline := range []bool{false, true} {
				b.insert(t, d("_id", id, "version", 1, "data", "{}", "timers", d("Wait", n),
					"outbox", bson.A{d("seq", n, "target_id", nil, "event", `1`)}, "spawns", bson.A{d("seq", n, "child_id", "c")}))
				ch := mongostore.Changes{Acks: []mongostore.Entry{
					mongostore.OutboxEntry{ExecutionID: id, Seq: 12}, mongostore.SpawnEntry{ParentID: id, Seq: 12},
					mongostore.Timer{ExecutionID: id, Path: "Wait", FireAt: at(12)},
				}}
				if pipeline {
					ch.Emits = []mongostore.Emit{{Event: 1}}
				}
				b.commit(t, b.load(t, id), ch)
				doc := b.doc(t, id)
				require.NotContains(t, seqs(t, doc, "outbox"), int64(12))
				require.Empty(t, seqs(t, doc, "spawns"))
				require.Empty(t, timersOf(t, doc))
				require.NoError(t, b.store.Delete(t.Context(), id, 2))
			}
		}
	},

	"BH-11_WholeNumbersAreWrittenAsOtherLanguagesDo": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		_, err := b.counters.UpdateMany(t.Context(), d(), d("$set", d("n", int64(1)<<31)))
		require.NoError(t, err)
		b.commit(t, o, b.everything("ev-2"))
		doc := b.doc(t, "o-1")
		require.Equal(t, bson.TypeInt32, doc.Lookup("version").Type)
		for i, v := range values(t, doc, "outbox") {
			require.Equal(t, map[bool]bson.Type{true: bson.TypeInt32, false: bson.TypeInt64}[i < 3], v.Document().Lookup("seq").Type)
		}
		require.Equal(t, bson.TypeDouble, doc.Lookup("timers", "Idle").Type)
		for _, e := range b.outbox(t, 0) {
			require.NoError(t, b.store.AckOutbox(t.Context(), e))
		}
		require.Empty(t, seqs(t, b.doc(t, "o-1"), "outbox"))
	},

	"NullReadsAsMissing": func(t *testing.T, b *bundle) {
		b.insert(t, d("_id", "o-1", "definition_id", nil, "version", 1, "data", `{"id":"o-1","outcome":null,"parent_id":null}`, "outbox", nil, "spawns", nil,
			"processed", nil, "timers", nil, "trace", nil, "status", nil, "parent_id", nil, "outcome", nil, "active_path", nil,
			"updated_at", nil, "finished_at", nil, "commits", nil, "trace_next", nil, "seq_hi", nil, "due_at", nil, "timer_at", nil, "lease", nil, "dead", nil))
		require.Equal(t, &order{Header: mongostore.Header{ID: "o-1", Version: 1}}, plain(b.load(t, "o-1")))
		require.False(t, b.seen(t, "o-1", "ev-1"))
		in := b.inspect(t, "o-1")
		require.Equal(t, mongostore.Summary{ID: "o-1", Version: 1}, in.Summary)
		require.Empty(t, b.outbox(t, 0))
		require.Empty(t, b.due(t, 1e10, 0))
		require.NoError(t, b.store.AckOutbox(t.Context(), mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1}))
		require.NoError(t, b.store.DeleteTimer(t.Context(), mongostore.Timer{ExecutionID: "o-1", Path: "x", FireAt: at(1)}))
		b.appendTrace(t, "o-1", d("n", 0))
		b.adopt(t)
		require.Empty(t, b.damage.take())
		b.commit(t, b.load(t, "o-1"), b.everything("ev-1"))
		b.checkInvariants(t)
	},

	"ASpawnWithoutParentOrContextIsItsExecutions": func(t *testing.T, b *bundle) {
		b.insert(t, d("_id", "o-1", "version", 1, "data", "{}", "spawns", bson.A{d("seq", 1, "child_id", "c")}))
		e := b.spawns(t, 0)[0]
		require.Equal(t, "o-1 c", e.ParentID+" "+e.ChildID)
		require.Equal(t, bson.Raw{5, 0, 0, 0, 0}, e.Input)
		require.NoError(t, b.store.AckSpawn(t.Context(), e))
		require.Empty(t, b.spawns(t, 0))
	},
}

// plain is the value as its exported fields tell it.
func plain(o *order) *order {
	return &order{
		Header: mongostore.Header{ID: o.ID, DefinitionID: o.DefinitionID, ParentID: o.ParentID, Status: o.Status, Outcome: o.Outcome,
			ActivePath: o.ActivePath, Version: o.Version},
		Total: o.Total, Notes: o.Notes,
	}
}
