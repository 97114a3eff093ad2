package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseInspect: one whole document, for operators.
func exerciseInspect(t *testing.T, h *harness) {
	run(t, h.bundle, inspectTests)
}

func (b *bundle) inspect(t *testing.T, id string) *mongostore.Inspection {
	t.Helper()
	in, err := b.store.Inspect(t.Context(), id)
	require.NoError(t, err)
	return in
}

var inspectTests = tests{
	"ShowsEverythingInTheDocument": func(t *testing.T, b *bundle) {
		o := newOrder("o-1")
		o.ActivePath, o.Total = "Pay.Wait", 5
		b.commit(t, o, b.everything("ev-1"))
		b.commit(t, o, mongostore.Changes{Processed: "ev-2", Trace: d("n", 1)})
		in := b.inspect(t, "o-1")
		page, err := b.store.List(t.Context(), mongostore.ListOptions{})
		require.NoError(t, err)
		require.Equal(t, page.Items[0], in.Summary)
		require.JSONEq(t, `{"id":"o-1","definition_id":"orders","status":"RUNNING","active_path":"Pay.Wait","version":2,"total":5}`, string(in.Data))
		require.Equal(t, b.outbox(t, 0), in.Outbox)
		require.Equal(t, b.spawns(t, 0), in.Spawns)
		require.Equal(t, b.due(t, 1e10, 0), in.Timers)
		require.Len(t, in.Trace, 2)
		require.EqualValues(t, 1, in.Trace[1].Lookup("n").AsInt64())
		require.Equal(t, 2, in.Processed)
		require.Len(t, b.doc(t, "o-1"), in.Bytes)
		require.Zero(t, in.LeasedUntil)
		require.Empty(t, in.Dead)
	},

	"ShowsALease": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		b.lease(t, "o-1", "token")
		require.Equal(t, b.clock.Now().Add(time.Minute), b.inspect(t, "o-1").LeasedUntil)
		b.unset(t, "o-1", "lease.token")
		require.Zero(t, b.inspect(t, "o-1").LeasedUntil, "backing off is not leased")
	},

	"ShowsWhatAppendTraceMade": func(t *testing.T, b *bundle) {
		b.appendTrace(t, "stub", d("n", 0))
		in := b.inspect(t, "stub")
		require.Equal(t, mongostore.Summary{ID: "stub"}, in.Summary)
		require.Len(t, in.Trace, 1)
		require.Nil(t, in.Data)
	},

	"ShowsADocumentOfHarel": func(t *testing.T, b *bundle) {
		b.population(t)
		in := b.inspect(t, "b-0")
		require.Equal(t, "bills FAILED a-1", in.Summary.DefinitionID+" "+in.Summary.Status+" "+in.Summary.ParentID)
		require.NoError(t, in.Summary.Err)
		require.Empty(t, in.Outbox)
	},

	"GivesErrNotFoundAndErrInvalid": func(t *testing.T, b *bundle) {
		_, err := b.store.Inspect(t.Context(), "unknown")
		require.ErrorIs(t, err, mongostore.ErrNotFound)
		for _, id := range []string{"", "a\x00", "a\xff"} {
			_, err = b.store.Inspect(t.Context(), id)
			requireInvalid(t, err, "id")
		}
	},
}
