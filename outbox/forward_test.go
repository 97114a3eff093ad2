package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

func TestForward(t *testing.T) { run(t, forwardTests) }

// emitted is an entry of an execution's outbox.
func emitted(execution string, seq int64, event string) mongostore.OutboxEntry {
	return mongostore.OutboxEntry{ExecutionID: execution, Seq: seq, Event: []byte(event)}
}

func always(typ string) func(mongostore.OutboxEntry) string {
	return func(mongostore.OutboxEntry) string { return typ }
}

// isPermanent asks a bus whether an error buries.
func (b *bundle) isPermanent(t *testing.T, err error) bool {
	t.Helper()
	require.Error(t, err)
	bus := b.newBus(t, outbox.BusConfig{})
	subscribe(t, bus, "asked", func(context.Context, outbox.Event[placed]) error { return err }, outbox.SubscribeOptions{})
	id := fmt.Sprintf("ask-%d", len(all(t, b.events)))
	b.publish(t, bus, outbox.PublishOptions{ID: id}, placed{})
	drain(t, bus)
	return b.status(t, "asked:"+id) == "dead"
}

var forwardTests = tests{
	"PublishesUnderTheEntrysIDWithTheExecutionAsKey": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		got := make(chan outbox.Event[placed], 10)
		subscribe(t, bus, "h", func(_ context.Context, e outbox.Event[placed]) error { got <- e; return nil }, outbox.SubscribeOptions{})
		forward := bus.Forward(func(e mongostore.OutboxEntry) string {
			require.Equal(t, "x-1", e.ExecutionID)
			return "placed"
		})
		entry := emitted("x-1", 7, `{"order":"o-1","n":3}`)
		require.NoError(t, forward(t.Context(), entry))
		require.Equal(t, 1, drain(t, bus))
		e := within(t, got)
		require.Equal(t, entry.EntryID(), e.ID)
		require.Equal(t, "x-1", e.Key)
		require.Equal(t, placed{"o-1", 3}, e.Payload)
	},

	"OneThatIsDeliveredTwiceIsStoredOnce": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{})
		forward := bus.Forward(always("placed"))
		together(6, func(int) {
			if err := forward(t.Context(), emitted("x-1", 1, `{"order":"o"}`)); err != nil {
				t.Error(err)
			}
		})
		require.Equal(t, 1, drain(t, bus))
		require.NoError(t, forward(t.Context(), emitted("x-1", 1, `{"order":"o"}`)), "also after it was handled")
		require.Zero(t, drain(t, bus))
		require.Len(t, idsIn(t, b.events), 1)
	},

	"WithoutATypeItIsDoneWith": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		require.NoError(t, bus.Forward(always(""))(t.Context(), emitted("x-1", 1, `no json`)))
		b.holdsNothing(t)
	},

	"WhatNoRetryMendsIsPermanent": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", ignore[placed], outbox.SubscribeOptions{})
		for name, err := range map[string]error{
			"nobody subscribed": bus.Forward(always("unknown"))(t.Context(), emitted("x-1", 1, `{}`)),
			"no JSON":           bus.Forward(always("placed"))(t.Context(), emitted("x-1", 1, `{`)),
			"nothing":           bus.Forward(always("placed"))(t.Context(), emitted("x-1", 1, ``)),
			"two values":        bus.Forward(always("placed"))(t.Context(), emitted("x-1", 1, `{} {}`)),
			"no UTF-8":          bus.Forward(always("placed"))(t.Context(), emitted("x-1", 1, "\"\xff\"")),
		} {
			require.ErrorIs(t, err, mongostore.ErrInvalid, name)
			require.True(t, b.isPermanent(t, err), name)
		}
	},

	"AnErrorOfTheServerIsNotPermanent": func(t *testing.T, b *bundle) {
		store, proxy := b.behind(t)
		bus := newBusOn(t, store, outbox.BusConfig{})
		subscribe(t, bus, "h", ignore[placed], outbox.SubscribeOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := bus.Forward(always("placed"))(ctx, emitted("x-1", 1, `{}`))
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, b.isPermanent(t, err))
		require.Zero(t, proxy.Seen("commitTransaction"))
	},

	"ARelayForwardsWhatExecutionsEmit": func(t *testing.T, b *bundle) {
		executions, err := mongostore.New(b.client, mongostore.Config{Database: b.db.Name(), Clock: b.clock})
		require.NoError(t, err)
		require.NoError(t, executions.Setup(t.Context()))
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", func(_ context.Context, e outbox.Event[placed]) error { got.add(e.Payload.Order); return nil }, outbox.SubscribeOptions{})
		relay, err := executions.NewRelay(mongostore.Handlers{
			Outbox: bus.Forward(func(e mongostore.OutboxEntry) string { return e.TargetID }),
			Spawn:  func(context.Context, mongostore.SpawnEntry) error { return nil },
			Timer:  func(context.Context, mongostore.Timer) error { return nil },
		}, mongostore.RelayConfig{})
		require.NoError(t, err)
		x := &execution{Header: mongostore.Header{ID: "x-1", Status: "NEW"}}
		for i := range 3 {
			_, err = executions.Commit(t.Context(), x, mongostore.Changes{Emits: []mongostore.Emit{
				{TargetID: "placed", Event: placed{Order: fmt.Sprint(i)}}, {Event: placed{Order: "not for the bus"}}, {TargetID: "unknown", Event: placed{}},
			}})
			require.NoError(t, err)
		}
		n, err := relay.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 6, n, "those that nobody subscribed to are dead letters")
		require.Equal(t, 3, drain(t, bus))
		require.Equal(t, []string{"0", "1", "2"}, got.list())
		letters, err := executions.DeadLetters(t.Context(), mongostore.DeadLetterOptions{})
		require.NoError(t, err)
		require.Len(t, letters.Items, 3)
	},

	"ACommitOfAnExecutionAndAnEventAreOneTransaction": func(t *testing.T, b *bundle) {
		executions, err := mongostore.New(b.client, mongostore.Config{Database: b.db.Name(), Clock: b.clock})
		require.NoError(t, err)
		require.NoError(t, executions.Setup(t.Context()))
		both := func(fails error) error {
			return b.store.Transaction(t.Context(), func(ctx context.Context) error {
				x := &execution{Header: mongostore.Header{ID: "x-1", Status: "NEW"}}
				if _, err := executions.Commit(ctx, x, mongostore.Changes{Emits: []mongostore.Emit{{Event: 1}}}); err != nil {
					return err
				}
				if err := b.store.Append(ctx, msg("e-1", "x-1")); err != nil {
					return err
				}
				return fails
			})
		}
		var x execution
		require.ErrorIs(t, both(errRefused), errRefused)
		require.ErrorIs(t, executions.Load(t.Context(), "x-1", &x), mongostore.ErrNotFound)
		b.holdsNothing(t)
		require.NoError(t, both(nil))
		require.NoError(t, executions.Load(t.Context(), "x-1", &x))
		require.Equal(t, []string{"h:e-1"}, idsIn(t, b.deliveries))
		require.ErrorIs(t, both(nil), mongostore.ErrConflict, "an error of the commit aborts the event too")
	},
}

// execution is one of the root package.
type execution struct {
	mongostore.Header
	Total int
}
