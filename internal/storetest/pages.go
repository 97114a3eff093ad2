package storetest

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exercisePages: each execution that exists throughout appears exactly once.
func exercisePages(t *testing.T, h *harness) {
	run(t, h.withIndexes, pageTests)
}

// walk reads all pages, with between run after each, and gives each page's ids.
func (b *bundle) walk(t *testing.T, opts mongostore.ListOptions, between func(page int)) (pages [][]string) {
	t.Helper()
	for {
		page, err := b.store.List(t.Context(), opts)
		require.NoError(t, err)
		pages = append(pages, idsOf(page.Items))
		require.LessOrEqual(t, len(pages), 200, "it does not end")
		if between != nil {
			between(len(pages))
		}
		if opts.Cursor = page.Next; page.Next == "" {
			return pages
		}
	}
}

func flat(pages [][]string) (ids []string) {
	for _, page := range pages {
		ids = append(ids, page...)
	}
	return ids
}

var pageTests = tests{
	"BH-23_NeitherSkipNorRepeatWhenOthersComeAndGo": func(t *testing.T, b *bundle) {
		ids := numbered("x-", 100)
		for _, id := range ids {
			b.create(t, id)
		}
		pages := b.walk(t, mongostore.ListOptions{Limit: 10}, func(page int) {
			if page == 1 {
				require.NoError(t, b.store.Delete(t.Context(), "x-003", 1))
				require.NoError(t, b.store.Delete(t.Context(), "x-007", 1))
				require.NoError(t, b.store.Delete(t.Context(), "x-009", 1), "the one that the cursor stands on")
				b.create(t, "x-0005")
			}
		})
		require.Equal(t, ids, flat(pages))
		require.Len(t, pages, 10, "the last full page is followed by an end")
	},

	"BH-23_AreFullUntilTheEndWithAFilterThatMatchesFew": func(t *testing.T, b *bundle) {
		var matching []string
		for i := range 340 {
			id := fmt.Sprintf("x-%03d", i)
			status := "OTHER"
			if i%17 == 0 {
				status, matching = "SEVENTEENTH", append(matching, id)
			}
			if i%2 == 0 {
				b.insert(t, d("_id", id, "definition_id", "orders", "version", 1, "data", fmt.Sprintf(`{"id":"%s","definition_id":"orders","status":"%s"}`, id, status)))
			} else {
				o := newOrder(id)
				o.Status = status
				b.commit(t, o, mongostore.Changes{})
			}
		}
		require.Len(t, matching, 20)
		pages := b.walk(t, mongostore.ListOptions{Statuses: []string{"SEVENTEENTH"}, Limit: 10}, nil)
		require.Equal(t, [][]string{matching[:10], matching[10:]}, pages)
		for _, limit := range []int{1, 7, 19, 20, 21} {
			require.Equal(t, matching, flat(b.walk(t, mongostore.ListOptions{Statuses: []string{"SEVENTEENTH"}, Limit: limit}, nil)), "limit %d", limit)
		}
	},

	"BH-23_RefuseABrokenCursorAndOneOfAnotherFilter": func(t *testing.T, b *bundle) {
		for _, id := range numbered("x-", 5) {
			b.create(t, id)
		}
		page, err := b.store.List(t.Context(), mongostore.ListOptions{Limit: 2})
		require.NoError(t, err)
		good := page.Next
		for _, bad := range []string{"MA==", "Nw==", "x", "!!!", good + "A", good[1:], good[:len(good)-2], "e30", "bnVsbA", "W10", " " + good,
			base64.RawURLEncoding.EncodeToString([]byte(`{"a":5}`)), base64.RawURLEncoding.EncodeToString([]byte(`{"a":"x-001"}`))} {
			_, err = b.store.List(t.Context(), mongostore.ListOptions{Limit: 2, Cursor: bad})
			requireInvalid(t, err, "ListOptions.Cursor")
		}
		now := time.Now()
		for _, other := range []mongostore.ListOptions{
			{DefinitionID: "orders"}, {ParentID: "p"}, {IDPrefix: "x"}, {Statuses: []string{"RUNNING"}}, {RootsOnly: true}, {UpdatedBefore: now}, {FinishedBefore: now},
		} {
			other.Cursor = good
			_, err = b.store.List(t.Context(), other)
			requireInvalid(t, err, "ListOptions.Cursor")
		}
		page, err = b.store.List(t.Context(), mongostore.ListOptions{Limit: 3, Cursor: good})
		require.NoError(t, err, "another limit is the same filter")
		require.Equal(t, []string{"x-002", "x-003", "x-004"}, idsOf(page.Items))
		require.Empty(t, page.Next)
	},

	"DistinguishFiltersThatPrintAlike": func(t *testing.T, b *bundle) {
		statuses := [][]string{nil, {"a", "b"}, {"a b"}, {`a" "b`}, {"", "a", "b"}}
		for i, one := range statuses {
			o := newOrder(fmt.Sprint("o-", i))
			o.Status = "a"
			b.commit(t, o, mongostore.Changes{})
			for j, other := range statuses {
				page, err := b.store.List(t.Context(), mongostore.ListOptions{Statuses: one, Limit: 1})
				require.NoError(t, err)
				if page.Next == "" || i == j {
					continue
				}
				_, err = b.store.List(t.Context(), mongostore.ListOptions{Statuses: other, Limit: 1, Cursor: page.Next})
				requireInvalid(t, err, "ListOptions.Cursor")
			}
		}
	},

	"AreWalkedByAllFromACursorOn": func(t *testing.T, b *bundle) {
		ids := numbered("x-", 25)
		for _, id := range ids {
			b.create(t, id)
		}
		page, err := b.store.List(t.Context(), mongostore.ListOptions{Limit: 5})
		require.NoError(t, err)
		var rest []string
		for row, err := range b.store.All(t.Context(), mongostore.ListOptions{Limit: 4, Cursor: page.Next}) {
			require.NoError(t, err)
			if rest = append(rest, row.ID); len(rest) == 7 {
				break // an early end is fine
			}
		}
		require.Equal(t, ids[5:12], rest)
	},

	"StayWithinAPrefix": func(t *testing.T, b *bundle) {
		for _, prefix := range []string{"a", "b", "c"} {
			for _, id := range numbered(prefix, 7) {
				b.create(t, id)
			}
		}
		for _, limit := range []int{1, 3, 7, 100} {
			require.Equal(t, numbered("b", 7), flat(b.walk(t, mongostore.ListOptions{IDPrefix: "b", Limit: limit}, nil)))
		}
	},
}
