package outbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

// longest is a name of the greatest length that is allowed, which begins with prefix.
func longest(prefix string) string { return prefix + strings.Repeat("x", 2048-len(prefix)) }

func TestLongNames(t *testing.T) {
	run(t, tests{
		"a delivery of the longest names goes through all methods": func(t *testing.T, b *bundle) {
			m := msg(longest("e"), longest("k"), longest("h"))
			m.Type = longest("t")
			b.append(t, m)
			claim := func() *outbox.Delivery { return b.claimOne(t, longest("h")) }
			d := claim()
			require.Equal(t, longest("h")+":"+longest("e"), d.ID)
			require.NoError(t, b.store.Extend(t.Context(), d, time.Hour))
			require.NoError(t, b.store.Release(t.Context(), d))
			require.NoError(t, b.store.Retry(t.Context(), claim(), 0, nil))
			require.NoError(t, b.store.Bury(t.Context(), claim(), nil))
			n, err := b.store.Requeue(t.Context(), d.ID)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			page, err := b.store.List(t.Context(), outbox.ListOptions{Handler: longest("h"), Key: longest("k"), Type: longest("t")})
			require.NoError(t, err)
			require.Len(t, page.Items, 1)
			b.complete(t, claim())
		},
		"an id that no delivery can have is refused": func(t *testing.T, b *bundle) {
			id := longest("h") + ":" + longest("e") + "x"
			_, err := b.store.Requeue(t.Context(), id)
			require.ErrorIs(t, err, mongostore.ErrInvalid)
			require.ErrorIs(t, b.store.Complete(t.Context(), &outbox.Delivery{ID: id, Token: "t"}), mongostore.ErrInvalid)
		},
		"thousands of them are never more than one command can hold": func(t *testing.T, b *bundle) {
			const n = 2200
			s, sent := b.monitored(t)
			all := make([]outbox.Message, 0, n)
			for i := range n {
				all = append(all, msg(longest(fmt.Sprint(i, "-")), ""))
			}
			for some := range slices.Chunk(all, n/5) { // the servers of tests have small caches
				require.NoError(t, appendBy(t.Context(), s, some...))
			}
			ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}, Limit: n})
			require.NoError(t, err)
			require.Len(t, ds, n)
			require.NoError(t, s.Complete(t.Context(), ds...))
			_, err = b.deliveries.UpdateMany(t.Context(), kv(), kv("$set", kv("status", "dead")))
			require.NoError(t, err)
			requeued, err := s.Requeue(t.Context(), idsOf(ds)...)
			require.NoError(t, err)
			require.Equal(t, n, requeued)
			ds, err = s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}, Limit: n})
			require.NoError(t, err)
			require.NoError(t, s.Complete(t.Context(), ds...))
			purged, err := s.Purge(t.Context(), outbox.PurgeOptions{CompletedBefore: b.clock.Now().Add(time.Hour), Batch: 10_000})
			require.NoError(t, err)
			require.EqualValues(t, n, purged)
			stored, err := b.events.CountDocuments(t.Context(), kv())
			require.NoError(t, err)
			require.Zero(t, stored)
			for _, c := range sent.Commands() {
				if c.Name != "insert" { // the driver cuts those
					require.Less(t, len(c.Body), 5<<20, c.Name)
				}
			}
		},
	})
}
