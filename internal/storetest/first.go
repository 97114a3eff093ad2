package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseFirst: the first commit makes the document, whatever is there already.
func exerciseFirst(t *testing.T, h *harness) {
	run(t, h.bundle, firstTests)
}

var firstTests = tests{
	"MakesTheWholeDocument": func(t *testing.T, b *bundle) {
		o := newOrder("o-1")
		res := b.commit(t, o, b.everything("ev-1"))
		require.Equal(t, mongostore.CommitResult{Version: 1, OutboxSeqs: []int64{1, 2, 3}, SpawnSeqs: []int64{1, 2}}, res)
		b.requireEverything(t, "o-1", "ev-1", 0)
		require.Equal(t, []string{"_id", "definition_id", "version", "data", "outbox", "spawns", "trace", "processed", "timers"},
			fields(t, b.doc(t, "o-1"))[:9], "the fields of the seed, in its order")
	},

	"BH-10_HoldsEmptyArraysAndDocumentsNeverNull": func(t *testing.T, b *bundle) {
		nothing := map[string]mongostore.Changes{
			"nil":   {},
			"empty": {Emits: []mongostore.Emit{}, Spawns: []mongostore.Spawn{}, Timers: []mongostore.TimerOp{}, Acks: []mongostore.Entry{}},
		}
		for id, ch := range nothing {
			o := newOrder(id)
			require.Equal(t, mongostore.CommitResult{Version: 1}, b.commit(t, o, ch))
			doc := b.doc(t, id)
			for _, field := range []string{"outbox", "spawns", "trace", "processed"} {
				require.Equal(t, "[]", doc.Lookup(field).String(), field)
			}
			require.Equal(t, "{}", doc.Lookup("timers").String())
			require.Zero(t, doc.Lookup("due_at").Type, "nothing is owed")
			require.Zero(t, doc.Lookup("timer_at").Type)
			require.Equal(t, mongostore.CommitResult{Version: 2}, b.commit(t, o, ch))
		}
	},

	"BH-10_IsFollowedByAnyCommitWhateverIsNullOrMissing": func(t *testing.T, b *bundle) {
		containers := []string{"outbox", "spawns", "timers", "processed", "trace", "commits"}
		for _, id := range []string{"whole", "null", "missing", "null, acking", "missing, acking"} {
			b.create(t, id)
			var nulls bson.D
			for _, field := range containers {
				nulls = append(nulls, bson.E{Key: field, Value: nil})
			}
			switch id {
			case "null", "null, acking":
				b.set(t, id, nulls)
			case "missing", "missing, acking":
				b.unset(t, id, containers...)
			}
			o := b.load(t, id)
			ch := b.everything("ev-1")
			ch.Emits, ch.Spawns, ch.Timers = ch.Emits[:1], ch.Spawns[:1], ch.Timers[:1]
			if id == "null, acking" || id == "missing, acking" {
				ch.Acks = []mongostore.Entry{mongostore.OutboxEntry{ExecutionID: id, Seq: 1}, mongostore.SpawnEntry{ParentID: id, Seq: 1}}
			}
			b.commit(t, o, ch)
			doc := b.doc(t, id)
			require.Len(t, values(t, doc, "outbox"), 1, id)
			require.Len(t, values(t, doc, "spawns"), 1, id)
			require.Len(t, timersOf(t, doc), 1, id)
			require.Equal(t, []string{"ev-1"}, texts(t, doc, "processed"), id)
			require.Equal(t, []int64{0}, indexes(t, doc), id)
			b.commit(t, o, b.everything("ev-2"))
		}
	},

	"GivesErrExistsForAnExecutionThatIsThere": func(t *testing.T, b *bundle) {
		b.commit(t, b.create(t, "o-1", b.everything("ev-1")), mongostore.Changes{})
		before := b.doc(t, "o-1")
		o := newOrder("o-1")
		for _, ch := range []mongostore.Changes{{}, b.everything("ev-2")} {
			_, err := b.store.Commit(t.Context(), o, ch)
			requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 0, Actual: 2})
			require.Zero(t, o.Version)
		}
		require.Equal(t, before, b.doc(t, "o-1"))
	},

	"FillsWhatAppendTraceMadeAndKeepsItsSteps": func(t *testing.T, b *bundle) {
		for id, ch := range map[string]mongostore.Changes{
			"plain": {}, "traced": {Trace: d("n", 2)}, "everything": b.everything("ev-1"),
		} {
			for n := range 2 {
				require.NoError(t, b.store.AppendTrace(t.Context(), id, d("n", n)))
			}
			o := newOrder(id)
			require.EqualValues(t, 1, b.commit(t, o, ch).Version)
			want := []int64{0, 1}
			if ch.Trace != nil {
				want = append(want, 2)
			}
			require.Equal(t, want, indexes(t, b.doc(t, id)), id)
			b.commit(t, o, mongostore.Changes{Trace: bson.D{}})
			require.Equal(t, append(want, want[len(want)-1]+1), indexes(t, b.doc(t, id)), id)
			b.commit(t, b.load(t, id), b.everything("ev-9"))
		}
	},

	"FillsAStubThatHarelMade": func(t *testing.T, b *bundle) {
		b.insert(t, d("_id", "o-1", "trace", bson.A{d("index", 4)}))
		o := newOrder("o-1")
		b.commit(t, o, mongostore.Changes{Trace: bson.D{}})
		require.Equal(t, []int64{4, 5}, indexes(t, b.doc(t, "o-1")))
		b.checkInvariants(t)
	},

	"UpdatesADocumentAtVersionZero": func(t *testing.T, b *bundle) {
		b.insert(t, d("_id", "o-1", "version", 0, "data", `{"id":"o-1","status":"PENDING","version":0}`))
		fresh := newOrder("o-1")
		require.EqualValues(t, 1, b.commit(t, fresh, b.everything("ev-1")).Version)
		b.requireEverything(t, "o-1", "ev-1", 0)

		b.insert(t, d("_id", "o-2", "version", 0, "data", `{"id":"o-2","status":"PENDING","version":0}`))
		loaded := b.load(t, "o-2")
		require.Zero(t, loaded.Version)
		require.EqualValues(t, 1, b.commit(t, loaded, mongostore.Changes{}).Version)
		_, err := b.store.Commit(t.Context(), newOrder("o-2"), mongostore.Changes{})
		require.ErrorIs(t, err, mongostore.ErrExists)
	},

	"MakesADeletedExecutionAnew": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		require.NoError(t, b.store.Delete(t.Context(), "o-1", 1))
		b.create(t, "o-1")
		require.Empty(t, seqs(t, b.doc(t, "o-1"), "outbox"))
		require.Empty(t, texts(t, b.doc(t, "o-1"), "processed"))
	},
}
