package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

func TestBus(t *testing.T) { run(t, busTests) }

// untyped says no type, panicking says it with a panic.
type (
	untyped   struct{}
	panicking struct{ inner fmt.Stringer }
	pointed   struct{ Type string }
)

func (untyped) EventType() string     { return "" }
func (p panicking) EventType() string { return p.inner.String() }
func (p *pointed) EventType() string  { return "pointed" + p.Type }

func ignore[T outbox.Payload](context.Context, outbox.Event[T]) error { return nil }

var busTests = tests{
	"NewBusRefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		_, err := outbox.NewBus(nil, outbox.BusConfig{})
		require.Equal(t, "store", invalidField(err))
		for field, cfg := range map[string]outbox.BusConfig{
			"BusConfig.PollEvery": {PollEvery: -1}, "BusConfig.StopTimeout": {StopTimeout: -1},
		} {
			_, err := outbox.NewBus(b.store, cfg)
			require.Equal(t, field, invalidField(err))
		}
		b.newBus(t, outbox.BusConfig{PurgeEvery: -1, KeepCompleted: -1, KeepDead: -1})
	},

	"SubscribeRefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		refused := func(field string, err error) {
			t.Helper()
			require.ErrorIs(t, err, mongostore.ErrInvalid)
			require.Equal(t, field, invalidField(err))
		}
		refused("b", outbox.Subscribe(nil, "h", ignore[placed], outbox.SubscribeOptions{}))
		for _, id := range []string{"", "a:b", "a\xff", "a\x00"} {
			refused("id", outbox.Subscribe(bus, id, ignore[placed], outbox.SubscribeOptions{}))
		}
		refused("EventType", outbox.Subscribe(bus, "h", ignore[untyped], outbox.SubscribeOptions{}))
		refused("EventType", outbox.Subscribe(bus, "h", ignore[panicking], outbox.SubscribeOptions{}))
		refused("Payload", outbox.Subscribe(bus, "h", ignore[outbox.Payload], outbox.SubscribeOptions{}))
		for field, opts := range map[string]outbox.SubscribeOptions{
			"Concurrency": {Concurrency: -1}, "Concurrency ": {Concurrency: 1001},
			"Timeout": {Timeout: -1}, "Timeout ": {Timeout: 200 * 24 * time.Hour},
		} {
			refused("SubscribeOptions."+strings.TrimSpace(field), outbox.Subscribe(bus, "h", ignore[placed], opts))
		}
		require.NoError(t, outbox.Subscribe(bus, "h", ignore[placed], outbox.SubscribeOptions{}), "nothing has taken the name")
		refused("id", outbox.Subscribe(bus, "h", ignore[placed], outbox.SubscribeOptions{}))
		refused("id", outbox.Subscribe(bus, "h", ignore[*shipped], outbox.SubscribeOptions{}))
	},

	"PublishRefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", ignore[placed], outbox.SubscribeOptions{})
		require.NoError(t, outbox.Subscribe(bus, "p", ignore[*pointed], outbox.SubscribeOptions{}))
		require.NoError(t, outbox.Subscribe(bus, "s", ignore[*shipped], outbox.SubscribeOptions{}))
		require.NoError(t, outbox.Subscribe(bus, "w", ignore[wild], outbox.SubscribeOptions{}))
		outside := bus.Publish(t.Context(), outbox.PublishOptions{}, placed{})
		require.ErrorIs(t, outside, outbox.ErrOutsideTransaction)
		ended, sess := b.begin(t)
		require.NoError(t, sess.AbortTransaction(ended))
		require.ErrorIs(t, bus.Publish(ended, outbox.PublishOptions{}, placed{}), outbox.ErrOutsideTransaction)
		foreign, err := b.server.Client(t).StartSession()
		require.NoError(t, err)
		defer foreign.EndSession(context.Background())
		require.NoError(t, foreign.StartTransaction())
		require.Equal(t, "ctx", invalidField(bus.Publish(mongo.NewSessionContext(t.Context(), foreign), outbox.PublishOptions{}, placed{})))

		for name, c := range map[string]struct {
			field string
			opts  outbox.PublishOptions
			ps    []outbox.Payload
		}{
			"nobody subscribed":      {"Payload[1]", outbox.PublishOptions{}, []outbox.Payload{placed{}, probe{}}},
			"one id for several":     {"PublishOptions.ID", outbox.PublishOptions{ID: "e"}, []outbox.Payload{placed{}, placed{}}},
			"nil":                    {"Payload[0].Payload", outbox.PublishOptions{}, []outbox.Payload{nil}},
			"a nil that panics":      {"Payload[0].Payload", outbox.PublishOptions{}, []outbox.Payload{(*pointed)(nil)}},
			"a nil that has a type":  {"Payload[0].Payload", outbox.PublishOptions{}, []outbox.Payload{(*shipped)(nil)}},
			"no type":                {"Payload[0].EventType", outbox.PublishOptions{}, []outbox.Payload{untyped{}}},
			"what JSON cannot hold":  {"Message[0].Payload", outbox.PublishOptions{}, []outbox.Payload{wild{Any: func() {}}}},
			"what is not UTF-8":      {"Message[0].Payload", outbox.PublishOptions{}, []outbox.Payload{placed{Order: "\xff"}}},
			"headers JSON cannot":    {"Message[0].Headers", outbox.PublishOptions{Headers: map[string]any{"a": func() {}}}, []outbox.Payload{placed{}}},
			"a key that is no text":  {"Message[0].Key", outbox.PublishOptions{Key: "\xff"}, []outbox.Payload{placed{}}},
			"a time before all time": {"Message[0].NotBefore", outbox.PublishOptions{NotBefore: time.Unix(-1e11, 0)}, []outbox.Payload{placed{}}},
		} {
			err := b.publishing(t.Context(), bus, c.opts, c.ps...)
			require.ErrorIs(t, err, mongostore.ErrInvalid, name)
			require.Equal(t, c.field, invalidField(err), name)
		}
		err = b.publishing(t.Context(), bus, outbox.PublishOptions{}, placed{Order: strings.Repeat("x", 16<<20)})
		require.ErrorIs(t, err, mongostore.ErrTooLarge)
		b.holdsNothing(t)
		require.NoError(t, b.publishing(t.Context(), bus, outbox.PublishOptions{}), "nothing is nothing")
	},

	"AHandlerGetsWhatWasPublished": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		got := make(chan outbox.Event[placed], 10)
		subscribe(t, bus, "h", func(_ context.Context, e outbox.Event[placed]) error { got <- e; return nil }, outbox.SubscribeOptions{})
		at := b.clock.Now()
		b.publish(t, bus, outbox.PublishOptions{
			ID: "e-1", Key: "k", Headers: map[string]any{"n": int64(1<<53 + 1), "s": "<&>"}, NotBefore: at.Add(time.Minute),
		}, placed{Order: "o-1", N: 7})
		require.Zero(t, drain(t, bus), "not before its time")
		b.clock.Advance(time.Minute)
		require.Equal(t, 1, drain(t, bus))
		require.Equal(t, outbox.Event[placed]{
			ID: "e-1", Key: "k", Sequence: 1, Attempt: 1, PublishedAt: at,
			Headers: map[string]any{"n": json.Number("9007199254740993"), "s": "<&>"}, Payload: placed{"o-1", 7},
		}, <-got)
		b.publish(t, bus, outbox.PublishOptions{}, placed{Order: "o-2"}, placed{Order: "o-3"})
		require.Equal(t, 2, drain(t, bus))
		one, two := <-got, <-got
		require.NotEmpty(t, one.ID, "an id is made")
		require.NotEqual(t, one.ID, two.ID)
		require.Zero(t, one.Sequence)
		require.Nil(t, one.Headers)
	},

	"SeveralGetTheirPlaceInTheOrderGiven": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{Concurrency: 8})
		b.publish(t, bus, outbox.PublishOptions{Key: "k"}, orders(20)...)
		require.Equal(t, 20, drain(t, bus))
		for i, order := range got.list() {
			require.Equal(t, fmt.Sprint(i), order)
		}
	},

	"EveryHandlerOfATypeGetsEachOfItsEvents": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var first, second, other notes
		subscribe(t, bus, "first", first.take, outbox.SubscribeOptions{})
		subscribe(t, bus, "second", second.take, outbox.SubscribeOptions{})
		require.NoError(t, outbox.Subscribe(bus, "other", func(_ context.Context, e outbox.Event[*shipped]) error {
			other.add(e.Payload.Order)
			return nil
		}, outbox.SubscribeOptions{}))
		b.publish(t, bus, outbox.PublishOptions{Key: "k"}, placed{Order: "p-1"}, &shipped{"s-1"}, placed{Order: "p-2"})
		require.Equal(t, 5, drain(t, bus))
		require.Equal(t, []string{"p-1", "p-2"}, first.list())
		require.Equal(t, []string{"p-1", "p-2"}, second.list())
		require.Equal(t, []string{"s-1"}, other.list())
	},

	"OfOneKeyOneAtATimeOverAllBuses": func(t *testing.T, b *bundle) {
		const keys, each, buses = 5, 12, 3
		var mu sync.Mutex
		inside, next, most := map[string]int{}, map[string]int{}, 0
		handler := func(_ context.Context, e outbox.Event[placed]) error {
			mu.Lock()
			inside[e.Key]++
			if inside[e.Key] > 1 || e.Payload.N != next[e.Key] || e.Sequence != int64(e.Payload.N)+1 {
				t.Errorf("%d of %s beside %d others, after %d", e.Payload.N, e.Key, inside[e.Key]-1, next[e.Key])
			}
			next[e.Key]++
			busy := 0
			for _, n := range inside {
				busy += n
			}
			most = max(most, busy)
			mu.Unlock()
			<-time.After(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			inside[e.Key]--
			return nil
		}
		var all []*outbox.Bus
		for range buses {
			bus := newBusOn(t, b.on(t, b.client), outbox.BusConfig{})
			subscribe(t, bus, "h", handler, outbox.SubscribeOptions{Concurrency: 8})
			all = append(all, bus)
		}
		for k := range keys {
			b.publish(t, all[0], outbox.PublishOptions{Key: fmt.Sprint("k-", k)}, orders(each)...)
		}
		for _, bus := range all {
			running(t, bus)
		}
		eventually(t, func() bool {
			st, err := b.store.Stats(t.Context())
			return err == nil && st.Completed == keys*each
		}, "all are handled")
		require.Greater(t, most, 1, "different keys run at a time")
	},

	"NoMoreThanConcurrencyAtATime": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		begun, goOn := make(chan bool, 100), make(chan bool)
		subscribe(t, bus, "h", func(context.Context, outbox.Event[placed]) error { begun <- true; <-goOn; return nil },
			outbox.SubscribeOptions{Concurrency: 3})
		b.publish(t, bus, outbox.PublishOptions{}, orders(30)...)
		ended := make(chan int, 1)
		go func() {
			n, _ := bus.Drain(t.Context())
			ended <- n
		}()
		for range 3 {
			within(t, begun)
		}
		require.Never(t, func() bool { return len(begun) > 0 }, 200*time.Millisecond, 10*time.Millisecond)
		close(goOn)
		require.Equal(t, 30, within(t, ended))
	},

	"APayloadMayBeAPointer": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		got := make(chan *shipped, 2)
		require.NoError(t, outbox.Subscribe(bus, "h", func(_ context.Context, e outbox.Event[*shipped]) error { got <- e.Payload; return nil }, outbox.SubscribeOptions{}))
		require.NoError(t, outbox.Subscribe(bus, "p", func(_ context.Context, e outbox.Event[*placed]) error { return nil }, outbox.SubscribeOptions{}),
			"also to a type whose method is the value's")
		b.publish(t, bus, outbox.PublishOptions{}, &shipped{"o-1"}, &placed{Order: "o-2"}, placed{Order: "o-3"})
		require.Equal(t, 3, drain(t, bus))
		require.Equal(t, &shipped{"o-1"}, <-got)
	},

	"APayloadThatCannotBeDecodedIsBuriedAtOnce": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{MaxAttempts: -1})
		bad := outbox.Message{ID: "bad", Type: "placed", Key: "k", Payload: map[string]any{"order": 7}, Handlers: []string{"h"}}
		good := outbox.Message{ID: "good", Type: "placed", Key: "k", Payload: map[string]any{"order": "o-1", "more": 1}, Handlers: []string{"h"}}
		b.append(t, bad, good)
		require.Equal(t, 1, drain(t, bus))
		require.Equal(t, []string{"o-1"}, got.list())
		require.Equal(t, "dead", b.status(t, "h:bad"))
		require.Contains(t, b.doc(t, "h:bad").Lookup("last_error").StringValue(), "decode the payload")
	},

	"AnIDThatIsKnownIsNotStoredAgain": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{})
		for _, order := range []string{"first", "second"} {
			b.publish(t, bus, outbox.PublishOptions{ID: "e-1", Key: "k"}, placed{Order: order})
		}
		require.Equal(t, 1, drain(t, bus))
		b.publish(t, bus, outbox.PublishOptions{ID: "e-1", Key: "k"}, placed{Order: "third"})
		require.Zero(t, drain(t, bus), "nor after it was handled")
		require.Equal(t, []string{"first"}, got.list())
		late := b.newBus(t, outbox.BusConfig{})
		subscribe(t, late, "h", nil, outbox.SubscribeOptions{})
		subscribe(t, late, "late", got.take, outbox.SubscribeOptions{})
		b.publish(t, late, outbox.PublishOptions{ID: "e-1", Key: "k"}, placed{Order: "fourth"})
		require.Equal(t, 1, drain(t, late), "it gains the handler that it lacks")
		require.Equal(t, []string{"first", "first"}, got.list())
	},

	"AHandlerWithoutAFunctionRunsInAnotherProcess": func(t *testing.T, b *bundle) {
		var got notes
		publisher, worker := b.newBus(t, outbox.BusConfig{}), b.newBus(t, outbox.BusConfig{})
		subscribe(t, publisher, "h", nil, outbox.SubscribeOptions{})
		subscribe(t, worker, "h", got.take, outbox.SubscribeOptions{})
		b.publish(t, publisher, outbox.PublishOptions{}, placed{Order: "o-1"})
		require.Zero(t, drain(t, publisher))
		require.Equal(t, 1, drain(t, worker))
		require.Equal(t, []string{"o-1"}, got.list())
	},

	"OneRunOrDrainAtATimeAndNoSubscribeMeanwhile": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", ignore[placed], outbox.SubscribeOptions{})
		stop := running(t, bus)
		require.Equal(t, "Bus", invalidField(bus.Run(t.Context())))
		_, err := bus.Drain(t.Context())
		require.Equal(t, "Bus", invalidField(err))
		err = outbox.Subscribe(bus, "new", ignore[placed], outbox.SubscribeOptions{})
		require.Equal(t, "Bus", invalidField(err))
		stop()
		subscribe(t, bus, "new", ignore[placed], outbox.SubscribeOptions{})
		b.publish(t, bus, outbox.PublishOptions{}, placed{})
		require.Equal(t, 2, drain(t, bus), "it can be used again")
	},

	"RunAndDrainRefuseAnOpenTransaction": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		ctx, sess := b.begin(t)
		require.Equal(t, "ctx", invalidField(bus.Run(ctx)))
		_, err := bus.Drain(ctx)
		require.Equal(t, "ctx", invalidField(err))
		require.NoError(t, sess.AbortTransaction(ctx))
		_, err = bus.Drain(ctx)
		require.NoError(t, err, "one that has ended is none")
	},

	"RunWithoutHandlersWaitsForTheEndToo": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{PurgeEvery: -1})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- bus.Run(ctx) }()
		require.Never(t, func() bool { return len(ended) > 0 }, 300*time.Millisecond, 10*time.Millisecond)
		cancel()
		require.NoError(t, within(t, ended))
	},

	"DrainTakesWhatHandlersPublishToo": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		for _, id := range []string{"a", "b"} {
			subscribe(t, bus, id, func(ctx context.Context, e outbox.Event[placed]) error {
				got.add(id + e.Payload.Order)
				if e.Payload.N == 0 {
					return nil
				}
				return b.publishing(ctx, bus, outbox.PublishOptions{ID: id + e.ID, Key: e.Key}, placed{Order: e.Payload.Order + "+", N: e.Payload.N - 1})
			}, outbox.SubscribeOptions{})
		}
		b.publish(t, bus, outbox.PublishOptions{ID: "e", Key: "k"}, placed{N: 2})
		require.Equal(t, 2+4+8, drain(t, bus))
		require.Len(t, got.list(), 14)
		require.Zero(t, drain(t, bus))
	},

	"DrainEndsWhenWhatIsDueIsBlocked": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{})
		b.publish(t, bus, outbox.PublishOptions{Key: "k"}, orders(3)...)
		dead := b.claimOne(t)
		require.NoError(t, b.store.Bury(t.Context(), dead, nil))
		b.claimOne(t) // another process is at work
		n, err := b.store.Requeue(t.Context(), dead.ID)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Zero(t, drain(t, bus), "what is in front cannot start while a later one is running")
		require.Empty(t, got.list())
	},

	"DrainReturnsItsError": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		subscribe(t, bus, "h", ignore[placed], outbox.SubscribeOptions{})
		b.publish(t, bus, outbox.PublishOptions{}, orders(3)...)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := bus.Drain(ctx)
		require.ErrorIs(t, err, context.Canceled)

		store, proxy := b.behind(t)
		away := newBusOn(t, store, outbox.BusConfig{})
		subscribe(t, away, "h", ignore[placed], outbox.SubscribeOptions{})
		proxy.OnRequest(cutFind)
		_, err = away.Drain(t.Context())
		require.Error(t, err)
		require.NotErrorIs(t, err, mongostore.ErrInvalid)
		proxy.OnRequest(nil)
		require.Equal(t, 3, drain(t, away), "and can be called again")
	},

	"DrainRepairsWhatASessionOfTheCallersOwnLeft": func(t *testing.T, b *bundle) {
		bus := b.newBus(t, outbox.BusConfig{})
		var got notes
		subscribe(t, bus, "h", got.take, outbox.SubscribeOptions{})
		ctx, sess := b.begin(t)
		for i := range 3 {
			require.NoError(t, bus.Publish(ctx, outbox.PublishOptions{Key: "k"}, placed{Order: fmt.Sprint(i)}))
		}
		require.NoError(t, sess.CommitTransaction(ctx))
		require.Equal(t, 3, drain(t, bus))
		require.Equal(t, []string{"0", "1", "2"}, got.list())
	},
}

// wild holds anything.
type wild struct{ Any any }

func (wild) EventType() string { return "wild" }
