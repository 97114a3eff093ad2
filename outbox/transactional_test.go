package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

func TestTransactionalHandlers(t *testing.T) { run(t, transactionalTests) }

// transactionally is how the handlers of these tests run.
var transactionally = outbox.SubscribeOptions{Transactional: true}

// add counts up a document of the user's own.
func (b *bundle) add(ctx context.Context, id string) error {
	_, err := b.business().UpdateOne(ctx, kv("_id", id), kv("$inc", kv("n", 1)))
	return err
}

// counted is what add has counted.
func (b *bundle) counted(t testing.TB, id string) int64 {
	t.Helper()
	doc, err := b.business().FindOne(t.Context(), kv("_id", id)).Raw()
	require.NoError(t, err)
	n, _ := doc.Lookup("n").AsInt64OK()
	return n
}

var transactionalTests = tests{
	"WritesAndCompletionAreBothThereOrNeither": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", func(ctx context.Context, e outbox.Event[placed]) error {
			if err := b.add(ctx, "c"); err != nil {
				return err
			}
			require.Equal(t, "processing", b.status(t, "h:"+e.ID))
			require.Zero(t, b.counted(t, "c"), "nobody sees it before")
			if e.Attempt == 1 {
				return errNotYet
			}
			return nil
		}, transactionally)
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		require.Zero(t, drain(t, bus))
		require.Zero(t, b.counted(t, "c"))
		require.Equal(t, "pending", b.status(t, "h:e"))
		b.clock.Advance(time.Second)
		require.Equal(t, 1, drain(t, bus))
		require.EqualValues(t, 1, b.counted(t, "c"))
		require.Equal(t, "completed", b.status(t, "h:e"))
	},

	"TheCompletionIsInTheHandlersTransaction": func(t *testing.T, b *bundle) {
		store, sent := b.monitored(t)
		bus := newBusOn(t, store, outbox.BusConfig{})
		subscribe(t, bus, "h", func(ctx context.Context, _ outbox.Event[placed]) error {
			require.True(t, mongo.SessionFromContext(ctx).TransactionRunning())
			sent.Reset()
			return nil
		}, transactionally)
		b.publish(t, b.publisher(t, "h"), outbox.PublishOptions{Key: "k"}, orders(2)...)
		require.Equal(t, 2, drain(t, bus))
		finished := 0
		for _, c := range sent.Commands() {
			if c.Body.Lookup("updates", "0", "u", "$set", "finished_at").Type != 0 {
				finished++
				require.NotZero(t, c.Body.Lookup("autocommit").Type)
			}
		}
		require.Equal(t, 1, finished)
	},

	"WhoLostHisLeaseCommitsNothing": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		var seen notes
		bus := b.newBus(t, outbox.BusConfig{Observe: seen.observe})
		var taken bson.Raw
		subscribe(t, bus, "h", func(ctx context.Context, e outbox.Event[placed]) error {
			if taken == nil { // before the snapshot
				edit(t, b.deliveries, "h:e", kv("$set", kv("token", "another's")))
				taken = b.doc(t, "h:e")
			}
			return b.add(ctx, "c")
		}, transactionally)
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		require.Zero(t, drain(t, bus))
		require.Zero(t, b.counted(t, "c"))
		require.Equal(t, taken, b.doc(t, "h:e"))
		lost := seen.what("lease_lost")
		require.Len(t, lost, 1)
		require.ErrorIs(t, lost[0].Err, mongostore.ErrLeaseLost)
		require.Empty(t, seen.what("retried"))
	},

	"ALeaseThatIsTakenAfterTheSnapshotCommitsNothingEither": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		bus := b.newBus(t, outbox.BusConfig{})
		runs := 0
		subscribe(t, bus, "h", func(ctx context.Context, e outbox.Event[placed]) error {
			if err := b.add(ctx, "c"); err != nil {
				return err
			}
			if runs++; runs == 1 {
				edit(t, b.deliveries, "h:e", kv("$set", kv("token", "another's")))
			}
			return nil
		}, transactionally)
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		require.Zero(t, drain(t, bus))
		require.Zero(t, b.counted(t, "c"))
		require.Equal(t, "processing", b.status(t, "h:e"))
	},

	"AConflictRunsTheHandlerAgainWithinTheAttempt": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", func(ctx context.Context, e outbox.Event[placed]) error {
			got.add(fmt.Sprint(e.Attempt))
			if _, err := b.business().CountDocuments(ctx, bson.D{}); err != nil {
				return err
			}
			if len(got.list()) == 1 {
				require.NoError(t, b.add(t.Context(), "c"))
			}
			return b.add(ctx, "c")
		}, outbox.SubscribeOptions{Transactional: true, MaxAttempts: 1})
		b.publish(t, bus, outbox.PublishOptions{}, placed{})
		require.Equal(t, 1, drain(t, bus))
		require.Equal(t, []string{"1", "1"}, got.list())
		require.EqualValues(t, 2, b.counted(t, "c"))
	},

	"HandlersOfOneDocumentAllGetThrough": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", func(ctx context.Context, _ outbox.Event[placed]) error { return b.add(ctx, "c") },
			outbox.SubscribeOptions{Transactional: true, Concurrency: 8})
		b.publish(t, bus, outbox.PublishOptions{}, orders(40)...)
		require.Equal(t, 40, drain(t, bus))
		require.EqualValues(t, 40, b.counted(t, "c"))
	},

	"WhatItPublishesIsPartOfIt": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", func(ctx context.Context, e outbox.Event[placed]) error {
			err := bus.Publish(ctx, outbox.PublishOptions{ID: e.ID + "+", Key: e.Key}, &shipped{Order: "s"})
			if err == nil && e.Attempt == 1 {
				err = errNotYet
			}
			return err
		}, transactionally)
		require.NoError(t, outbox.Subscribe(bus, "s", func(_ context.Context, e outbox.Event[*shipped]) error { got.add(e.ID); return nil }, outbox.SubscribeOptions{}))
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		require.Zero(t, drain(t, bus))
		require.Equal(t, []string{"e"}, idsIn(t, b.events), "what failed has published nothing")
		b.clock.Advance(time.Second)
		require.Equal(t, 2, drain(t, bus))
		require.Equal(t, []string{"e+"}, got.list())
	},

	"AnErrorOfTheServerInsideIsAFailedAttempt": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", func(ctx context.Context, e outbox.Event[placed]) error {
			if e.Attempt == 1 {
				return insert(ctx, b.business(), "c") // a duplicate: the server aborts the transaction
			}
			return nil
		}, transactionally)
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		require.Zero(t, drain(t, bus))
		require.Contains(t, b.doc(t, "h:e").Lookup("last_error").StringValue(), "E11000")
		b.clock.Advance(time.Second)
		require.Equal(t, 1, drain(t, bus))
	},

	"APermanentErrorBuriesAndWritesNothing": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", func(ctx context.Context, _ outbox.Event[placed]) error {
			return errors.Join(b.add(ctx, "c"), mongostore.Permanent(errNotYet))
		}, transactionally)
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		require.Zero(t, drain(t, bus))
		require.Equal(t, "dead", b.status(t, "h:e"))
		require.Zero(t, b.counted(t, "c"))
	},

	"TheLeaseIsNotRenewedDuringARun": func(t *testing.T, b *bundle) {
		var sent mongotest.Commands
		store := b.on(t, b.server.Client(t, options.Client().SetMonitor(sent.Monitor())))
		bus := newBusOn(t, store, slowPoll)
		h := newBlocking()
		var runs atomic.Int64
		subscribe(t, bus, "h", func(ctx context.Context, e outbox.Event[placed]) error {
			runs.Add(1)
			return h.handle(ctx, e)
		}, outbox.SubscribeOptions{Transactional: true, Concurrency: 1, Timeout: time.Minute})
		b.publish(t, b.publisher(t, "h"), outbox.PublishOptions{ID: "e"}, placed{})
		running(t, bus)
		within(t, h.begun)
		until := b.doc(t, "h:e").Lookup("due_at").Time()
		require.GreaterOrEqual(t, until.Sub(b.clock.Now()), time.Minute, "it outlasts the run")
		sent.Reset()
		<-time.After(8500 * time.Millisecond) // more than the pause between renewals
		for _, c := range sent.Commands() {
			require.Zero(t, c.Body.Lookup("updates", "0", "u", "$max").Type, "%v", c)
		}
		require.Equal(t, until, b.doc(t, "h:e").Lookup("due_at").Time())
		h.goOn <- nil
		eventually(t, func() bool { return b.status(t, "h:e") == "completed" }, "it is completed")
		require.EqualValues(t, 1, runs.Load())
	},

	"WhatWaitsForAWorkerIsRenewedUntilItsRun": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, slowPoll)
		h := newBlocking()
		subscribe(t, bus, "h", h.handle, outbox.SubscribeOptions{Transactional: true, Concurrency: 1, Timeout: time.Minute})
		b.publish(t, bus, outbox.PublishOptions{}, orders(2)...)
		running(t, bus)
		first := within(t, h.begun)
		eventually(t, func() bool { return b.stats(t).Processing == 2 }, "both are claimed")
		now := b.clock.Advance(20 * time.Second)
		eventually(t, func() bool {
			renewed := 0
			for _, doc := range all(t, b.deliveries) {
				if doc.Lookup("due_at").Time().Equal(now.Add(30 * time.Second)) {
					renewed++
				}
			}
			return renewed == 1
		}, "the one that waits")
		h.goOn <- nil
		h.goOn <- nil
		require.NotEqual(t, first, within(t, h.begun))
		eventually(t, func() bool { return b.stats(t).Completed == 2 }, "both are completed")
	},

	"ARenewalThatIsOnItsWayWhenTheRunBeginsDoesNoHarm": func(t *testing.T, b *bundle) {
		store, proxy := b.behind(t)
		bus := newBusOn(t, store, slowPoll)
		h := newBlocking()
		subscribe(t, bus, "h", h.handle, outbox.SubscribeOptions{Transactional: true, Concurrency: 1})
		b.publish(t, b.publisher(t, "h"), outbox.PublishOptions{}, orders(2)...)
		running(t, bus)
		within(t, h.begun)
		eventually(t, func() bool { return b.stats(t).Processing == 2 }, "the other one waits")
		renewing, release := make(chan bool), make(chan struct{})
		var once sync.Once
		proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
			if m.Request.Lookup("updates", "0", "u", "$max").Type == 0 {
				return mongotest.Pass
			}
			once.Do(func() { close(renewing) })
			return mongotest.Hold(release)
		})
		within(t, renewing)
		h.goOn <- nil
		within(t, h.begun) // the one that is being renewed
		close(release)
		eventually(t, func() bool { return proxy.Seen("aggregate") > 0 }, "the renewal goes on")
		h.goOn <- nil
		eventually(t, func() bool { return b.stats(t).Completed == 2 }, "both are completed")
	},

	"TheReplyToItsCommitIsLost": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "c"))
		store, proxy := b.behind(t)
		var seen notes
		bus := newBusOn(t, store, outbox.BusConfig{Observe: seen.observe})
		subscribe(t, bus, "h", func(ctx context.Context, _ outbox.Event[placed]) error {
			_, err := mongo.SessionFromContext(ctx).Client().Database(b.db.Name()).Collection("business").UpdateOne(ctx, kv("_id", "c"), kv("$inc", kv("n", 1)))
			return err
		}, transactionally)
		b.publish(t, b.publisher(t, "h"), outbox.PublishOptions{ID: "e"}, placed{})
		proxy.OnReply(mongotest.Once(mongotest.Cut, "commitTransaction"))
		require.Equal(t, 1, drain(t, bus))
		require.EqualValues(t, 1, b.counted(t, "c"))
		require.Len(t, seen.what("delivered"), 1)
	},

	"NextOfTheKeyIsHandledAtOnce": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, slowPoll)
		h := newBlocking()
		subscribe(t, bus, "h", h.handle, transactionally)
		running(t, bus)
		b.publish(t, bus, outbox.PublishOptions{Key: "k"}, placed{Order: "a"})
		require.Equal(t, "a", within(t, h.begun))
		b.publish(t, bus, outbox.PublishOptions{Key: "k"}, placed{Order: "b"}, placed{Order: "c"})
		<-time.After(4 * time.Second) // until the pauses between polls are longer than what is waited for below
		start := time.Now()
		for range 3 {
			h.goOn <- nil
		}
		require.Equal(t, "b", within(t, h.begun))
		require.Equal(t, "c", within(t, h.begun))
		require.Less(t, time.Since(start), time.Second)
	},
}
