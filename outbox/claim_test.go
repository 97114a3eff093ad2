package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/mongostoretest"
	"github.com/execstore/mongostore/outbox"
)

func TestClaim(t *testing.T) { run(t, claimTests) }

var claimTests = tests{
	"GivesTheDeliveryItsEventAndItsLease": func(t *testing.T, b *bundle) {
		m := msg("e-1", "k", "h", "g")
		m.Headers = map[string]any{"n": 1}
		b.append(t, m)
		now := b.clock.Now()
		d := b.claimOne(t)
		require.NotEmpty(t, d.Token)
		require.Equal(t, []any{"h:e-1", "h", "processing", "", int64(1), 1, now.Add(30 * time.Second), now.Add(30 * time.Second)},
			[]any{d.ID, d.Handler, d.Status, d.LastError, d.Sequence, d.Attempt, d.DueAt, d.Until})
		require.Equal(t, []any{"e-1", "made", "k", []string{"h", "g"}, now}, []any{d.Message.ID, d.Message.Type, d.Message.Key, d.Message.Handlers, d.Message.NotBefore})
		require.Equal(t, `"e-1"`, fmt.Sprintf("%s", d.Message.Payload))
		require.Equal(t, "map[n:1]", fmt.Sprint(d.Message.Headers))
	},

	"TakesTheLongestDueFirst_TenIfNoLimitIsGiven": func(t *testing.T, b *bundle) {
		var want []string
		for i := range 12 {
			m := msg(fmt.Sprintf("e-%02d", 99-i), "")
			m.NotBefore = b.clock.Now().Add(time.Duration(i) * time.Second)
			b.append(t, m)
			want = append(want, "h:"+m.ID)
		}
		b.clock.Advance(time.Minute)
		require.ElementsMatch(t, want[:3], idsOf(b.claim(t, 3)))
		require.ElementsMatch(t, want[3:12], idsOf(b.claim(t, 0)))
		b.append(t, msgs("more", "", 11)...)
		require.Len(t, b.claim(t, 0), 10)
		require.Empty(t, b.claim(t, 5, "nobody"), "none is no error")
	},

	"TakesOfTheGivenHandlersOnly": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "k", "h", "g", "x"), msg("e-2", "", "h", "g", "x"))
		require.ElementsMatch(t, []string{"g:e-1", "g:e-2", "x:e-1", "x:e-2"}, idsOf(b.claim(t, 10, "x", "g")))
	},

	"NeverTakesTwoOfAKey_NorOneBehindAnUnfinishedOne": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 3)...)
		first := b.claimOne(t)
		require.Empty(t, b.claim(t, 10), "the first is leased")
		b.clock.Advance(time.Minute)
		again := b.claimOne(t)
		require.Equal(t, first.ID, again.ID, "its lease has run out, and it is still the first")
		require.Equal(t, 2, again.Attempt)
		require.NotEqual(t, first.Token, again.Token)
		require.NoError(t, b.store.Retry(t.Context(), again, time.Hour, nil))
		b.clock.Advance(time.Hour - time.Millisecond)
		require.Empty(t, b.claim(t, 10), "the first is delayed")
		b.clock.Advance(time.Millisecond)
		require.Equal(t, first.ID, b.claimOne(t).ID)
	},

	"EachHandlerGoesThroughAKeyByItself": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 3, "h", "g")...)
		for i := range 3 {
			d := b.claimOne(t, "h")
			require.Equal(t, fmt.Sprintf("h:e-%d", i), d.ID)
			b.complete(t, d)
		}
		require.Empty(t, b.claim(t, 10, "h"))
		require.Equal(t, "g:e-0", b.claimOne(t, "g", "h").ID)
	},

	"AKeyHandlerPairIsNoOtherPair": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "b:k", "a"), msg("e-2", "k", "a", "b"), msg("e-3", ":", "a"))
		require.Len(t, b.claim(t, 10, "a", "b"), 4)
	},

	"ALeaseRunsOutAtItsEndAndNotBefore": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", ""))
		ds, err := b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}, LeaseFor: 1500*time.Millisecond + 999*time.Microsecond})
		require.NoError(t, err)
		require.Equal(t, b.clock.Now().Add(1500*time.Millisecond), ds[0].Until)
		b.clock.Advance(1499 * time.Millisecond)
		require.Empty(t, b.claim(t, 1))
		b.clock.Advance(time.Millisecond)
		require.Len(t, b.claim(t, 1), 1)
	},

	"ManyAtOnceTakeEachOnce": func(t *testing.T, b *bundle) {
		for i := range 40 {
			b.append(t, msg(fmt.Sprintf("u-%d", i), ""), msg(fmt.Sprintf("k-%d", i), fmt.Sprintf("k-%d", i%10)))
		}
		var mu sync.Mutex
		taken := map[string]int{}
		together(8, func(int) {
			for {
				ds, err := b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}, Limit: 3})
				if err == nil {
					err = b.store.Complete(t.Context(), ds...)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, d := range ds {
					taken[d.ID]++
				}
				full := len(taken) == 80
				mu.Unlock()
				if full {
					return
				}
			}
		})
		for id, n := range taken {
			require.Equal(t, 1, n, id)
		}
	},

	"LeavesAloneWhatAnotherTookMeanwhile": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		b.append(t, msg("e-1", ""), msg("e-2", "k"))
		release := make(chan struct{})
		proxy.OnRequest(mongotest.Once(mongotest.Hold(release), "update"))
		slow := make(chan []*outbox.Delivery, 1)
		go func() {
			ds, err := s.Claim(context.Background(), outbox.ClaimOptions{Handlers: []string{"h"}})
			if err != nil {
				t.Error(err)
			}
			slow <- ds
		}()
		eventually(t, func() bool { return proxy.Seen("update") > 0 }, "it has looked, and is about to lease")
		ds := b.claim(t, 10)
		require.Len(t, ds, 2)
		close(release)
		require.Empty(t, <-slow)
		b.complete(t, ds...)
	},

	"IsRefusedInATransaction_AndLeavesASessionAlone": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", ""))
		ctx, session := b.begin(t)
		_, err := b.store.Claim(ctx, outbox.ClaimOptions{Handlers: []string{"h"}})
		require.ErrorIs(t, err, mongostore.ErrInvalid)
		require.NoError(t, session.AbortTransaction(t.Context()))
		ds, err := b.store.Claim(ctx, outbox.ClaimOptions{Handlers: []string{"h"}})
		require.NoError(t, err)
		require.Len(t, ds, 1)
	},

	"WhoseReplyIsLostReadsBackWhatItHolds": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		b.append(t, msg("e-1", ""), msg("e-2", "k"), msg("e-3", "k"))
		proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
		ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"h:e-1", "h:e-2"}, idsOf(ds))
		require.Equal(t, 1, proxy.Replies().Cut)
		require.NoError(t, s.Complete(t.Context(), ds...))
		require.Equal(t, "h:e-3", b.claimOne(t).ID)
	},

	"AfterAnErrorWhatWasLeasedComesBackWhenItsLeaseEnds": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		b.append(t, msg("e-1", ""), msg("e-2", "k"))
		_, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"nobody"}}) // the repair is done
		require.NoError(t, err)
		proxy.OnRequest(mongotest.Always(mongotest.Cut, "aggregate"))
		_, err = s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
		require.Error(t, err)
		require.NotErrorIs(t, err, mongostore.ErrInvalid)
		require.Equal(t, "processing", b.status(t, "h:e-2"))
		require.Empty(t, b.claim(t, 10))
		b.clock.Advance(30 * time.Second)
		require.Len(t, b.claim(t, 10), 2)
	},

	"BH-07_ClocksThatDisagreeRecordOneCompletion": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-11", "k"))
		fast, err := outbox.New(b.client, outbox.Config{Database: b.db.Name(), Clock: mongostoretest.NewClock(b.clock.Now().Add(25 * time.Second))})
		require.NoError(t, err)
		opts := outbox.ClaimOptions{Handlers: []string{"h"}, LeaseFor: 20 * time.Second}
		w1, err := b.store.Claim(t.Context(), opts)
		require.NoError(t, err)
		w2, err := fast.Claim(t.Context(), opts)
		require.NoError(t, err)
		require.Len(t, w2, 1, "for the fast clock the lease has run out")
		require.ErrorIs(t, b.store.Complete(t.Context(), w1...), mongostore.ErrLeaseLost)
		require.ErrorIs(t, b.store.Extend(t.Context(), w1[0], time.Hour), mongostore.ErrLeaseLost)
		require.NoError(t, fast.Complete(t.Context(), w2...))
		require.Equal(t, "completed", b.status(t, "h:e-11"))
	},

	"BH-07_ExtendNeverMovesAnEndBackwards": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-11", ""))
		d := b.claimOne(t)
		until := d.Until
		b.clock.Advance(-10 * time.Second)
		require.NoError(t, b.store.Extend(t.Context(), d, 20*time.Second))
		require.Equal(t, until, d.Until)
		require.Equal(t, until, b.doc(t, d.ID).Lookup("due_at").Time().UTC())
	},

	"BH-20_ABlockedKeyStarvesNobody": func(t *testing.T, b *bundle) {
		s, sent := b.monitored(t)
		b.append(t, msg("slow", "slow"))
		head := b.claimOne(t)
		b.append(t, msgs("behind", "slow", 10_000)...)
		require.NoError(t, b.store.Extend(t.Context(), head, time.Hour))
		for i := range 50 {
			b.append(t, msg(fmt.Sprintf("e-%d", i), fmt.Sprintf("k-%d", i)))
		}
		got := map[string]bool{}
		for range 5 {
			sent.Reset()
			ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
			require.NoError(t, err)
			require.Len(t, ds, 10)
			for _, d := range ds {
				got[d.ID] = true
			}
			var keys int64
			for _, c := range sent.Commands() {
				keys += mongotest.Explain(t, b.db, c.Body).KeysExamined
			}
			require.LessOrEqual(t, keys, int64(100), "whatever waits")
		}
		require.Len(t, got, 50)
		require.Empty(t, b.claim(t, 10))
		b.complete(t, head)
		require.Equal(t, "h:behind-0", b.claimOne(t).ID)
	},

	"BH-20_WhatFailsAgainAndAgainLetsAFreshOneThrough": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 100)...)
		failAll := func() []*outbox.Delivery {
			b.clock.Advance(time.Second)
			ds := b.claim(t, 100)
			for _, d := range ds {
				require.NoError(t, b.store.Retry(t.Context(), d, 0, errors.New("no")))
			}
			return ds
		}
		require.Len(t, failAll(), 100)
		b.clock.Advance(time.Second)
		b.append(t, msg("fresh", ""))
		require.Len(t, failAll(), 100)
		require.Contains(t, idsOf(failAll()), "h:fresh")
	},

	"BlockedOnesDoNotUseUpTheLimit": func(t *testing.T, b *bundle) {
		const keys = 30
		for i := range keys { // a dead letter comes back while a later one runs: due, and blocked
			key := fmt.Sprintf("k-%02d", i)
			b.append(t, msg("a-"+key, key), msg("b-"+key, key))
		}
		for _, d := range b.claim(t, 100) {
			require.NoError(t, b.store.Bury(t.Context(), d, nil))
		}
		require.Len(t, b.claim(t, 100), keys, "the second of each key runs")
		for i := range keys {
			n, err := b.store.Requeue(t.Context(), fmt.Sprintf("h:a-k-%02d", i))
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		b.clock.Advance(time.Millisecond)
		b.append(t, msgs("free", "", 12)...)
		ds := b.claim(t, 10)
		require.Len(t, ds, 10)
		for _, d := range ds {
			require.Empty(t, d.Message.Key, d.ID)
		}
	},

	"OneThatWasTakenTooEarlyWaitsAgain": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 3)...)
		first := b.claimOne(t)
		b.clock.Advance(time.Second)
		edit(t, b.deliveries, "h:e-1", mongo.Pipeline{kv("$set", kv("status", "pending", "due_at", "$available_at", "active_lane", "h:k")), kv("$unset", "waiting_lane")})
		require.Empty(t, b.claim(t, 10))
		doc := b.doc(t, "h:e-1")
		require.Equal(t, []any{"waiting", "h:k", int64(0)}, []any{doc.Lookup("status").StringValue(), doc.Lookup("waiting_lane").StringValue(), doc.Lookup("attempts").AsInt64()})
		require.Zero(t, doc.Lookup("due_at"))
		require.Zero(t, doc.Lookup("token"))
		b.complete(t, first)
		require.Equal(t, "h:e-1", b.claimOne(t).ID)
	},

	"GivingWayPutsACrashedLeaseBackAsItWas": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 2)...)
		first := b.claimOne(t)
		require.NoError(t, b.store.Bury(t.Context(), first, nil))
		second := b.claimOne(t) // and its worker crashes
		b.clock.Advance(time.Minute)
		_, err := b.store.Requeue(t.Context(), first.ID)
		require.NoError(t, err)
		before := b.doc(t, second.ID)
		d := b.claimOne(t)
		require.Equal(t, first.ID, d.ID, "the lower number comes first")
		require.Empty(t, b.claim(t, 10))
		require.Equal(t, before, b.doc(t, second.ID), "as it was, its old token and its attempts included")
		b.complete(t, d)
		require.Equal(t, second.ID, b.claimOne(t).ID)
	},

	"BH-19_ARequeuedDeadLetterRunsBesideNothingOfItsKey": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "acct-3", 5)...) // e-0 is event 1
		one := b.claimOne(t)
		require.NoError(t, b.store.Bury(t.Context(), one, errors.New("no")))
		b.complete(t, b.claimOne(t))
		three := b.claimOne(t)
		require.Equal(t, "h:e-2", three.ID)
		n, err := b.store.Requeue(t.Context(), one.ID)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		for range 3 {
			require.Empty(t, b.claim(t, 10), "while 3 runs")
		}
		b.complete(t, three)
		var mu sync.Mutex
		var order []string
		running := 0
		together(8, func(int) {
			for done := false; !done; {
				ds, err := b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if running += len(ds); running > 1 {
					t.Error("two of the key run")
				}
				order = append(order, idsOf(ds)...)
				done = len(order) >= 3
				mu.Unlock()
				mu.Lock()
				running -= len(ds)
				mu.Unlock()
				if err := b.store.Complete(t.Context(), ds...); err != nil {
					t.Error(err)
				}
			}
		})
		require.Equal(t, []string{"h:e-0", "h:e-3", "h:e-4"}, order)
	},
}

// proxied is another store, behind a proxy, whose driver does not try again by itself.
func (b *bundle) proxied(t testing.TB) (*outbox.Store, *mongotest.Proxy) {
	t.Helper()
	proxy := mongotest.NewProxy(t, b.server.Addr(t))
	client := b.server.Client(t, mongotest.Through(proxy), options.Client().SetRetryWrites(false).SetRetryReads(false))
	return b.on(t, client), proxy
}

// TestClaimersShareTheFront: many claimers of many keys find all, without an error.
func TestClaimersShareTheFront(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	const keys, each = 20, 10
	for i := range each {
		var all []outbox.Message
		for k := range keys {
			all = append(all, msg(fmt.Sprintf("e-%d-%02d", k, i), fmt.Sprintf("k-%d", k), "h", "g"))
		}
		b.append(t, all...)
	}
	stores := []*outbox.Store{b.store, b.on(t, b.client)}
	var mu sync.Mutex
	order := map[string][]string{}
	left := 2 * keys * each
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	together(8, func(i int) {
		for {
			ds, err := stores[i%2].Claim(ctx, outbox.ClaimOptions{Handlers: []string{"h", "g"}, Limit: 5})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			for _, d := range ds {
				lane := d.Handler + ":" + d.Message.Key
				order[lane] = append(order[lane], d.ID)
			}
			left -= len(ds)
			done := left <= 0
			mu.Unlock()
			if err := stores[i%2].Complete(ctx, ds...); err != nil {
				t.Error(err)
				return
			}
			if done {
				return
			}
		}
	})
	require.Len(t, order, 2*keys)
	for lane, ids := range order {
		require.Len(t, ids, each, lane)
		require.True(t, slices.IsSorted(ids), "%s: %v", lane, ids)
	}
}
