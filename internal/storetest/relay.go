package storetest

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

	"github.com/execstore/mongostore"
)

// exerciseRelay: the relay delivers in order, at least once, and lives.
func exerciseRelay(t *testing.T, h *harness) {
	run(t, h.withIndexes, relayTests)
}

// deliveries is what handlers were called with.
type deliveries struct {
	mu     sync.Mutex
	ids    []string
	events []mongostore.RelayEvent
	fail   func(e mongostore.Entry, attempt int) error
}

func (d *deliveries) take(e mongostore.Entry, attempt int) error {
	d.mu.Lock()
	d.ids = append(d.ids, e.EntryID())
	fail := d.fail
	d.mu.Unlock()
	if fail != nil {
		return fail(e, attempt)
	}
	return nil
}

func (d *deliveries) handlers() mongostore.Handlers {
	return mongostore.Handlers{
		Outbox: func(_ context.Context, e mongostore.OutboxEntry) error { return d.take(e, e.Attempt) },
		Spawn:  func(_ context.Context, e mongostore.SpawnEntry) error { return d.take(e, e.Attempt) },
		Timer:  func(_ context.Context, e mongostore.Timer) error { return d.take(e, e.Attempt) },
	}
}

func (d *deliveries) observe(e mongostore.RelayEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, e)
}

func (d *deliveries) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ids)
}

// what counts the events of a kind.
func (d *deliveries) what(kind string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if e.What == kind {
			n++
		}
	}
	return n
}

func (b *bundle) relay(t *testing.T, d *deliveries, cfg mongostore.RelayConfig) *mongostore.Relay {
	t.Helper()
	cfg.Observe = d.observe
	if cfg.Backoff == nil {
		cfg.Backoff = func(int) time.Duration { return time.Second }
	}
	r, err := b.store.NewRelay(d.handlers(), cfg)
	require.NoError(t, err)
	return r
}

func drain(t *testing.T, r *mongostore.Relay) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := r.Drain(ctx)
	require.NoError(t, err)
	return n
}

var relayTests = tests{
	"DrainDeliversEverythingThatIsDueInOrder": func(t *testing.T, b *bundle) {
		var got deliveries
		for _, id := range numbered("o-", 30) {
			b.create(t, id, b.everything("ev-1"))
		}
		r := b.relay(t, &got, mongostore.RelayConfig{})
		require.Equal(t, 30*5, drain(t, r))
		b.clock.Advance(time.Hour)
		require.Equal(t, 30*2, drain(t, r), "the timers")
		require.Zero(t, drain(t, r))
		byExecution := map[string][]string{}
		for _, id := range got.list() {
			kind, execution := "", ""
			for _, o := range numbered("o-", 30) {
				for _, k := range []string{"spawn:", "outbox:", "timeout:"} {
					if len(id) > len(k+o) && id[:len(k+o)+1] == k+o+":" {
						kind, execution = k, o
					}
				}
			}
			byExecution[execution] = append(byExecution[execution], kind)
		}
		for id, kinds := range byExecution {
			require.Equal(t, []string{"spawn:", "spawn:", "outbox:", "outbox:", "outbox:", "timeout:", "timeout:"}, kinds, id)
		}
		st, err := b.store.Stats(t.Context())
		require.NoError(t, err)
		require.Zero(t, st)
		require.Equal(t, 30*7, got.what("delivered"))
		require.Equal(t, 30*7, got.what("claimed"))
	},

	"AFailingEntryHoldsBackItsExecutionAndNobodyElse": func(t *testing.T, b *bundle) {
		got := deliveries{fail: func(e mongostore.Entry, attempt int) error {
			if o, ok := e.(mongostore.OutboxEntry); ok && o.ExecutionID == "bad" && o.Seq == 2 && attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		}}
		b.create(t, "bad", emit("1", "2", "3"))
		b.create(t, "good", emit("4", "5"))
		r := b.relay(t, &got, mongostore.RelayConfig{Workers: 1})
		require.Equal(t, 3, drain(t, r))
		require.ElementsMatch(t, []string{"outbox:bad:1", "outbox:bad:2", "outbox:good:4", "outbox:good:5"}, got.list())
		require.Equal(t, 0, drain(t, r), "it backs off")
		b.clock.Advance(time.Second)
		require.Equal(t, 0, drain(t, r))
		b.clock.Advance(time.Second)
		require.Equal(t, 2, drain(t, r))
		require.Equal(t, []string{"outbox:bad:2", "outbox:bad:2", "outbox:bad:3"}, got.list()[4:])
		require.Equal(t, 2, got.what("retried"))
	},

	"ABuriedEntryHoldsBackNobody": func(t *testing.T, b *bundle) {
		got := deliveries{fail: func(e mongostore.Entry, attempt int) error {
			switch e.EntryID() {
			case "outbox:o-1:1":
				return fmt.Errorf("wrapped: %w", mongostore.Permanent(errors.New("never")))
			case "outbox:o-1:2":
				return errors.New("always")
			case "outbox:o-1:3":
				panic("boom")
			}
			return nil
		}}
		b.create(t, "o-1", emit("1", "2", "3", "4"))
		r := b.relay(t, &got, mongostore.RelayConfig{MaxAttempts: 2})
		delivered := 0
		for range 4 {
			delivered += drain(t, r)
			b.clock.Advance(time.Second)
		}
		require.Equal(t, 1, delivered)
		causes := map[string]string{}
		for _, l := range b.letters(t, mongostore.DeadLetterOptions{}) {
			causes[l.Entry.EntryID()] = fmt.Sprintf("%s after %d", l.Cause, l.Attempts)
		}
		require.Equal(t, map[string]string{
			"outbox:o-1:1": "wrapped: never after 1", "outbox:o-1:2": "always after 2", "outbox:o-1:3": "panic: boom after 2",
		}, causes)
		require.Equal(t, 3, got.what("buried"))
	},

	"NegativeMaxAttemptsNeverBuries": func(t *testing.T, b *bundle) {
		got := deliveries{fail: func(mongostore.Entry, int) error { return errors.New("always") }}
		b.create(t, "o-1", emit("1"))
		r := b.relay(t, &got, mongostore.RelayConfig{MaxAttempts: -1})
		for range 15 {
			drain(t, r)
			b.clock.Advance(time.Second)
		}
		require.Len(t, got.list(), 15)
		require.Empty(t, b.letters(t, mongostore.DeadLetterOptions{}))
	},

	"RetryAfterSaysWhen": func(t *testing.T, b *bundle) {
		got := deliveries{fail: func(_ mongostore.Entry, attempt int) error {
			if attempt == 1 {
				return mongostore.RetryAfter(time.Hour, errors.New("closed"))
			}
			return nil
		}}
		b.create(t, "o-1", emit("1"))
		r := b.relay(t, &got, mongostore.RelayConfig{})
		drain(t, r)
		b.clock.Advance(time.Hour - time.Microsecond)
		require.Zero(t, drain(t, r))
		b.clock.Advance(time.Microsecond)
		require.Equal(t, 1, drain(t, r))
	},

	"AClaimAboveMaxAttemptsBuriesTheHeadWithoutRunningIt": func(t *testing.T, b *bundle) {
		var got deliveries
		b.create(t, "o-1", emit("kills", "2"))
		for range 3 { // three holders that died
			b.claimOnly(t)
			b.clock.Advance(time.Minute)
		}
		require.Equal(t, 1, drain(t, b.relay(t, &got, mongostore.RelayConfig{MaxAttempts: 3})))
		require.Equal(t, []string{"outbox:o-1:2"}, got.list())
		require.Equal(t, "attempts exhausted", b.letters(t, mongostore.DeadLetterOptions{})[0].Cause)
	},

	"WhatKillsTheProcessDoesNotTakeTheEntriesBeforeItAlong": func(t *testing.T, b *bundle) {
		var got deliveries
		b.create(t, "o-1", emit("1", "kills", "3"))
		b.claimOnly(t) // a holder that delivered 1, and died of 2
		for range 4 {
			b.clock.Advance(time.Minute)
			dying := deliveries{fail: func(e mongostore.Entry, _ int) error {
				if e.EntryID() == "outbox:o-1:2" {
					b.set(t, "o-1", d("lease.token", "lost")) // leaves the lease as a dead process does
					return fmt.Errorf("died: %w", &mongostore.LeaseLostError{IDs: []string{"o-1"}})
				}
				return nil
			}}
			drain(t, b.relay(t, &dying, mongostore.RelayConfig{MaxAttempts: 3}))
		}
		b.clock.Advance(time.Minute)
		require.Equal(t, 1, drain(t, b.relay(t, &got, mongostore.RelayConfig{MaxAttempts: 3})))
		require.Equal(t, []string{"outbox:o-1:3"}, got.list())
		require.Equal(t, "outbox:o-1:2", b.letters(t, mongostore.DeadLetterOptions{})[0].Entry.EntryID())
	},

	"RunIsWokenByCommitsOfItsOwnProcess": func(t *testing.T, b *bundle) {
		delivered := make(chan string, 100)
		got := deliveries{fail: func(e mongostore.Entry, _ int) error { delivered <- e.EntryID(); return nil }}
		r := b.relay(t, &got, mongostore.RelayConfig{PollEvery: time.Hour})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		o := b.create(t, "o-1", emit("1"))
		for n := 2; n < 20; n++ {
			require.Equal(t, fmt.Sprintf("outbox:o-1:%d", n-1), <-delivered)
			b.commit(t, o, emit("more"))
		}
		<-delivered
		stop()
		require.NoError(t, <-ended)
	},

	"RunPollsForWhatOthersCommit": func(t *testing.T, b *bundle) {
		delivered := make(chan string, 100)
		got := deliveries{fail: func(e mongostore.Entry, _ int) error { delivered <- e.EntryID(); return nil }}
		r := b.relay(t, &got, mongostore.RelayConfig{PollEvery: 10 * time.Millisecond})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		other := b.with(t, func(*mongostore.Config) {})
		_, err := other.Commit(t.Context(), newOrder("o-1"), emit("1"))
		require.NoError(t, err)
		require.Equal(t, "outbox:o-1:1", <-delivered)
		require.ErrorIs(t, r.Run(t.Context()), mongostore.ErrInvalid, "it runs already")
		stop()
		require.NoError(t, <-ended)
		require.Zero(t, drain(t, r), "and may run again")
	},

	"StopReleasesWhatWasNotBegunAndWaitsForTheRest": func(t *testing.T, b *bundle) {
		begun, goOn := make(chan bool, 100), make(chan bool)
		got := deliveries{fail: func(e mongostore.Entry, _ int) error { begun <- true; <-goOn; return nil }}
		for _, id := range numbered("o-", 6) {
			b.create(t, id, emit("1"))
		}
		r := b.relay(t, &got, mongostore.RelayConfig{Workers: 2})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-begun
		<-begun
		stop()
		require.Eventually(t, func() bool {
			st, err := b.store.Stats(t.Context())
			return err == nil && st.Leased == 2
		}, time.Minute, 5*time.Millisecond, "four are released at once")
		close(goOn)
		require.NoError(t, <-ended)
		st, err := b.store.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 4, st.Due)
		require.Zero(t, st.Leased)
		for _, l := range b.claim(t, 0) {
			require.Equal(t, 1, l.Attempt, "as if never claimed")
		}
	},

	"StopCutsShortWhoGoesOnForTooLong": func(t *testing.T, b *bundle) {
		begun := make(chan bool, 1)
		var cause error
		b.create(t, "o-1", emit("1"))
		h := (&deliveries{}).handlers()
		h.Outbox = func(ctx context.Context, _ mongostore.OutboxEntry) error {
			begun <- true
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}
		r, err := b.store.NewRelay(h, mongostore.RelayConfig{StopTimeout: time.Millisecond})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-begun
		stop()
		require.NoError(t, <-ended)
		require.ErrorContains(t, cause, "stops")
		require.Equal(t, 1, b.claimOnly(t).Attempt, "released")
	},

	"ALostLeaseEndsTheHandlersContext": func(t *testing.T, b *bundle) {
		var got deliveries
		begun, ended := make(chan bool, 1), make(chan error, 1)
		b.create(t, "o-1", emit("1", "2"))
		h := got.handlers()
		h.Outbox = func(ctx context.Context, e mongostore.OutboxEntry) error {
			begun <- true
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		}
		r, err := b.store.NewRelay(h, mongostore.RelayConfig{LeaseFor: 200 * time.Millisecond, Observe: got.observe})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		<-begun
		b.set(t, "o-1", d("lease.token", "somebody else's", "lease.until", seconds(b.clock.Now().Add(time.Hour))))
		require.ErrorIs(t, <-ended, mongostore.ErrLeaseLost)
		stop()
		require.NoError(t, <-done)
		require.Equal(t, 1, got.what("lease_lost"))
		require.Equal(t, "somebody else's", b.doc(t, "o-1").Lookup("lease", "token").StringValue(), "nothing was changed under it")
	},

	"TheHeartbeatKeepsALeaseThatTakesLong": func(t *testing.T, b *bundle) {
		store := b.with(t, func(cfg *mongostore.Config) { cfg.Clock = nil })
		_, err := store.Commit(t.Context(), newOrder("o-1"), emit("1"))
		require.NoError(t, err)
		begun, goOn := make(chan bool, 1), make(chan bool)
		h := (&deliveries{}).handlers()
		h.Outbox = func(ctx context.Context, _ mongostore.OutboxEntry) error {
			begun <- true
			<-goOn
			return context.Cause(ctx)
		}
		const lease = 4 * time.Second // half of it must be longer than a busy machine stands still
		r, err := store.NewRelay(h, mongostore.RelayConfig{LeaseFor: lease})
		require.NoError(t, err)
		done := make(chan int, 1)
		go func() { n, _ := r.Drain(t.Context()); done <- n }()
		<-begun
		until := time.Now().Add(lease + lease/2)
		for time.Now().Before(until) {
			leases, err := store.Claim(t.Context(), mongostore.ClaimOptions{})
			require.NoError(t, err)
			require.Empty(t, leases, "it is held")
		}
		close(goOn)
		require.Equal(t, 1, <-done)
	},

	"BH-05_SpawnsCreateEachChildOnce": func(t *testing.T, b *bundle) {
		b.create(t, "par-1", mongostore.Changes{Spawns: []mongostore.Spawn{{ChildID: "par-1/c1"}, {ChildID: "taken"}, {ChildID: "par-1/c2"}}})
		b.create(t, "taken")
		before := b.doc(t, "taken")
		h := (&deliveries{}).handlers()
		h.Spawn = func(ctx context.Context, e mongostore.SpawnEntry) error {
			_, err := b.store.CreateChild(ctx, e, newOrder(""), mongostore.Changes{})
			return err
		}
		l := b.claimOnly(t) // a relay that created the child and died
		require.NoError(t, h.Spawn(t.Context(), l.Spawns[0]))
		child := b.load(t, "par-1/c1")
		for range 3 {
			b.commit(t, child, mongostore.Changes{})
		}
		b.clock.Advance(time.Minute)
		r, err := b.store.NewRelay(h, mongostore.RelayConfig{})
		require.NoError(t, err)
		require.Equal(t, 2, drain(t, r))
		require.EqualValues(t, 4, b.load(t, "par-1/c1").Version, "never reset")
		require.EqualValues(t, 1, b.load(t, "par-1/c2").Version, "the others flow")
		require.Equal(t, before, b.doc(t, "taken"))
		dead := b.letters(t, mongostore.DeadLetterOptions{})
		require.Len(t, dead, 1)
		require.Equal(t, "spawn:par-1:2", dead[0].Entry.EntryID())
		require.Contains(t, dead[0].Cause, "exists")
	},

	"BH-20_WhatFailsAllTheTimeStarvesNobody": func(t *testing.T, b *bundle) {
		got := deliveries{fail: func(e mongostore.Entry, _ int) error {
			if o := e.(mongostore.OutboxEntry); o.ExecutionID != "fresh" {
				return errors.New("always")
			}
			return nil
		}}
		for _, id := range numbered("bad-", 100) {
			b.create(t, id, emit("x"))
		}
		r := b.relay(t, &got, mongostore.RelayConfig{})
		require.Zero(t, drain(t, r))
		b.create(t, "fresh", emit("x"))
		require.Equal(t, 1, drain(t, r))
	},

	"BH-21_WhatCannotBeReadStopsNobody": func(t *testing.T, b *bundle) {
		var got deliveries
		for _, id := range numbered("o-", 100) {
			b.create(t, id, emit("x"))
		}
		b.set(t, "o-010", d("outbox.0.event", "not json"))
		b.unset(t, "o-020", "outbox.0.seq")
		b.set(t, "o-030", d("outbox", "text"))
		r := b.relay(t, &got, mongostore.RelayConfig{})
		require.Equal(t, 97, drain(t, r), "in the first pass")
		for range 9 {
			require.Zero(t, drain(t, r), "and no tight loop after it")
		}
		require.Len(t, b.damage.take(), 3)
		require.Len(t, b.letters(t, mongostore.DeadLetterOptions{}), 3)
	},

	"RefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		h := (&deliveries{}).handlers()
		for field, cfg := range map[string]mongostore.RelayConfig{
			"RelayConfig.Workers": {Workers: -1}, "RelayConfig.Batch": {Batch: -1}, "RelayConfig.LeaseFor": {LeaseFor: -1},
			"RelayConfig.PollEvery": {PollEvery: -1}, "RelayConfig.StopTimeout": {StopTimeout: -1},
		} {
			_, err := b.store.NewRelay(h, cfg)
			requireInvalid(t, err, field)
		}
		for _, d := range []time.Duration{400 * 24 * time.Hour, time.Millisecond} {
			_, err := b.store.NewRelay(h, mongostore.RelayConfig{LeaseFor: d})
			requireInvalid(t, err, "RelayConfig.LeaseFor")
		}
		for _, cfg := range []mongostore.RelayConfig{{Workers: 10_001}, {Batch: 1 << 40}} {
			_, err := b.store.NewRelay(h, cfg)
			requireInvalid(t, err, "RelayConfig.Workers and Batch")
		}
		require.NoError(t, mongostore.Permanent(nil))
		require.Error(t, mongostore.RetryAfter(time.Second, nil))
		for field, change := range map[string]func(*mongostore.Handlers){
			"Handlers.Outbox": func(h *mongostore.Handlers) { h.Outbox = nil }, "Handlers.Spawn": func(h *mongostore.Handlers) { h.Spawn = nil },
			"Handlers.Timer": func(h *mongostore.Handlers) { h.Timer = nil },
		} {
			other := h
			change(&other)
			_, err := b.store.NewRelay(other, mongostore.RelayConfig{})
			requireInvalid(t, err, field)
		}
		events := b.with(t, func(cfg *mongostore.Config) { cfg.RelayKinds = mongostore.KindOutbox })
		_, err := events.NewRelay(mongostore.Handlers{Outbox: h.Outbox}, mongostore.RelayConfig{})
		require.NoError(t, err)
	},

	"DrainTellsWhyItEnds": func(t *testing.T, b *bundle) {
		begun, goOn := make(chan bool, 1), make(chan bool)
		got := deliveries{fail: func(mongostore.Entry, int) error { begun <- true; <-goOn; return nil }}
		b.create(t, "o-1", emit("x"))
		r := b.relay(t, &got, mongostore.RelayConfig{})
		done := make(chan error, 1)
		go func() { _, err := r.Drain(t.Context()); done <- err }()
		<-begun
		_, err := r.Drain(t.Context())
		requireInvalid(t, err, "Relay")
		close(goOn)
		require.NoError(t, <-done)

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = r.Drain(ended)
		require.ErrorIs(t, err, context.Canceled)

		client := b.server.Client(t)
		gone, err := b.on(t, client, func(*mongostore.Config) {}).NewRelay(got.handlers(), mongostore.RelayConfig{})
		require.NoError(t, err)
		require.NoError(t, client.Disconnect(t.Context()))
		_, err = gone.Drain(t.Context())
		require.ErrorIs(t, err, mongo.ErrClientDisconnected)
	},
}
