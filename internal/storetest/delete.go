package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseDelete: an execution goes with all that it holds, at its version only.
func exerciseDelete(t *testing.T, h *harness) {
	run(t, h.bundle, deleteTests)
}

var deleteTests = tests{
	"TakesTheExecutionAndAllThatItOwes": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		other := emit("for o-1")
		other.Emits[0].TargetID = "o-1"
		b.create(t, "o-2", other)
		_, err := b.counters.InsertOne(t.Context(), d("_id", "trace:o-1", "n", 4)) // as harel makes it
		require.NoError(t, err)
		require.NoError(t, b.store.Delete(t.Context(), "o-1", 1))
		require.Equal(t, []string{"o-2"}, b.list(t, mongostore.ListOptions{}))
		require.Len(t, b.outbox(t, 0), 1, "what another owes to it stays")
		require.Empty(t, b.spawns(t, 0))
		require.Empty(t, b.due(t, 1e10, 0))
		require.Zero(t, b.counter(t, "trace:o-1"))
		require.EqualValues(t, 4, b.counter(t, "outbox"))
		require.ErrorIs(t, b.store.Load(t.Context(), "o-1", &order{}), mongostore.ErrNotFound)
	},

	"GivesErrConflictWhenTheVersionHasMoved": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		b.commit(t, o, mongostore.Changes{})
		for _, version := range []int64{1, 3} {
			err := b.store.Delete(t.Context(), "o-1", version)
			requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: version, Actual: 2})
		}
		require.ErrorIs(t, b.store.Delete(t.Context(), "o-1", 0), mongostore.ErrConflict)
		require.EqualValues(t, 2, b.load(t, "o-1").Version)
	},

	"GivesErrNotFoundTooWhenThereIsNone": func(t *testing.T, b *bundle) {
		for _, version := range []int64{0, 1} {
			err := b.store.Delete(t.Context(), "unknown", version)
			requireConflict(t, err, mongostore.ConflictError{ExecutionID: "unknown", Expected: version})
		}
		b.appendTrace(t, "stub", d("n", 1))
		requireConflict(t, b.store.Delete(t.Context(), "stub", 1), mongostore.ConflictError{ExecutionID: "stub", Expected: 1})
	},

	"AtVersionZeroTakesWhatAppendTraceMade": func(t *testing.T, b *bundle) {
		b.appendTrace(t, "stub", d("n", 1))
		require.NoError(t, b.store.Delete(t.Context(), "stub", 0))
		require.Zero(t, b.count(t))
		b.insert(t, d("_id", "damaged", "data", `{"id":"damaged"}`, "outbox", []any{}))
		require.Error(t, b.store.Delete(t.Context(), "damaged", 0), "a snapshot that lost its version is no stub")
		require.Equal(t, 1, b.count(t))
	},

	"TakesVersionsOfAnyWidth": func(t *testing.T, b *bundle) {
		for id, version := range map[string]any{"int32": int32(7), "int64": int64(7), "double": 7.0} {
			b.insert(t, d("_id", id, "version", version, "data", "{}"))
			require.NoError(t, b.store.Delete(t.Context(), id, 7), id)
		}
		require.Zero(t, b.count(t))
	},

	"NamesADocumentWhoseVersionCannotBeRead": func(t *testing.T, b *bundle) {
		b.insert(t, d("_id", "o-1", "version", "seven", "data", "{}"))
		requireDamaged(t, b.store.Delete(t.Context(), "o-1", 7), "o-1", "version")
		require.Equal(t, 1, b.count(t))
	},

	"RefusesWhatCannotBe": func(t *testing.T, b *bundle) {
		for _, id := range []string{"", "a\x00", "a\xff"} {
			requireInvalid(t, b.store.Delete(t.Context(), id, 1), "id")
		}
		requireInvalid(t, b.store.Delete(t.Context(), "o-1", -1), "version")
	},
}
