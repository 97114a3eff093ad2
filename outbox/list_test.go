package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

func TestList(t *testing.T)  { run(t, listTests) }
func TestStats(t *testing.T) { run(t, statsTests) }

// listed is one page.
func (b *bundle) listed(t testing.TB, opts outbox.ListOptions) []outbox.Delivery {
	t.Helper()
	page, err := b.store.List(t.Context(), opts)
	require.NoError(t, err)
	return page.Items
}

// pages are the ids of all pages.
func (b *bundle) pages(t testing.TB, opts outbox.ListOptions) (ids []string) {
	t.Helper()
	for range 1000 {
		page, err := b.store.List(t.Context(), opts)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Items), opts.Limit)
		for _, d := range page.Items {
			ids = append(ids, d.ID)
		}
		if opts.Cursor = page.Next; page.Next == "" {
			return ids
		}
	}
	t.Fatal("the pages do not end")
	return nil
}

func (b *bundle) stats(t testing.TB) outbox.Stats {
	t.Helper()
	st, err := b.store.Stats(t.Context())
	require.NoError(t, err)
	return st
}

// mixed stores deliveries in every state: of h and g, three keys and none.
func (b *bundle) mixed(t testing.TB) {
	t.Helper()
	for i := range 6 {
		for _, key := range []string{"", "a", "b", "c"} {
			m := msg(fmt.Sprintf("e-%s-%d", key, i), key, "h", "g")
			m.Type = []string{"made", "sent"}[i%2]
			b.append(t, m)
		}
	}
	for i := range 2 {
		b.clock.Advance(time.Second)
		for _, d := range b.claim(t, 4, "h") {
			if i == 0 {
				b.complete(t, d)
				b.clock.Advance(time.Second)
			} else {
				require.NoError(t, b.store.Bury(t.Context(), d, errors.New("no")))
			}
		}
	}
	b.claim(t, 2, "h")
	b.clock.Advance(time.Second)
}

var listTests = tests{
	"GivesADeliveryWithItsEvent": func(t *testing.T, b *bundle) {
		m := msg("e-1", "k", "h", "g")
		m.Headers = map[string]any{"n": 12345678901234567}
		b.append(t, m)
		require.NoError(t, b.store.Retry(t.Context(), b.claimOne(t), time.Hour, errors.New("no")))
		d := b.listed(t, outbox.ListOptions{Handler: "h"})[0]
		at := b.clock.Now().Add(time.Hour)
		require.Equal(t, outbox.Delivery{
			ID: "h:e-1", Handler: "h", Status: "pending", LastError: "no", Sequence: 1, Attempt: 1, DueAt: at,
			Message: outbox.Message{ID: "e-1", Type: "made", Key: "k", Payload: json.RawMessage(`"e-1"`), NotBefore: at,
				Handlers: []string{"h", "g"}, Headers: map[string]any{"n": json.Number("12345678901234567")}},
		}, exported(d))
	},

	"ShowsALeaseWithoutItsToken": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", ""))
		held := b.claimOne(t)
		d := b.listed(t, outbox.ListOptions{})[0]
		require.Empty(t, d.Token)
		require.Equal(t, []any{"processing", held.Until}, []any{d.Status, d.Until})
		require.ErrorIs(t, b.store.Complete(t.Context(), &d), mongostore.ErrInvalid, "who lists does not hold")
	},

	"FiltersTogetherAndEachAlone_InPagesOfEverySize": func(t *testing.T, b *bundle) {
		b.mixed(t)
		everything := b.listed(t, outbox.ListOptions{})
		require.Len(t, everything, 48)
		for _, handler := range []string{"", "h", "g", "nobody"} {
			for _, status := range []string{"", "waiting", "pending", "processing", "completed", "dead"} {
				for _, key := range []string{"", "a", "none"} {
					for _, typ := range []string{"", "sent"} {
						opts := outbox.ListOptions{Handler: handler, Status: status, Key: key, Type: typ}
						var want []string
						for _, d := range everything {
							if (handler == "" || d.Handler == handler) && (status == "" || d.Status == status) &&
								(key == "" || d.Message.Key == key) && (typ == "" || d.Message.Type == typ) {
								want = append(want, d.ID)
							}
						}
						for _, opts.Limit = range []int{1, 3, 48} {
							require.ElementsMatch(t, want, b.pages(t, opts), "%+v", opts)
						}
					}
				}
			}
		}
	},

	"OrdersByWhatIsAskedFor": func(t *testing.T, b *bundle) {
		b.mixed(t)
		var last *outbox.Delivery
		rising := func(opts outbox.ListOptions, by func(d outbox.Delivery) string) {
			last = nil
			for _, d := range b.listed(t, opts) {
				if last != nil {
					require.LessOrEqual(t, by(*last), by(d), "%+v", opts)
				}
				last = &d
			}
			require.NotNil(t, last)
		}
		rising(outbox.ListOptions{}, func(d outbox.Delivery) string { return d.ID })
		rising(outbox.ListOptions{Key: "a"}, func(d outbox.Delivery) string { return fmt.Sprintf("%03d", d.Sequence) })
		rising(outbox.ListOptions{Status: "waiting"}, func(d outbox.Delivery) string {
			return fmt.Sprintf("%s:%s %03d", d.Handler, d.Message.Key, d.Sequence)
		})
		for _, status := range []string{"completed", "dead"} {
			rising(outbox.ListOptions{Status: status}, func(d outbox.Delivery) string {
				return b.doc(t, d.ID).Lookup("finished_at").Time().Format(time.RFC3339Nano) + d.ID
			})
		}
	},

	"PagesSkipAndRepeatNothingWhileOthersComeAndGo": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 60)...)
		opts := outbox.ListOptions{Limit: 7}
		seen := map[string]int{}
		for round := 0; ; round++ {
			page, err := b.store.List(t.Context(), opts)
			require.NoError(t, err)
			for _, d := range page.Items {
				seen[d.ID]++
			}
			if opts.Cursor = page.Next; page.Next == "" {
				break
			}
			b.append(t, msg(fmt.Sprintf("a-%d", round), ""), msg(fmt.Sprintf("z-%d", round), ""))
			_, err = b.deliveries.DeleteOne(t.Context(), kv("_id", page.Items[0].ID))
			require.NoError(t, err)
		}
		for i := range 60 {
			require.Equal(t, 1, seen[fmt.Sprintf("h:e-%d", i)])
		}
	},

	"AFullLastPageIsTheLast": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 10)...)
		page, err := b.store.List(t.Context(), outbox.ListOptions{Limit: 5})
		require.NoError(t, err)
		require.NotEmpty(t, page.Next)
		page, err = b.store.List(t.Context(), outbox.ListOptions{Limit: 5, Cursor: page.Next})
		require.NoError(t, err)
		require.Len(t, page.Items, 5)
		require.Empty(t, page.Next)
	},

	"GivesAHundredIfNoLimitIsGiven": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 101)...)
		require.Len(t, b.listed(t, outbox.ListOptions{}), 100)
	},

	"RefusesACursorOfAnotherListing": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 3)...)
		page, err := b.store.List(t.Context(), outbox.ListOptions{Limit: 1, Key: "k"})
		require.NoError(t, err)
		for _, opts := range []outbox.ListOptions{
			{Cursor: page.Next}, {Key: "other", Cursor: page.Next}, {Key: "k", Status: "dead", Cursor: page.Next},
			{Key: "k", Cursor: page.Next[1:]}, {Key: "k", Cursor: "x"}, {Key: "k", Cursor: page.Next + "A"},
		} {
			_, err := b.store.List(t.Context(), opts)
			var v *mongostore.ValidationError
			require.ErrorAs(t, err, &v, "%+v", opts)
			require.Equal(t, "ListOptions.Cursor", v.Field)
		}
		_, err = b.store.List(t.Context(), outbox.ListOptions{Limit: 2, Key: "k", Cursor: page.Next})
		require.NoError(t, err, "the limit may change")
	},

	"IsNotPartOfATransactionInCtx": func(t *testing.T, b *bundle) {
		ctx, _ := b.begin(t)
		require.NoError(t, b.store.Append(ctx, msg("e-1", "k")))
		page, err := b.store.List(ctx, outbox.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, page.Items)
		st, err := b.store.Stats(ctx)
		require.NoError(t, err)
		require.Zero(t, st)
	},
}

var statsTests = tests{
	"CountsEachState": func(t *testing.T, b *bundle) {
		require.Zero(t, b.stats(t))
		b.mixed(t)
		want := map[string]int64{}
		for _, d := range b.listed(t, outbox.ListOptions{}) {
			want[d.Status]++
		}
		st := b.stats(t)
		require.Equal(t, want, map[string]int64{"waiting": st.Waiting, "pending": st.Pending, "processing": st.Processing, "completed": st.Completed, "dead": st.Dead})
	},

	"KnowsSinceWhenTheLongestDueOneCouldBeClaimed": func(t *testing.T, b *bundle) {
		start := b.clock.Now()
		m := msg("e-1", "k")
		m.NotBefore = start.Add(time.Hour)
		b.append(t, m)
		require.Equal(t, start.Add(time.Hour), b.stats(t).OldestDue, "it may lie ahead")
		b.append(t, msg("e-2", "k"))
		require.Equal(t, start.Add(time.Hour), b.stats(t).OldestDue, "one that waits does not count")
		b.append(t, msg("e-3", ""))
		require.Equal(t, start, b.stats(t).OldestDue)
		d := b.claimOne(t)
		require.Equal(t, start.Add(30*time.Second), b.stats(t).OldestDue, "a leased one can be again when its lease ends")
		b.complete(t, d)
		require.Equal(t, start.Add(time.Hour), b.stats(t).OldestDue)
	},
}

// exported is d without what only the package knows.
func exported(d outbox.Delivery) outbox.Delivery {
	return outbox.Delivery{ID: d.ID, Handler: d.Handler, Token: d.Token, Status: d.Status, LastError: d.LastError, Message: d.Message,
		Sequence: d.Sequence, Attempt: d.Attempt, DueAt: d.DueAt, Until: d.Until}
}
