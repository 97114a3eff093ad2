package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseDedupe: an event is handled once, as far as the execution remembers.
func exerciseDedupe(t *testing.T, h *harness) {
	run(t, h.bundle, dedupeTests)
}

func (b *bundle) seen(t *testing.T, id, eventID string) bool {
	t.Helper()
	member, err := b.store.IsProcessed(t.Context(), id, eventID)
	require.NoError(t, err)
	o := &order{}
	loaded, err := b.store.LoadForEvent(t.Context(), id, eventID, o)
	require.NoError(t, err)
	require.Equal(t, member, loaded, "IsProcessed and LoadForEvent agree")
	require.Equal(t, id, o.ID)
	return loaded
}

var dedupeTests = tests{
	"RemembersWhatWasProcessed": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", mongostore.Changes{Processed: "ev-1"})
		b.commit(t, o, mongostore.Changes{Processed: "ev-2"})
		b.create(t, "o-2")
		for _, ev := range []string{"ev-1", "ev-2"} {
			require.True(t, b.seen(t, "o-1", ev))
			require.False(t, b.seen(t, "o-2", ev), "each execution for itself")
		}
		require.False(t, b.seen(t, "o-1", "ev-3"))
	},

	"IsExactAboutIds": func(t *testing.T, b *bundle) {
		odd := []string{"$data", "$$ROOT", "a.b", "{\"$ne\":null}", "/.*/", " ", "é", "e\u0301", "0", strings.Repeat("x", 5000)}
		o := newOrder("o-1")
		for i, ev := range odd {
			require.False(t, i > 0 && b.seen(t, "o-1", ev), ev)
			require.False(t, b.commit(t, o, mongostore.Changes{Processed: ev}).Deduplicated)
			require.True(t, b.seen(t, "o-1", ev), ev)
		}
		require.Equal(t, odd, texts(t, b.doc(t, "o-1"), "processed"))
	},

	"StaysASet": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", mongostore.Changes{Processed: "ev-1"})
		b.commit(t, o, mongostore.Changes{Processed: "ev-2"})
		ch := b.everything("ev-1")
		res := b.commit(t, o, ch)
		require.True(t, res.Deduplicated)
		require.Equal(t, []int64{1, 2, 3}, res.OutboxSeqs, "the rest has landed")
		doc := b.doc(t, "o-1")
		require.Equal(t, []string{"ev-1", "ev-2"}, texts(t, doc, "processed"))
		require.Len(t, values(t, doc, "outbox"), 3)
		require.Len(t, values(t, doc, "trace"), 1)
		require.False(t, b.commit(t, o, mongostore.Changes{}).Deduplicated)
	},

	"KeepsTheNewestProcessedMax": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.ProcessedMax = 3 })
		o := newOrder("o-1")
		for n := range 5 {
			_, err := store.Commit(t.Context(), o, mongostore.Changes{Processed: fmt.Sprint("ev-", n)})
			require.NoError(t, err)
		}
		require.Equal(t, []string{"ev-2", "ev-3", "ev-4"}, texts(t, b.doc(t, "o-1"), "processed"))
		require.False(t, b.seen(t, "o-1", "ev-1"))
		res, err := store.Commit(t.Context(), o, mongostore.Changes{Processed: "ev-1"})
		require.NoError(t, err)
		require.False(t, res.Deduplicated, "forgotten, so it is new")
		require.Equal(t, []string{"ev-3", "ev-4", "ev-1"}, texts(t, b.doc(t, "o-1"), "processed"))
	},

	"KeepsAllWhenProcessedMaxIsNegative": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.ProcessedMax = -1 })
		o := newOrder("o-1")
		ids := numbered("ev-", 20)
		for _, ev := range ids {
			_, err := store.Commit(t.Context(), o, mongostore.Changes{Processed: ev})
			require.NoError(t, err)
		}
		require.Equal(t, ids, texts(t, b.doc(t, "o-1"), "processed"))
	},

	"KeepsAThousandByDefault": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		old := make([]string, 1000)
		for i := range old {
			old[i] = fmt.Sprint("old-", i)
		}
		b.set(t, "o-1", d("processed", old))
		b.commit(t, o, mongostore.Changes{Processed: "new"})
		kept := texts(t, b.doc(t, "o-1"), "processed")
		require.Len(t, kept, 1000)
		require.Equal(t, "old-1 new", kept[0]+" "+kept[999])
	},

	"KnowsNothingOfAnUnknownExecution": func(t *testing.T, b *bundle) {
		require.NoError(t, b.store.AppendTrace(t.Context(), "stub", d("n", 1)))
		for _, id := range []string{"unknown", "stub"} {
			member, err := b.store.IsProcessed(t.Context(), id, "ev-1")
			require.NoError(t, err)
			require.False(t, member)
			o := newOrder("mine")
			o.Total = 5
			before := *o
			seen, err := b.store.LoadForEvent(t.Context(), id, "ev-1", o)
			require.ErrorIs(t, err, mongostore.ErrNotFound)
			require.False(t, seen)
			err = b.store.Load(t.Context(), id, o)
			require.ErrorIs(t, err, mongostore.ErrNotFound)
			require.ErrorContains(t, err, id)
			require.Equal(t, before, *o, "untouched")
		}
	},
}
