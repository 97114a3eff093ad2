package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

func TestFinish(t *testing.T) { run(t, finishTests) }

// ends are the ways to give a delivery up.
var ends = map[string]func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error{
	"Complete": func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error { return s.Complete(ctx, d) },
	"Bury": func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error {
		return s.Bury(ctx, d, errors.New("no"))
	},
	"Release": func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error { return s.Release(ctx, d) },
	"Retry": func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error {
		return s.Retry(ctx, d, time.Minute, errors.New("no"))
	},
	"Extend": func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error {
		return s.Extend(ctx, d, time.Minute)
	},
}

// after is the state that each of them leaves.
var after = map[string]string{"Complete": "completed", "Bury": "dead", "Release": "pending", "Retry": "pending", "Extend": "processing"}

var finishTests = tests{
	"BH-06_ALateWorkerChangesNothing": func(t *testing.T, b *bundle) {
		for name, end := range ends {
			key := "cart-" + name
			b.append(t, msg("e-"+name, key, "mailer"), msg("next-"+name, key, "mailer"))
			w1 := b.claimOne(t, "mailer")
			b.clock.Advance(31 * time.Second)
			w2 := b.claimOne(t, "mailer")
			require.Equal(t, w1.ID, w2.ID)
			before := all(t, b.deliveries)
			lost := *w1
			err := end(t.Context(), b.store, w1)
			require.ErrorIs(t, err, mongostore.ErrLeaseLost, name)
			var l *mongostore.LeaseLostError
			require.ErrorAs(t, err, &l, name)
			require.Equal(t, []string{w1.ID}, l.IDs, name)
			require.Empty(t, b.claim(t, 10, "mailer"), "what was promoted for nothing waits again")
			require.Equal(t, find(before, w1.ID), b.doc(t, w1.ID).String(), name)
			require.Equal(t, lost.Until, w1.Until, name)
			b.complete(t, w2)
			require.ErrorIs(t, end(t.Context(), b.store, w1), mongostore.ErrLeaseLost, name)
			require.Equal(t, "completed", b.status(t, w1.ID))
			b.complete(t, b.claimOne(t, "mailer"))
		}
	},

	"BH-06_ALeaseThatHasRunOutCountsAsLongAsNobodyTookIt": func(t *testing.T, b *bundle) {
		for name, end := range ends {
			b.append(t, msg("e-"+name, "", name))
			d := b.claimOne(t, name)
			b.clock.Advance(time.Hour)
			require.NoError(t, end(t.Context(), b.store, d), name)
			require.Equal(t, after[name], b.status(t, d.ID))
		}
	},

	"BH-06_EachIsCompletedOnceUnderLeasesThatRunOut": func(t *testing.T, b *bundle) {
		const items = 200
		b.append(t, msgs("e", "", items)...)
		var mu sync.Mutex
		completed := map[string]int{}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		held := make(chan *outbox.Delivery)
		together(8, func(i int) {
			for ctx.Err() == nil {
				if i < 4 { // a claimer, with leases that run out at once
					b.clock.Advance(time.Millisecond)
					ds, err := b.store.Claim(ctx, outbox.ClaimOptions{Handlers: []string{"h"}, LeaseFor: time.Millisecond})
					if err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
					for _, d := range ds {
						select {
						case held <- d:
						case <-ctx.Done():
						}
					}
					continue
				}
				select { // a slow completer
				case d := <-held:
					err := b.store.Complete(ctx, d)
					mu.Lock()
					if err == nil {
						completed[d.ID]++
					} else if !errors.Is(err, mongostore.ErrLeaseLost) && ctx.Err() == nil {
						t.Error(err)
					}
					if len(completed) == items {
						cancel()
					}
					mu.Unlock()
				case <-ctx.Done():
				}
			}
		})
		require.Len(t, completed, items)
		for id, n := range completed {
			require.Equal(t, 1, n, id)
			require.Equal(t, "completed", b.status(t, id))
		}
	},

	"EachEndsADeliveryAsItSays": func(t *testing.T, b *bundle) {
		for name, end := range ends {
			b.append(t, msg("e-"+name, "k-"+name, name))
			require.NoError(t, b.store.Retry(t.Context(), b.claimOne(t, name), 0, errors.New("first")), "an attempt before")
			claimed := b.clock.Advance(time.Second)
			d := b.claimOne(t, name)
			require.Equal(t, []any{2, "first"}, []any{d.Attempt, d.LastError})
			now := b.clock.Advance(time.Second)
			require.NoError(t, end(t.Context(), b.store, d), name)
			doc := b.doc(t, d.ID)
			require.Equal(t, after[name], doc.Lookup("status").StringValue())
			attempts, lastError := 2, "first"
			if name == "Release" {
				attempts = 1
			}
			require.EqualValues(t, attempts, doc.Lookup("attempts").AsInt64(), name)
			if name == "Bury" || name == "Retry" {
				lastError = "no"
			}
			require.Equal(t, lastError, doc.Lookup("last_error").StringValue(), name)
			switch name {
			case "Complete", "Bury":
				require.Equal(t, now, doc.Lookup("finished_at").Time().UTC())
				require.Zero(t, doc.Lookup("due_at"))
				require.Zero(t, doc.Lookup("active_lane"))
				require.Empty(t, b.claim(t, 10, name))
			case "Release":
				require.Equal(t, claimed.Add(-time.Second), doc.Lookup("due_at").Time().UTC(), "due as before")
				require.Equal(t, 2, b.claimOne(t, name).Attempt)
			case "Retry":
				require.Equal(t, now.Add(time.Minute), doc.Lookup("due_at").Time().UTC())
				require.Empty(t, b.claim(t, 10, name))
			case "Extend":
				require.Equal(t, now.Add(time.Minute), doc.Lookup("due_at").Time().UTC())
				require.Equal(t, now.Add(time.Minute), d.Until)
			}
		}
	},

	"WhatWaitsBehindIsClaimableAtOnce": func(t *testing.T, b *bundle) {
		for _, name := range []string{"Complete", "Bury"} {
			b.append(t, msg("a-"+name, name), msg("b-"+name, name), msg("c-"+name, name))
			for _, id := range []string{"a", "b"} {
				d := b.claimOne(t)
				require.Equal(t, "h:"+id+"-"+name, d.ID)
				require.NoError(t, ends[name](t.Context(), b.store, d))
			}
			late := b.claimOne(t)
			b.append(t, msg("d-"+name, name), msg("e-"+name, name)) // not known when c was claimed
			require.NoError(t, ends[name](t.Context(), b.store, late))
			d := b.claimOne(t)
			require.Equal(t, "h:d-"+name, d.ID)
			foreign := &outbox.Delivery{ID: d.ID, Token: d.Token} // from another process
			require.NoError(t, ends[name](t.Context(), b.on(t, b.client), foreign))
			b.complete(t, b.claimOne(t))
		}
	},

	"OthersOfACallAreCompletedBesideALostOne": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 3)...)
		b.append(t, msg("k-0", "k"), msg("k-1", "k"))
		ds := b.claim(t, 10)
		require.Len(t, ds, 4)
		var stolen *outbox.Delivery
		for _, d := range ds {
			if d.ID == "h:e-1" {
				stolen = d
			}
		}
		require.NoError(t, b.store.Release(t.Context(), stolen))
		err := b.store.Complete(t.Context(), append(ds, &outbox.Delivery{ID: "h:never", Token: "x"})...)
		var l *mongostore.LeaseLostError
		require.ErrorAs(t, err, &l)
		require.ElementsMatch(t, []string{"h:e-1", "h:never"}, l.IDs)
		require.Equal(t, "pending", b.status(t, "h:e-1"))
		for _, id := range []string{"h:e-0", "h:e-2", "h:k-0"} {
			require.Equal(t, "completed", b.status(t, id))
		}
		require.ElementsMatch(t, []string{"h:e-1", "h:k-1"}, idsOf(b.claim(t, 10)))
	},

	"DeliveriesOfSeveralClaimsAreCompletedTogether": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 4)...)
		ds := append(b.claim(t, 2), b.claim(t, 2)...)
		b.complete(t, append(ds, ds...)...)
		require.Equal(t, int64(4), b.stats(t).Completed)
		b.complete(t)
		b.complete(t, ds...)
		require.Equal(t, int64(4), b.stats(t).Completed, "to complete again is no error")
	},

	"ExtendOfALaneThatWasGivenToAnotherIsLost": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 2)...)
		first := b.claimOne(t)
		require.NoError(t, b.store.Bury(t.Context(), first, nil))
		second := b.claimOne(t)
		b.clock.Advance(time.Minute) // second's lease runs out
		_, err := b.store.Requeue(t.Context(), first.ID)
		require.NoError(t, err)
		require.Equal(t, first.ID, b.claimOne(t).ID)
		require.ErrorIs(t, b.store.Extend(t.Context(), second, time.Hour), mongostore.ErrLeaseLost)
		require.False(t, b.doc(t, second.ID).Lookup("due_at").Time().After(b.clock.Now()), "it does not block its lane")
		require.ErrorIs(t, b.store.Complete(t.Context(), second), mongostore.ErrLeaseLost)
	},

	"ExtendOfALiveLeaseIsNotLostToOneThatHasToGiveWay": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 2)...)
		first := b.claimOne(t)
		require.NoError(t, b.store.Bury(t.Context(), first, nil))
		second := b.claimOne(t)
		_, err := b.store.Requeue(t.Context(), first.ID)
		require.NoError(t, err)
		edit(t, b.deliveries, first.ID, bson.D{{Key: "$set", Value: bson.D{ // a claim between its lease and its look
			{Key: "status", Value: "processing"}, {Key: "token", Value: "another"}, {Key: "due_at", Value: b.clock.Now().Add(time.Minute)}}}})
		require.NoError(t, b.store.Extend(t.Context(), second, time.Minute))
		b.complete(t, second)
	},
	"ALongCauseIsCut_AndABrokenOneMended": func(t *testing.T, b *bundle) {
		for i, end := range []func(d *outbox.Delivery, cause error) error{
			func(d *outbox.Delivery, cause error) error { return b.store.Bury(t.Context(), d, cause) },
			func(d *outbox.Delivery, cause error) error { return b.store.Retry(t.Context(), d, time.Hour, cause) },
		} {
			for j, cause := range []string{"$status", "a\xffb", strings.Repeat("ä", 10_000)} {
				b.append(t, msg(fmt.Sprintf("e-%d-%d", i, j), ""))
				d := b.claimOne(t)
				require.NoError(t, end(d, errors.New(cause)))
				text := b.doc(t, d.ID).Lookup("last_error").StringValue()
				require.Equal(t, []string{"$status", "a\uFFFDb", strings.Repeat("ä", 2048)}[j], text)
			}
		}
	},

	"InATransactionOnlyCompleteJoins": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "k"))
		d := b.claimOne(t)
		ctx, session := b.begin(t)
		for name, end := range ends {
			if name != "Complete" {
				require.ErrorIs(t, end(ctx, b.store, d), mongostore.ErrInvalid, name)
			}
		}
		require.NoError(t, b.store.Complete(ctx, d))
		require.Equal(t, "processing", b.status(t, d.ID))
		require.NoError(t, session.AbortTransaction(t.Context()))
		require.Equal(t, "processing", b.status(t, d.ID))
		require.ErrorIs(t, b.store.Complete(ctx, d), outbox.ErrOutsideTransaction)
		for _, name := range []string{"Extend", "Bury"} { // a session without a transaction does not matter to them
			require.NoError(t, ends[name](ctx, b.store, d), name)
		}
	},

	"CompleteInASessionOfTheCallersOwnLetsTheNextBeClaimed": func(t *testing.T, b *bundle) {
		for _, known := range []bool{true, false} {
			key := fmt.Sprint("k-", known)
			b.append(t, msg("a-"+key, key))
			if known {
				b.append(t, msg("b-"+key, key))
			}
			d := b.claimOne(t)
			if !known {
				b.append(t, msg("b-"+key, key))
			}
			ctx, session := b.begin(t)
			require.NoError(t, b.store.Complete(ctx, d))
			require.Empty(t, b.claim(t, 10), "not before the commit")
			require.NoError(t, session.CommitTransaction(t.Context()))
			var next []*outbox.Delivery
			eventually(t, func() bool { next = b.claim(t, 10); return len(next) > 0 }, "the next is claimed")
			require.Equal(t, []string{"h:b-" + key}, idsOf(next))
			b.complete(t, next...)
		}
	},

	"CompleteInATransactionOfALostOneSaysSo": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", ""), msg("e-2", ""))
		ds := b.claim(t, 10)
		require.NoError(t, b.store.Release(t.Context(), ds[0]))
		orders := b.db.Collection("orders")
		err := b.store.Transaction(t.Context(), func(ctx context.Context) error {
			if _, err := orders.InsertOne(ctx, kv("_id", 1)); err != nil {
				return err
			}
			return b.store.Complete(ctx, ds...)
		})
		var l *mongostore.LeaseLostError
		require.ErrorAs(t, err, &l)
		require.Equal(t, []string{ds[0].ID}, l.IDs)
		require.Empty(t, all(t, orders))
		require.Equal(t, "processing", b.status(t, ds[1].ID), "inside a transaction it is all or nothing")
	},

	"CompleteOfAnotherClientsSessionIsRefused": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", ""))
		d := b.claimOne(t)
		sess, err := b.server.Client(t).StartSession()
		require.NoError(t, err)
		defer sess.EndSession(context.Background())
		require.NoError(t, sess.StartTransaction())
		require.ErrorIs(t, b.store.Complete(mongo.NewSessionContext(t.Context(), sess), d), mongostore.ErrInvalid)
		require.Equal(t, "processing", b.status(t, d.ID))
	},

	"ALostReplyIsSettledByTheToken": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		for name, end := range ends {
			b.append(t, msg("e-"+name, "k-"+name, name), msg("next-"+name, "k-"+name, name))
			d := b.claimOne(t, name)
			cut := proxy.Replies().Cut
			proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
			require.NoError(t, end(t.Context(), s, d), name)
			require.Equal(t, cut+1, proxy.Replies().Cut, name)
			require.Equal(t, after[name], b.status(t, d.ID), name)
		}
	},

	"ALostRequestIsSentAgain": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		for _, name := range []string{"Complete", "Bury"} {
			b.append(t, msg("e-"+name, "k-"+name, name), msg("next-"+name, "k-"+name, name))
			d := b.claimOne(t, name)
			proxy.OnRequest(mongotest.Once(mongotest.Cut, "update"))
			require.NoError(t, ends[name](t.Context(), s, d), name)
			require.Equal(t, after[name], b.status(t, d.ID), name)
		}
	},

	"WhereTheServerCannotBeAskedTheOutcomeIsUnknown": func(t *testing.T, b *bundle) {
		for name, end := range ends {
			if name == "Extend" {
				continue
			}
			s, proxy := b.proxied(t)
			b.append(t, msg("e-"+name, "", name))
			d := b.claimOne(t, name)
			proxy.OnReply(mongotest.Always(mongotest.Cut, "update", "find"))
			require.ErrorIs(t, end(t.Context(), s, d), mongostore.ErrUnknownOutcome, name)
			proxy.OnReply(nil)
			require.NoError(t, end(t.Context(), s, d), "to do it again settles it: %s", name)
			require.Equal(t, after[name], b.status(t, d.ID), name)
		}
	},

	"AnExtendThatNeverReachedTheServerHasNotLostItsLease": func(t *testing.T, b *bundle) {
		s, proxy := b.proxied(t)
		b.append(t, msg("e-1", ""))
		d := b.claimOne(t)
		proxy.OnRequest(mongotest.Once(mongotest.Cut, "update"))
		err := s.Extend(t.Context(), d, time.Hour)
		require.Error(t, err)
		require.NotErrorIs(t, err, mongostore.ErrLeaseLost)
		require.NoError(t, s.Extend(t.Context(), d, time.Hour))
	},
}

func find(docs []bson.Raw, id string) string {
	for _, doc := range docs {
		if doc.Lookup("_id").StringValue() == id {
			return doc.String()
		}
	}
	return ""
}
