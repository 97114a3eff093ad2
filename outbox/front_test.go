package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/outbox"
)

// A claim that has seen much to do looks, the next time, from where that began.
func TestFront(t *testing.T) {
	run(t, tests{
		"a claim looks from where the last one saw the first": func(t *testing.T, b *bundle) {
			s, sent := b.monitored(t)
			muchTaken(t, b, s, "h")
			b.append(t, b.dueSince(time.Minute, msgs("m", "", 30)...)...)
			for range 3 {
				sent.Reset()
				_, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}, Limit: 5})
				require.NoError(t, err)
			}
			from := sent.Commands()[0].Body.Lookup("filter", "due_at", "$gte")
			require.Equal(t, bson.TypeDateTime, from.Type)
			require.Equal(t, b.clock.Now().Add(-time.Minute+5*time.Millisecond), from.Time().UTC(), "of the first that the second claim saw")
		},
		"a claim looks from the beginning where little was taken": func(t *testing.T, b *bundle) {
			b.append(t, b.dueSince(time.Minute, msgs("m", "", 30)...)...)
			s, sent := b.monitored(t)
			for range 3 {
				sent.Reset()
				_, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}, Limit: 5})
				require.NoError(t, err)
			}
			require.Zero(t, sent.Commands()[0].Body.Lookup("filter", "due_at", "$gte").Type)
		},
		"where nothing is left it is one command": func(t *testing.T, b *bundle) {
			s, sent := b.monitored(t)
			muchTaken(t, b, s, "h")
			b.append(t, msgs("m", "", 10)...)
			ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
			require.NoError(t, err)
			require.Len(t, ds, 10)
			sent.Reset()
			_, err = s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
			require.NoError(t, err)
			require.Equal(t, []string{"find"}, sent.Names())
		},
		"what was due before it is claimed in its turn when this process appends it": func(t *testing.T, b *bundle) {
			b.aheadOfFront(t)
			b.append(t, b.dueSince(time.Hour, msg("older", ""))...)
			require.Equal(t, "h:older", b.claim(t, 1)[0].ID)
		},
		"so is what another process commits late": func(t *testing.T, b *bundle) {
			b.aheadOfFront(t)
			b.complete(t, b.claim(t, 30)...) // what is old
			other := b.on(t, b.client)
			require.NoError(t, other.Transaction(t.Context(), func(ctx context.Context) error {
				if err := other.Append(ctx, msg("late", "")); err != nil {
					return err
				}
				b.clock.Advance(500 * time.Millisecond)
				b.append(t, msgs("new", "", 30)...)
				b.claim(t, 2)
				return nil
			}))
			require.Equal(t, "h:late", b.claim(t, 1)[0].ID)
		},
		"so is the next of a key whose time is damaged": func(t *testing.T, b *bundle) {
			muchTaken(t, b, b.store, "h")
			b.append(t, b.dueSince(time.Hour, msgs("old", "old", 3)...)...)
			b.append(t, b.dueSince(time.Minute, msgs("m", "", 20)...)...)
			edit(t, b.deliveries, "h:old-1", kv("$set", kv("available_at", "damaged")))
			first := b.claim(t, 1)[0]
			b.claim(t, 5)
			b.complete(t, first)
			require.Equal(t, "h:old-1", b.claim(t, 1)[0].ID)
		},
		"the next of a key that is older than all others is claimed as soon as it may": func(t *testing.T, b *bundle) {
			first := b.aheadOfFront(t)
			b.complete(t, first)
			require.Equal(t, "h:old-1", b.claim(t, 1)[0].ID)
		},
		"so is the next of one that was completed in a transaction": func(t *testing.T, b *bundle) {
			first := b.aheadOfFront(t)
			ctx, sess := b.begin(t)
			require.NoError(t, b.store.Complete(ctx, first))
			require.NoError(t, sess.CommitTransaction(ctx))
			require.Equal(t, "h:old-1", b.claim(t, 1)[0].ID)
		},
		"so is the next of one that was completed by its id and token": func(t *testing.T, b *bundle) {
			first := b.aheadOfFront(t)
			b.complete(t, &outbox.Delivery{ID: first.ID, Token: first.Token})
			require.Equal(t, "h:old-1", b.claim(t, 1)[0].ID)
		},
		"so is one that was released": func(t *testing.T, b *bundle) {
			first := b.aheadOfFront(t)
			require.NoError(t, b.store.Release(t.Context(), first))
			require.Equal(t, "h:old-0", b.claim(t, 1)[0].ID)
		},
		"so is one that was released by its id and token": func(t *testing.T, b *bundle) {
			first := b.aheadOfFront(t)
			require.NoError(t, b.store.Release(t.Context(), &outbox.Delivery{ID: first.ID, Token: first.Token}))
			require.Equal(t, "h:old-0", b.claim(t, 1)[0].ID)
		},
		"what another process puts before it is found within a second": func(t *testing.T, b *bundle) {
			b.aheadOfFront(t)
			other := b.on(t, b.client)
			require.NoError(t, appendBy(t.Context(), other, b.dueSince(time.Hour, msg("older", ""))...))
			eventually(t, func() bool {
				d := b.claim(t, 1)[0]
				if d.ID == "h:older" {
					return true
				}
				require.NoError(t, b.store.Release(t.Context(), d)) // so that there is always much to do
				return false
			}, "the older one")
		},
		"what another process puts before it is found at once where little is left": func(t *testing.T, b *bundle) {
			b.aheadOfFront(t)
			other := b.on(t, b.client)
			require.NoError(t, appendBy(t.Context(), other, b.dueSince(time.Hour, msg("older", ""))...))
			ds := b.claim(t, 100)
			require.Equal(t, "h:older", ds[0].ID)
			require.Len(t, ds, 16)
		},
		"it is one for each set of handlers": func(t *testing.T, b *bundle) {
			muchTaken(t, b, b.store, "b")
			muchTaken(t, b, b.store, "a", "b")
			b.append(t, b.dueSince(time.Hour, msgs("a", "", 10, "a")...)...)
			b.append(t, b.dueSince(time.Minute, msgs("b", "", 10, "b")...)...)
			for i := range 3 {
				require.Equal(t, fmt.Sprintf("b:b-%d", i), b.claim(t, 1, "b")[0].ID)
				require.Equal(t, fmt.Sprintf("a:a-%d", i), b.claim(t, 1, "a", "b")[0].ID)
			}
		},
	})
}

// dueSince lets messages be due since so long, one a millisecond.
func (b *bundle) dueSince(ago time.Duration, all ...outbox.Message) []outbox.Message {
	for i := range all {
		all[i].NotBefore = b.clock.Now().Add(-ago + time.Duration(i)*time.Millisecond)
	}
	return all
}

// aheadOfFront gives the first of an old key, with more behind it, after a claim that saw, and
// took five of, twenty that are due since less long.
func (b *bundle) aheadOfFront(t *testing.T) *outbox.Delivery {
	t.Helper()
	muchTaken(t, b, b.store, "h")
	b.append(t, b.dueSince(time.Hour, msgs("old", "old", 3)...)...)
	b.append(t, b.dueSince(time.Minute, msgs("m", "", 20)...)...)
	first := b.claim(t, 1)[0]
	require.Equal(t, "h:old-0", first.ID)
	require.Equal(t, "h:m-0", b.claim(t, 5)[0].ID)
	return first
}

// muchTaken lets a store claim so many for these handlers that it remembers the front.
func muchTaken(t *testing.T, b *bundle, s *outbox.Store, handlers ...string) {
	t.Helper()
	const n = 1000
	b.append(t, b.dueSince(2*time.Hour, msgs("taken-"+handlers[0]+fmt.Sprint(len(handlers)), "", n, handlers[0])...)...)
	ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: handlers, Limit: n})
	require.NoError(t, err)
	require.Len(t, ds, n)
	require.NoError(t, s.Complete(t.Context(), ds...))
}
