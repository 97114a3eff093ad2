package storetest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseList: the filters, and what a row tells.
func exerciseList(t *testing.T, h *harness) {
	run(t, h.withIndexes, listTests)
}

// list gives the ids of one page.
func (b *bundle) list(t *testing.T, opts mongostore.ListOptions) []string {
	t.Helper()
	page, err := b.store.List(t.Context(), opts)
	require.NoError(t, err, "%+v", opts)
	return idsOf(page.Items)
}

func idsOf(rows []mongostore.Summary) []string {
	ids := []string{}
	for _, row := range rows {
		ids = append(ids, row.ID)
	}
	return ids
}

// population is a mix of own documents and of harel's, a minute apart.
func (b *bundle) population(t *testing.T) (start time.Time) {
	t.Helper()
	start = b.clock.Now()
	for _, h := range []mongostore.Header{
		{ID: "a-1", DefinitionID: "orders", Status: "RUNNING"},
		{ID: "a-2", DefinitionID: "orders", Status: "DONE", Outcome: "paid"},
		{ID: "a-3", DefinitionID: "bills", Status: "RUNNING", ParentID: "a-1", ActivePath: "Pay.Wait"},
		{ID: "b-1", DefinitionID: "bills", Status: "", ParentID: "a-1"},
	} {
		b.commit(t, &order{Header: h}, mongostore.Changes{})
		b.clock.Advance(time.Minute)
	}
	b.insert(t, d("_id", "a-25", "definition_id", "orders", "version", 2, "data",
		`{"id":"a-25","definition_id":"orders","status":"RUNNING","outcome":null,"active_path":"Wait","parent_id":null,"updated_at":1704067230.5,"finished_at":null}`))
	b.insert(t, d("_id", "b-0", "definition_id", "bills", "version", int64(1), "data",
		`{"id":"b-0","definition_id":"bills","status":"FAILED","parent_id":"a-1","finished_at":1704067290.25,"updated_at":1704067290.25}`))
	return start
}

var listTests = tests{
	"FiltersOwnDocumentsAndThoseOfHarelAlike": func(t *testing.T, b *bundle) {
		start := b.population(t)
		for _, c := range []struct {
			opts mongostore.ListOptions
			want []string
		}{
			{mongostore.ListOptions{}, []string{"a-1", "a-2", "a-25", "a-3", "b-0", "b-1"}},
			{mongostore.ListOptions{DefinitionID: "orders"}, []string{"a-1", "a-2", "a-25"}},
			{mongostore.ListOptions{Statuses: []string{"RUNNING"}}, []string{"a-1", "a-25", "a-3"}},
			{mongostore.ListOptions{Statuses: []string{"DONE", "FAILED", "DONE"}}, []string{"a-2", "b-0"}},
			{mongostore.ListOptions{Statuses: []string{""}}, []string{"b-1"}},
			{mongostore.ListOptions{Statuses: []string{"unknown"}}, []string{}},
			{mongostore.ListOptions{Statuses: []string{}}, []string{}},
			{mongostore.ListOptions{ParentID: "a-1"}, []string{"a-3", "b-0", "b-1"}},
			{mongostore.ListOptions{RootsOnly: true}, []string{"a-1", "a-2", "a-25"}},
			{mongostore.ListOptions{IDPrefix: "a-2"}, []string{"a-2", "a-25"}},
			{mongostore.ListOptions{IDPrefix: ".*"}, []string{}},
			{mongostore.ListOptions{DefinitionID: "bills", Statuses: []string{"RUNNING"}}, []string{"a-3"}},
			{mongostore.ListOptions{IDPrefix: "b", ParentID: "a-1", Statuses: []string{"", "FAILED"}, DefinitionID: "bills"}, []string{"b-0", "b-1"}},
			{mongostore.ListOptions{UpdatedBefore: start.Add(time.Minute)}, []string{"a-1", "a-25"}},
			{mongostore.ListOptions{UpdatedBefore: start}, []string{}},
			{mongostore.ListOptions{FinishedBefore: start.Add(time.Hour)}, []string{"a-2", "b-0"}},
			{mongostore.ListOptions{FinishedBefore: start.Add(time.Minute + time.Microsecond)}, []string{"a-2"}},
			{mongostore.ListOptions{FinishedBefore: start.Add(time.Minute)}, []string{}},
			{mongostore.ListOptions{FinishedBefore: start.Add(time.Hour), RootsOnly: true, Statuses: []string{"DONE", "RUNNING"}}, []string{"a-2"}},
		} {
			require.Equal(t, c.want, b.list(t, c.opts), "%+v", c.opts)
			var all []mongostore.Summary
			c.opts.Limit = 1
			for row, err := range b.store.All(t.Context(), c.opts) {
				require.NoError(t, err)
				all = append(all, row)
			}
			require.Equal(t, c.want, idsOf(all), "%+v", c.opts)
		}
	},

	"FillsARowWithoutTheSnapshotOrFromIt": func(t *testing.T, b *bundle) {
		start := b.population(t)
		page, err := b.store.List(t.Context(), mongostore.ListOptions{})
		require.NoError(t, err)
		require.Equal(t, mongostore.Summary{ID: "a-2", DefinitionID: "orders", Status: "DONE", Outcome: "paid", Version: 1,
			UpdatedAt: start.Add(time.Minute), FinishedAt: start.Add(time.Minute)}, page.Items[1])
		require.Equal(t, mongostore.Summary{ID: "a-25", DefinitionID: "orders", Status: "RUNNING", ActivePath: "Wait", Version: 2,
			UpdatedAt: start.Add(30*time.Second + 500*time.Millisecond)}, page.Items[2])
		require.Equal(t, mongostore.Summary{ID: "a-3", DefinitionID: "bills", ParentID: "a-1", Status: "RUNNING", ActivePath: "Pay.Wait", Version: 1,
			UpdatedAt: start.Add(2 * time.Minute)}, page.Items[3])
	},

	"OrdersIDsByTheirBytes": func(t *testing.T, b *bundle) {
		ids := []string{" ", "A", "Z", "a", "aa", "a\u0300", "z", "é", "日本", "\uFFFD", "\U0001F600", "\U0010FFFF", "\U0010FFFFx"}
		for _, id := range ids {
			b.create(t, id)
		}
		require.Equal(t, ids, b.list(t, mongostore.ListOptions{}))
		require.Equal(t, []string{"a", "aa", "a\u0300"}, b.list(t, mongostore.ListOptions{IDPrefix: "a"}))
		require.Equal(t, []string{"\U0010FFFF", "\U0010FFFFx"}, b.list(t, mongostore.ListOptions{IDPrefix: "\U0010FFFF"}))
		require.Equal(t, []string{"\uFFFD"}, b.list(t, mongostore.ListOptions{IDPrefix: "\uFFFD"}))
		b.create(t, "\uD7FFx")
		b.create(t, "\uE000")
		require.Equal(t, []string{"\uD7FFx"}, b.list(t, mongostore.ListOptions{IDPrefix: "\uD7FF"}), "across the gap of the surrogates")
	},

	"TakesAnyLimit": func(t *testing.T, b *bundle) {
		ids := numbered("o-", 12)
		for _, id := range ids {
			b.create(t, id, b.everything("ev-1"))
		}
		for _, limit := range []int{0, 36, 1000, math.MaxInt32, math.MaxInt32 + 1, math.MaxInt} {
			page, err := b.store.List(t.Context(), mongostore.ListOptions{Limit: limit})
			require.NoError(t, err)
			require.Equal(t, ids, idsOf(page.Items), "limit %d", limit)
			require.Empty(t, page.Next)
			require.Len(t, b.outbox(t, limit), 36, "limit %d", limit)
			require.Len(t, b.spawns(t, limit), 24)
			require.Len(t, b.due(t, 1e10, limit), 24)
		}
	},

	"RefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		for field, opts := range map[string]mongostore.ListOptions{
			"ListOptions.Limit":        {Limit: -1},
			"ListOptions.RootsOnly":    {RootsOnly: true, ParentID: "p"},
			"ListOptions.DefinitionID": {DefinitionID: "a\x00"},
			"ListOptions.ParentID":     {ParentID: "a\xff"},
			"ListOptions.IDPrefix":     {IDPrefix: "\xed\xa0\x80"},
			"ListOptions.Statuses[1]":  {Statuses: []string{"", "a\x00"}},
		} {
			_, err := b.store.List(t.Context(), opts)
			requireInvalid(t, err, field)
			yielded := 0
			for row, err := range b.store.All(t.Context(), opts) {
				requireInvalid(t, err, field)
				require.Zero(t, row)
				yielded++
			}
			require.Equal(t, 1, yielded, "an error ends it")
		}
	},
}
