package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

func TestBusRun(t *testing.T) { run(t, busRunTests) }

// blocking is a handler that tells what begins, and goes on when it is let.
type blocking struct {
	begun chan string
	goOn  chan error
}

func newBlocking() *blocking {
	return &blocking{begun: make(chan string, 1000), goOn: make(chan error, 1000)}
}

func (h *blocking) handle(_ context.Context, e outbox.Event[placed]) error {
	h.begun <- e.Payload.Order
	return <-h.goOn
}

// slowPoll is for tests in which nothing may depend on polling.
var slowPoll = outbox.BusConfig{PollEvery: time.Hour}

var busRunTests = tests{
	"IsWokenAtOnceByAPublishOfItsOwnProcess": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, slowPoll)
		got := make(chan string, 100)
		subscribe(t, bus, "h", func(_ context.Context, e outbox.Event[placed]) error { got <- e.Payload.Order; return nil }, outbox.SubscribeOptions{})
		running(t, bus)
		b.publish(t, bus, outbox.PublishOptions{}, placed{Order: "first"})
		within(t, got)
		<-time.After(500 * time.Millisecond) // until the pauses between polls are long
		for _, key := range []string{"", "k", "k"} {
			start := time.Now()
			b.publish(t, bus, outbox.PublishOptions{Key: key}, placed{Order: "next"})
			within(t, got)
			require.Less(t, time.Since(start), 10*time.Second)
		}
	},

	"IsWokenByARequeueOfItsOwnProcess": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, slowPoll)
		got := make(chan int, 100)
		subscribe(t, bus, "h", func(_ context.Context, e outbox.Event[placed]) error {
			got <- e.Attempt
			if len(got) == 1 {
				return mongostore.Permanent(errNotYet)
			}
			return nil
		}, outbox.SubscribeOptions{})
		running(t, bus)
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		eventually(t, func() bool { return b.status(t, "h:e") == "dead" }, "it is buried")
		<-time.After(500 * time.Millisecond)
		_, err := b.store.Requeue(t.Context(), "h:e")
		require.NoError(t, err)
		within(t, got)
		within(t, got)
		eventually(t, func() bool { return b.status(t, "h:e") == "completed" }, "it is handled")
	},

	"WhatWasPublishedBehindARunningOneIsNotForgotten": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, slowPoll)
		h := newBlocking()
		subscribe(t, bus, "h", h.handle, outbox.SubscribeOptions{})
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

	"FindsWhatOthersPublishWithinPollEvery": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{PollEvery: 200 * time.Millisecond})
		h := newBlocking()
		subscribe(t, bus, "h", h.handle, outbox.SubscribeOptions{})
		running(t, bus)
		other := newBusOn(t, b.on(t, b.client), outbox.BusConfig{})
		subscribe(t, other, "h", nil, outbox.SubscribeOptions{})
		<-time.After(500 * time.Millisecond)
		h.goOn <- nil
		b.publish(t, other, outbox.PublishOptions{}, placed{Order: "a"})
		require.Equal(t, "a", within(t, h.begun))
	},

	"StopsInOrder": func(t *testing.T, b *bundle) {
		var seen notes
		bus := b.newBus(t, outbox.BusConfig{Observe: seen.observe, StopTimeout: time.Hour})
		h := newBlocking()
		subscribe(t, bus, "h", h.handle, outbox.SubscribeOptions{Concurrency: 1})
		b.publish(t, bus, outbox.PublishOptions{}, orders(8)...)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- bus.Run(ctx) }()
		within(t, h.begun)
		eventually(t, func() bool { return len(seen.what("claimed")) == 8 }, "the others are claimed, and wait for a worker")
		cancel()
		eventually(t, func() bool { return b.stats(t).Pending == 7 }, "what was not begun is given back")
		require.Empty(t, ended, "Run waits for what was begun")
		h.goOn <- nil
		require.NoError(t, within(t, ended))
		require.Empty(t, h.begun, "nothing is begun after the end")
		require.EqualValues(t, 1, b.stats(t).Completed)
		for _, d := range all(t, b.deliveries) {
			if d.Lookup("status").StringValue() == "pending" {
				require.Zero(t, d.Lookup("attempts").AsInt64(), "as if never claimed")
			}
		}
		require.Empty(t, seen.what("lease_lost"))
	},

	"AHandlerThatOutlastsTheStopIsCutOff": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{StopTimeout: 300 * time.Millisecond})
		begun, causes := make(chan bool, 2), make(chan error, 2)
		for id, transactional := range map[string]bool{"plain": false, "transactional": true} {
			subscribe(t, bus, id, func(ctx context.Context, _ outbox.Event[placed]) error {
				begun <- true
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return ctx.Err()
			}, outbox.SubscribeOptions{Transactional: transactional, MaxAttempts: 1})
		}
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- bus.Run(ctx) }()
		within(t, begun)
		within(t, begun)
		cancel()
		require.NoError(t, within(t, ended))
		for range 2 {
			require.NotErrorIs(t, within(t, causes), mongostore.ErrLeaseLost)
		}
		for _, id := range []string{"plain:e", "transactional:e"} {
			require.Equal(t, "pending", b.status(t, id))
			require.Zero(t, b.doc(t, id).Lookup("attempts").AsInt64(), "a stop does not count as an attempt")
		}
	},

	"ALongHandlerKeepsItsLease": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, slowPoll)
		h := newBlocking()
		subscribe(t, bus, "h", h.handle, outbox.SubscribeOptions{Concurrency: 1})
		running(t, bus)
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		b.publish(t, bus, outbox.PublishOptions{ID: "queued"}, placed{})
		within(t, h.begun)
		eventually(t, func() bool { return b.stats(t).Processing == 2 }, "the other waits for a worker")
		for range 2 {
			until := b.clock.Advance(20 * time.Second)
			for _, id := range []string{"h:e", "h:queued"} {
				eventually(t, func() bool { return b.doc(t, id).Lookup("due_at").Time().After(until.Add(20 * time.Second)) }, "it is renewed")
			}
		}
		require.Empty(t, b.claim(t, 10), "45 s after its claim nobody else gets it")
		h.goOn <- nil
		h.goOn <- nil
		within(t, h.begun)
		eventually(t, func() bool { return b.stats(t).Completed == 2 }, "both are completed")
		require.EqualValues(t, 1, b.doc(t, "h:e").Lookup("attempts").AsInt64())
	},

	"CtxEndsWithErrLeaseLostWhenAnotherHasTaken": func(t *testing.T, b *bundle) {
		var seen notes
		bus := b.newBus(t, outbox.BusConfig{PollEvery: time.Hour, Observe: seen.observe})
		begun, causes := make(chan bool, 1), make(chan error, 1)
		subscribe(t, bus, "h", func(ctx context.Context, _ outbox.Event[placed]) error {
			begun <- true
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}, outbox.SubscribeOptions{})
		running(t, bus)
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		within(t, begun)
		edit(t, b.deliveries, "h:e", kv("$set", kv("token", "another's")))
		require.ErrorIs(t, within(t, causes), mongostore.ErrLeaseLost)
		eventually(t, func() bool { return len(seen.what("lease_lost")) == 1 }, "it is told")
		require.Equal(t, "processing", b.status(t, "h:e"))
	},

	"PurgesOnSchedule": func(t *testing.T, b *bundle) {
		for name, c := range map[string]struct {
			cfg  outbox.BusConfig
			left []string
		}{
			"by default":           {outbox.BusConfig{}, []string{"dead", "new"}},
			"dead ones too":        {outbox.BusConfig{KeepDead: time.Hour}, []string{"new"}},
			"dead ones alone":      {outbox.BusConfig{KeepCompleted: -1, KeepDead: time.Hour}, []string{"done", "new"}},
			"with a time":          {outbox.BusConfig{KeepCompleted: 9 * 24 * time.Hour}, []string{"dead", "done", "new"}},
			"completed ones never": {outbox.BusConfig{KeepCompleted: -1, KeepDead: -1}, []string{"dead", "done", "new"}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBundle(t)
				c.cfg.PurgeEvery = 50 * time.Millisecond
				store, sent := b.monitored(t)
				bus := newBusOn(t, store, c.cfg)
				subscribe(t, bus, "h", ignore[placed], outbox.SubscribeOptions{})
				b.append(t, msg("done", ""), msg("dead", ""))
				for _, d := range b.claim(t, 10) {
					if d.Message.ID == "done" {
						b.complete(t, d)
					} else {
						require.NoError(t, b.store.Bury(t.Context(), d, nil))
					}
				}
				b.clock.Advance(8 * 24 * time.Hour)
				b.publish(t, b.publisher(t, "h"), outbox.PublishOptions{ID: "new"}, placed{})
				running(t, bus)
				if len(c.left) < 3 {
					eventually(t, func() bool { return len(idsIn(t, b.events)) == len(c.left) }, "what is old is deleted")
				} else {
					<-time.After(500 * time.Millisecond)
				}
				require.Equal(t, c.left, idsIn(t, b.events))
				if c.cfg.KeepCompleted < 0 && c.cfg.KeepDead < 0 {
					for _, command := range sent.Commands() {
						require.Zero(t, command.Body.Lookup("filter", "finished_at").Type, "nor is it looked for")
					}
				}
			})
		}
	},

	"WarnsByNameWhereSetupWasForgotten": func(t *testing.T, b *bundle) {
		err := b.deliveries.Indexes().DropOne(t.Context(), "claim")
		require.NoError(t, err)
		store, log := b.logging(t, b.client)
		bus := newBusOn(t, store, outbox.BusConfig{})
		stop := running(t, bus)
		eventually(t, func() bool { return strings.Contains(log.String(), "Setup was not called") }, "a warning")
		stop()
		require.Contains(t, log.String(), "missing=[claim]")
		require.NoError(t, b.store.Setup(t.Context()))
		store, log = b.logging(t, b.client)
		running(t, newBusOn(t, store, outbox.BusConfig{}))()
		require.NotContains(t, log.String(), "Setup")
	},

	"ObserveIsToldWhatHappens": func(t *testing.T, b *bundle) {
		var seen notes
		bus := b.newBus(t, outbox.BusConfig{Observe: seen.observe})
		subscribe(t, bus, "h", func(_ context.Context, e outbox.Event[placed]) error {
			<-time.After(2 * time.Millisecond)
			switch {
			case e.ID == "bad":
				return mongostore.Permanent(errNotYet)
			case e.Attempt == 1:
				return errNotYet
			}
			return nil
		}, outbox.SubscribeOptions{})
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{})
		b.publish(t, bus, outbox.PublishOptions{ID: "bad", Key: "other"}, placed{})
		drain(t, bus)
		b.clock.Advance(time.Second)
		drain(t, bus)
		for what, want := range map[string][]mongostore.RelayEvent{
			"claimed":   {{ID: "h:bad", Key: "other", Attempt: 1}, {ID: "h:e", Key: "k", Attempt: 1}, {ID: "h:e", Key: "k", Attempt: 2}},
			"retried":   {{ID: "h:e", Key: "k", Attempt: 1}},
			"buried":    {{ID: "h:bad", Key: "other", Attempt: 1}},
			"delivered": {{ID: "h:e", Key: "k", Attempt: 2}},
		} {
			got := seen.what(what)
			for i, e := range got {
				require.Equal(t, "h", e.Handler)
				require.Equal(t, what == "claimed", e.Duration == 0)
				require.Equal(t, what == "retried" || what == "buried", e.Err != nil)
				got[i] = mongostore.RelayEvent{ID: e.ID, Key: e.Key, Attempt: e.Attempt}
			}
			require.ElementsMatch(t, want, got, what)
		}
	},

	"AnIdleBusAsksAtMostThreeTimesASecond": func(t *testing.T, b *bundle) {
		var sent mongotest.Commands
		store := b.on(t, b.server.Client(t, options.Client().SetMonitor(sent.Monitor())))
		bus := newBusOn(t, store, outbox.BusConfig{})
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			subscribe(t, bus, id, ignore[placed], outbox.SubscribeOptions{})
		}
		running(t, bus)
		<-time.After(9 * time.Second) // until the pauses have grown
		sent.Reset()
		const seconds = 5
		<-time.After(seconds * time.Second)
		require.LessOrEqual(t, len(sent.Names()), 3*seconds, "%v", sent.Names())
		require.NotEmpty(t, sent.Names())
	},
}
