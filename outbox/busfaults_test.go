package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

func TestBusFaults(t *testing.T) { run(t, busFaultTests) }

// failsBy is a handler that fails as told by the attempt, and notes "order attempt".
func failsBy(got *notes, fail func(attempt int) error) func(context.Context, outbox.Event[placed]) error {
	return func(_ context.Context, e outbox.Event[placed]) error {
		got.add(fmt.Sprint(e.Payload.Order, " ", e.Attempt))
		return fail(e.Attempt)
	}
}

var errNotYet = errors.New("not yet")

var busFaultTests = tests{
	"AFailedDeliveryComesAgainAfterItsBackoff": func(t *testing.T, b *bundle) {
		var seen notes
		bus := b.newBus(t, outbox.BusConfig{Observe: seen.observe})
		var got notes
		subscribe(t, bus, "h", failsBy(&got, func(attempt int) error {
			if attempt < 3 {
				return errNotYet
			}
			return nil
		}), outbox.SubscribeOptions{Backoff: func(attempt int) time.Duration { return time.Duration(attempt) * time.Minute }})
		b.publish(t, bus, outbox.PublishOptions{Key: "k"}, placed{Order: "a"}, placed{Order: "b"})
		b.publish(t, bus, outbox.PublishOptions{Key: "other"}, placed{Order: "c"})
		require.Zero(t, drain(t, bus))
		require.ElementsMatch(t, []string{"a 1", "c 1"}, got.list(), "it holds back its key and nobody else")
		b.clock.Advance(time.Minute - time.Millisecond)
		require.Zero(t, drain(t, bus))
		require.Len(t, got.list(), 2)
		b.clock.Advance(time.Millisecond)
		require.Zero(t, drain(t, bus))
		require.Len(t, got.list(), 4)
		b.clock.Advance(2 * time.Minute)
		require.Equal(t, 2, drain(t, bus))
		require.ElementsMatch(t, []string{"a 3", "c 3", "b 1"}, got.list()[4:])
		for _, e := range seen.what("retried") {
			require.ErrorIs(t, e.Err, errNotYet)
		}
		require.Len(t, seen.what("retried"), 5)
	},

	"WithoutABackoffItIsARandomTimeUpTo200Milliseconds": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		require.NoError(t, outbox.Subscribe(bus, "h", failsBy(&got, func(int) error { return errNotYet }), outbox.SubscribeOptions{}))
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{Order: "a"})
		drain(t, bus)
		again := b.doc(t, "h:e").Lookup("available_at").Time()
		require.WithinRange(t, again, b.clock.Now(), b.clock.Now().Add(200*time.Millisecond))
	},

	"RetryAfterSaysWhen": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", failsBy(&got, func(attempt int) error {
			if attempt == 1 {
				return fmt.Errorf("wrapped: %w", mongostore.RetryAfter(time.Hour, errNotYet))
			}
			return nil
		}), outbox.SubscribeOptions{})
		b.publish(t, bus, outbox.PublishOptions{}, placed{Order: "a"})
		require.Zero(t, drain(t, bus))
		b.clock.Advance(time.Hour - time.Millisecond)
		require.Zero(t, drain(t, bus))
		b.clock.Advance(time.Millisecond)
		require.Equal(t, 1, drain(t, bus))
	},

	"APermanentErrorBuriesAndFreesTheKey": func(t *testing.T, b *bundle) {
		var seen notes
		bus := b.newBus(t, outbox.BusConfig{Observe: seen.observe})
		var got notes
		subscribe(t, bus, "h", func(_ context.Context, e outbox.Event[placed]) error {
			got.add(e.Payload.Order)
			if e.ID == "bad" && len(got.list()) == 1 {
				return fmt.Errorf("wrapped: %w", mongostore.Permanent(errors.New("never")))
			}
			return nil
		}, outbox.SubscribeOptions{MaxAttempts: -1})
		b.publish(t, bus, outbox.PublishOptions{ID: "bad", Key: "k"}, placed{Order: "a"})
		b.publish(t, bus, outbox.PublishOptions{Key: "k"}, placed{Order: "b"})
		require.Equal(t, 1, drain(t, bus))
		require.Equal(t, []string{"a", "b"}, got.list())
		require.Equal(t, "dead", b.status(t, "h:bad"))
		require.Equal(t, "wrapped: never", b.doc(t, "h:bad").Lookup("last_error").StringValue())
		require.Len(t, seen.what("buried"), 1)
		n, err := b.store.Requeue(t.Context(), "h:bad")
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, 1, drain(t, bus))
	},

	"MaxAttemptsBury": func(t *testing.T, b *bundle) {
		for name, c := range map[string]struct{ max, runs int }{"one": {1, 1}, "three": {3, 3}, "default": {0, 10}} {
			bus := b.newBus(t, outbox.BusConfig{})
			var got notes
			subscribe(t, bus, name, failsBy(&got, func(int) error { return errNotYet }), outbox.SubscribeOptions{MaxAttempts: c.max})
			b.publish(t, bus, outbox.PublishOptions{ID: name}, placed{})
			for range 12 {
				require.Zero(t, drain(t, bus))
				b.clock.Advance(time.Second)
			}
			require.Len(t, got.list(), c.runs, name)
			require.Equal(t, "dead", b.status(t, name+":"+name))
			require.Equal(t, "not yet", b.doc(t, name+":"+name).Lookup("last_error").StringValue())
		}
	},

	"NegativeMaxAttemptsNeverBury": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", failsBy(&got, func(int) error { return errNotYet }), outbox.SubscribeOptions{MaxAttempts: -1})
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		for range 15 {
			require.Zero(t, drain(t, bus))
			b.clock.Advance(time.Second)
		}
		require.Len(t, got.list(), 15)
		require.Equal(t, "pending", b.status(t, "h:e"))
	},

	"ADeliveryThatProcessesDiedOfIsBuriedWithoutRunning": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{MaxAttempts: 3})
		b.publish(t, bus, outbox.PublishOptions{ID: "kills", Key: "k"}, placed{Order: "kills"})
		b.publish(t, bus, outbox.PublishOptions{ID: "next", Key: "k"}, placed{Order: "next"})
		for range 3 {
			b.claimOne(t)
			b.clock.Advance(time.Minute)
		}
		edit(t, b.deliveries, "h:kills", bson.D{{Key: "$set", Value: bson.D{{Key: "runs", Value: 3}}}})
		require.Equal(t, 1, drain(t, bus))
		require.Equal(t, []string{"next"}, got.list())
		require.Equal(t, "attempts exhausted", b.doc(t, "h:kills").Lookup("last_error").StringValue())
	},

	"WhatOnlyWaitedInTheQueueOfTheDeadIsNotBuriedWithThem": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{MaxAttempts: 3})
		b.publish(t, bus, outbox.PublishOptions{ID: "waits"}, placed{Order: "waits"})
		for range 5 {
			b.claimOne(t)
			b.clock.Advance(time.Minute)
		}
		require.Equal(t, 1, drain(t, bus))
		require.Equal(t, []string{"waits"}, got.list())
	},
	"ARunThatAProcessDiedOfCounts": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var runs []int64
		subscribe(t, bus, "h", func(context.Context, outbox.Event[placed]) error {
			stored, _ := b.doc(t, "h:e").Lookup("runs").AsInt64OK() // as a process that dies now leaves it
			runs = append(runs, stored)
			return errors.New("no")
		}, outbox.SubscribeOptions{MaxAttempts: 3, Backoff: func(int) time.Duration { return 0 }})
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		require.Equal(t, 0, drain(t, bus))
		require.Equal(t, []int64{0, 2, 3}, runs, "the first counts when it has failed")
		require.Equal(t, "dead", b.status(t, "h:e"))
	},
	"AnErrorThatPanicsIsAFailedAttempt": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", func(context.Context, outbox.Event[placed]) error { return (*hollow)(nil) }, outbox.SubscribeOptions{MaxAttempts: 1})
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		require.Equal(t, 0, drain(t, bus))
		require.Contains(t, b.doc(t, "h:e").Lookup("last_error").StringValue(), "panic")
	},
	"AnEventOfAnotherTypeIsBuriedAtOnce": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{})
		b.append(t, msg("e", "", "h")) // for a handler that was subscribed to another event then
		require.Equal(t, 0, drain(t, bus))
		require.Empty(t, got.list())
		require.Equal(t, "dead", b.status(t, "h:e"))
	},
	"ObserveMayEndItsGoroutine": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{Observe: func(mongostore.RelayEvent) { runtime.Goexit() }})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{})
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{Order: "e"})
		require.Equal(t, 1, drain(t, bus))
	},
	"APanicAndTheEndOfItsGoroutineAreFailedAttempts": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		for id, transactional := range map[string]bool{"plain": false, "transactional": true} {
			var got notes
			subscribe(t, bus, id, failsBy(&got, func(attempt int) error {
				switch attempt {
				case 1:
					panic("boom")
				case 2:
					runtime.Goexit()
				case 3:
					var none *typedNil
					return none
				}
				return nil
			}), outbox.SubscribeOptions{Transactional: transactional})
		}
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		for _, cause := range []string{"panic: boom", "the handler called runtime.Goexit", "panic: runtime error"} {
			require.Zero(t, drain(t, bus))
			for _, id := range []string{"plain:e", "transactional:e"} {
				require.Contains(t, b.doc(t, id).Lookup("last_error").StringValue(), cause)
			}
			b.clock.Advance(time.Second)
		}
		require.Equal(t, 2, drain(t, bus))
	},

	"BackoffAndObserveMayPanic": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{Observe: func(mongostore.RelayEvent) { panic("observe") }})
		var got notes
		subscribe(t, bus, "h", failsBy(&got, func(attempt int) error {
			if attempt == 1 {
				return errNotYet
			}
			return nil
		}), outbox.SubscribeOptions{Backoff: func(int) time.Duration { panic("backoff") }})
		b.publish(t, bus, outbox.PublishOptions{}, placed{})
		require.Zero(t, drain(t, bus))
		b.clock.Advance(200 * time.Millisecond)
		require.Equal(t, 1, drain(t, bus))
	},

	"TimeoutBoundsOneRun": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		for id, transactional := range map[string]bool{"plain": false, "transactional": true} {
			subscribe(t, bus, id, func(ctx context.Context, e outbox.Event[placed]) error {
				if e.Attempt == 1 {
					<-ctx.Done()
				}
				return ctx.Err()
			}, outbox.SubscribeOptions{Transactional: transactional, Timeout: 300 * time.Millisecond})
		}
		b.publish(t, bus, outbox.PublishOptions{ID: "e"}, placed{})
		require.Zero(t, drain(t, bus))
		for _, id := range []string{"plain:e", "transactional:e"} {
			require.Equal(t, "pending", b.status(t, id))
			require.Contains(t, b.doc(t, id).Lookup("last_error").StringValue(), "deadline")
			require.EqualValues(t, 1, b.doc(t, id).Lookup("attempts").AsInt64(), "it counts")
		}
		b.clock.Advance(time.Second)
		require.Equal(t, 2, drain(t, bus))
	},

	"WithoutATimeoutAHandlerHasNoDeadline": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var plain, inside time.Duration
		until := func(to *time.Duration) func(context.Context, outbox.Event[placed]) error {
			return func(ctx context.Context, _ outbox.Event[placed]) error {
				if deadline, limited := ctx.Deadline(); limited {
					*to = time.Until(deadline)
				}
				return nil
			}
		}
		subscribe(t, bus, "plain", until(&plain), outbox.SubscribeOptions{})
		subscribe(t, bus, "transactional", until(&inside), outbox.SubscribeOptions{Transactional: true})
		b.publish(t, bus, outbox.PublishOptions{}, placed{})
		require.NoError(t, drainLimitless(t, bus))
		require.Zero(t, plain)
		require.InDelta(t, 20, inside.Seconds(), 5)
	},

	"AnErrorThatNamesAnothersLeaseIsAFailure": func(t *testing.T, b *bundle) {
		var seen notes
		bus := b.newBus(t, outbox.BusConfig{Observe: seen.observe})
		var got notes
		subscribe(t, bus, "h", failsBy(&got, func(attempt int) error {
			if attempt == 1 {
				return &mongostore.LeaseLostError{IDs: []string{"another"}}
			}
			return nil
		}), outbox.SubscribeOptions{})
		b.publish(t, bus, outbox.PublishOptions{}, placed{})
		require.Zero(t, drain(t, bus))
		require.Len(t, seen.what("retried"), 1)
		b.clock.Advance(time.Second)
		require.Equal(t, 1, drain(t, bus))
	},

	"WhoLostHisLeaseChangesNothing": func(t *testing.T, b *bundle) {
		for name, result := range map[string]error{"completed": nil, "failed": errNotYet, "buried": mongostore.Permanent(errNotYet)} {
			var seen notes
			bus := b.newBus(t, outbox.BusConfig{Observe: seen.observe})
			id := name + ":e-" + name
			var taken bson.Raw
			subscribe(t, bus, name, func(context.Context, outbox.Event[placed]) error {
				edit(t, b.deliveries, id, kv("$set", kv("token", "another's"))) // another process has taken it
				taken = b.doc(t, id)
				return result
			}, outbox.SubscribeOptions{})
			b.publish(t, bus, outbox.PublishOptions{ID: "e-" + name, Key: "k"}, placed{})
			require.Zero(t, drain(t, bus))
			require.Equal(t, taken, b.doc(t, id))
			lost := seen.what("lease_lost")
			require.Len(t, lost, 1, name)
			require.ErrorIs(t, lost[0].Err, mongostore.ErrLeaseLost)
		}
	},

	"TheReplyToAHandoverIsLost": func(t *testing.T, b *bundle) {
		for name, result := range map[string]error{"completed": nil, "failed": errNotYet, "buried": mongostore.Permanent(errNotYet)} {
			store, proxy := b.behind(t)
			var seen notes
			bus := newBusOn(t, store, outbox.BusConfig{Observe: seen.observe})
			subscribe(t, bus, name, func(context.Context, outbox.Event[placed]) error {
				proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
				return result
			}, outbox.SubscribeOptions{})
			b.publish(t, b.publisher(t, name), outbox.PublishOptions{ID: "e-" + name}, placed{})
			drain(t, bus)
			proxy.OnReply(nil)
			require.Empty(t, seen.what("lease_lost"), name)
			require.Equal(t, map[string]string{"completed": "completed", "failed": "pending", "buried": "dead"}[name], b.status(t, name+":e-"+name))
		}
	},

	"RunGoesOnThroughErrorsOfTheServer": func(t *testing.T, b *bundle) {
		store, proxy := b.behind(t)
		bus := newBusOn(t, store, outbox.BusConfig{PollEvery: 100 * time.Millisecond})
		got := make(chan string, 100)
		for id, transactional := range map[string]bool{"plain": false, "transactional": true} {
			subscribe(t, bus, id, func(_ context.Context, e outbox.Event[placed]) error {
				got <- id + " " + e.Payload.Order
				return nil
			}, outbox.SubscribeOptions{Transactional: transactional})
		}
		proxy.Refuse(true)
		running(t, bus)
		publisher := b.publisher(t, "plain", "transactional")
		b.publish(t, publisher, outbox.PublishOptions{Key: "k"}, placed{Order: "a"})
		require.Never(t, func() bool { return len(got) > 0 }, 300*time.Millisecond, 10*time.Millisecond)
		proxy.Refuse(false)
		require.ElementsMatch(t, []string{"plain a", "transactional a"}, []string{within(t, got), within(t, got)})
		proxy.OnReply(mongotest.EveryNth(7, mongotest.Cut))
		b.publish(t, publisher, outbox.PublishOptions{Key: "k"}, orders(30)...)
		eventually(t, func() bool {
			st, err := b.store.Stats(t.Context())
			b.clock.Advance(500 * time.Millisecond) // what a lost reply left leased, or backs off
			return err == nil && st.Completed == 62
		}, "all is delivered in the end")
	},
}

// typedNil is an error whose method cannot be called.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

// drainLimitless drains by a ctx that has no deadline.
func drainLimitless(t testing.TB, bus *outbox.Bus) error {
	_, err := bus.Drain(t.Context())
	return err
}

// hollow is an error that can be printed, and not be unwrapped, when it is nil.
type hollow struct{ cause error }

func (*hollow) Error() string   { return "hollow" }
func (h *hollow) Unwrap() error { return h.cause }
