package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseRelayFaults: faults that a relay or a claim had while it was built.
func exerciseRelayFaults(t *testing.T, h *harness) {
	run(t, h.withIndexes, relayFaultTests)
}

// running starts a relay and gives what ends it.
func running(t *testing.T, r *mongostore.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			require.Fail(t, "Run does not end")
		}
	}
}

// typedNil is an error whose method cannot be called.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

var relayFaultTests = tests{
	"CommitsOfItsOwnProcessDoNotKeepOthersWaiting": func(t *testing.T, b *bundle) {
		got := make(chan string, 10_000)
		d := deliveries{fail: func(e mongostore.Entry, _ int) error { got <- e.EntryID(); return nil }}
		stop := running(t, b.relay(t, &d, mongostore.RelayConfig{}))
		defer stop()
		other := b.with(t, func(*mongostore.Config) {})
		ctx, quiet := context.WithCancel(t.Context())
		defer quiet()
		busy := make(chan bool)
		go func() {
			defer close(busy)
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = b.store.Commit(ctx, newOrder(fmt.Sprintf("own-%d", i)), emit("x"))
				<-time.After(10 * time.Millisecond)
			}
		}()
		_, err := other.Commit(t.Context(), newOrder("foreign"), emit("x"))
		require.NoError(t, err)
		for timeout := time.After(time.Minute); ; {
			select {
			case id := <-got:
				if strings.HasPrefix(id, "outbox:foreign:") {
					quiet()
					<-busy
					return
				}
			case <-timeout:
				require.Fail(t, "never delivered")
			}
		}
	},

	"RunEndsInTheMiddleOfABacklog": func(t *testing.T, b *bundle) {
		for _, id := range numbered("o-", 200) {
			b.create(t, id, emit("x"))
		}
		begun := make(chan bool, 1000)
		d := deliveries{fail: func(mongostore.Entry, int) error { begun <- true; return nil }}
		ctx, cancel := context.WithCancel(t.Context())
		r := b.relay(t, &d, mongostore.RelayConfig{Batch: 1, Workers: 1})
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-begun
		cancel()
		require.NoError(t, <-ended)
		require.Less(t, len(d.list()), 100)
		require.NoError(t, r.Run(ctx), "one that has ended already")
		require.Less(t, len(d.list()), 100)
	},

	"AHandlerThatEndsItsGoroutineHasFailed": func(t *testing.T, b *bundle) {
		d := deliveries{fail: func(e mongostore.Entry, attempt int) error {
			switch {
			case attempt == 1:
				runtime.Goexit()
			case attempt == 2:
				var none *typedNil
				return none
			}
			return nil
		}}
		b.create(t, "o-1", emit("x"))
		r := b.relay(t, &d, mongostore.RelayConfig{})
		for range 2 {
			require.Zero(t, drain(t, r))
			b.clock.Advance(time.Second)
		}
		require.Equal(t, 1, drain(t, r))
	},

	"BackoffAndObserveMayPanic": func(t *testing.T, b *bundle) {
		h := (&deliveries{fail: func(_ mongostore.Entry, attempt int) error { return errors.New("no") }}).handlers()
		r, err := b.store.NewRelay(h, mongostore.RelayConfig{
			Backoff: func(int) time.Duration { panic("backoff") }, Observe: func(mongostore.RelayEvent) { panic("observe") },
		})
		require.NoError(t, err)
		b.create(t, "o-1", emit("x"))
		require.Zero(t, drain(t, r))
		require.NotZero(t, b.doc(t, "o-1").Lookup("lease", "cause").Type)
	},

	"ACommitWhileItsExecutionIsHeldIsNotForgotten": func(t *testing.T, b *bundle) {
		begun, goOn, second := make(chan bool, 1), make(chan bool), make(chan bool, 1)
		d := deliveries{fail: func(e mongostore.Entry, _ int) error {
			if e.(mongostore.OutboxEntry).Seq > 1 {
				second <- true
				return nil
			}
			begun <- true
			<-goOn
			return nil
		}}
		stop := running(t, b.relay(t, &d, mongostore.RelayConfig{PollEvery: time.Hour}))
		defer stop()
		o := b.create(t, "o-1", emit("x"))
		<-begun
		b.commit(t, o, emit("y"))
		close(goOn)
		select {
		case <-second:
		case <-time.After(time.Minute):
			require.Fail(t, "forgotten")
		}
	},

	"ARefusedRunTakesNothingFromTheOneThatRuns": func(t *testing.T, b *bundle) {
		got := make(chan bool, 10)
		d := deliveries{fail: func(mongostore.Entry, int) error { got <- true; return nil }}
		r := b.relay(t, &d, mongostore.RelayConfig{PollEvery: time.Hour})
		stop := running(t, r)
		defer stop()
		b.create(t, "o-1", emit("x"))
		<-got
		require.ErrorIs(t, r.Run(t.Context()), mongostore.ErrInvalid)
		b.create(t, "o-2", emit("x"))
		<-got
	},

	"ErrExistsIsPermanentForSpawnsAlone": func(t *testing.T, b *bundle) {
		d := deliveries{fail: func(e mongostore.Entry, attempt int) error {
			if attempt == 1 {
				return fmt.Errorf("raced: %w", mongostore.ErrExists)
			}
			return nil
		}}
		b.create(t, "o-1", emit("x"))
		r := b.relay(t, &d, mongostore.RelayConfig{})
		require.Zero(t, drain(t, r))
		b.clock.Advance(time.Second)
		require.Equal(t, 1, drain(t, r))
		require.Empty(t, b.letters(t, mongostore.DeadLetterOptions{}))
	},

	"ALostLeaseOfAnotherExecutionIsAFailure": func(t *testing.T, b *bundle) {
		d := deliveries{fail: func(_ mongostore.Entry, attempt int) error {
			if attempt == 1 {
				return &mongostore.LeaseLostError{IDs: []string{"another"}}
			}
			return nil
		}}
		b.create(t, "o-1", emit("x"))
		r := b.relay(t, &d, mongostore.RelayConfig{})
		require.Zero(t, drain(t, r))
		require.Equal(t, 1, d.what("retried"))
		b.clock.Advance(time.Second)
		require.Equal(t, 1, drain(t, r))
	},

	"BH-13_ADocumentWithoutRoomForALeaseStopsNobody": func(t *testing.T, b *bundle) {
		b.create(t, "full", emit("x"))
		b.clock.Advance(time.Second)
		for _, id := range []string{"a", "z"} {
			b.create(t, id, emit("x"))
		}
		b.fillUp(t, "full", 10)
		require.Equal(t, []string{"a", "z"}, leasedIDs(b.claim(t, 10)))
		require.Equal(t, []string{"full lease"}, b.damage.take())
		require.Empty(t, b.claim(t, 10))
	},

	"DamageTooLargeForOneCommandIsBuriedPieceByPiece": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", emit("x"))
		b.create(t, "o-2", emit("x"))
		var broken bson.A
		for i := range 50 {
			broken = append(broken, d("seq", i, "event", "no json "+strings.Repeat("x", 100_000)))
		}
		b.set(t, "o-1", d("outbox", broken))
		for _, l := range b.claim(t, 10) {
			require.Equal(t, "o-2", l.ExecutionID)
			require.Equal(t, 1, l.Attempt)
		}
		require.Len(t, b.letters(t, mongostore.DeadLetterOptions{}), 50)
	},

	"ATimerUnderAKeyThatNoPathEncodesToIsBuried": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", emit("x"))
		_ = o
		doc := b.doc(t, "o-1")
		var fields bson.D
		require.NoError(t, bson.Unmarshal(doc, &fields))
		for i := range fields {
			if fields[i].Key == "timers" {
				fields[i].Value = d("a.b", 1.0, "", 1.0, "$a.b", 1.0)
			}
		}
		b.byHand = true
		_, err := b.executions.ReplaceOne(t.Context(), d("_id", "o-1"), fields)
		require.NoError(t, err)
		var delivered deliveries
		require.Equal(t, 1, drain(t, b.relay(t, &delivered, mongostore.RelayConfig{})))
		require.Len(t, b.letters(t, mongostore.DeadLetterOptions{}), 3)
	},

	"AnEndThatIsNoTimeKeepsNobodyOut": func(t *testing.T, b *bundle) {
		decimal, err := bson.ParseDecimal128("9000000000")
		require.NoError(t, err)
		for i, lease := range []any{d("until", decimal), d("until", bson.A{9e9}), bson.A{d("until", 9e9)}, d("until", "9e9"), d("until", 1e300)} {
			id := fmt.Sprintf("o-%d", i)
			b.create(t, id, emit("x"))
			b.set(t, id, d("lease", lease))
		}
		require.Len(t, b.claim(t, 10), 5)
	},

	"PurgeGoesPastDamage": func(t *testing.T, b *bundle) {
		for _, id := range numbered("o-", 5) {
			b.finished(t, id, mongostore.Changes{})
		}
		b.unset(t, "o-001", "version")
		b.insert(t, d("_id", 5, "version", 1, "data", "{}", "finished_at", seconds(b.clock.Now()), "outbox", bson.A{d("seq", 1)}))
		require.EqualValues(t, 5, b.purge(t, b.clock.Now().Add(time.Second), 1))
	},

	"ADueTimeThatIsNoTimeIsPutBackToo": func(t *testing.T, b *bundle) {
		for _, id := range numbered("o-", 8) {
			b.create(t, id, emit("x"))
			b.set(t, id, d("due_at", bson.A{1.0}, "lease", d("token", "t", "until", seconds(b.clock.Now().Add(time.Hour)), "attempts", 1)))
		}
		require.Empty(t, b.claim(t, 1))
		for _, id := range numbered("o-", 8) {
			require.Equal(t, bson.TypeDouble, b.doc(t, id).Lookup("due_at").Type, "not looked at for ever")
		}
	},

	"OneHandoverThatIsRefusedDoesNotCostTheOthers": func(t *testing.T, b *bundle) {
		for _, id := range []string{"full", "o-1", "o-2"} {
			b.create(t, id, emit("x"))
		}
		begun, goOn := make(chan bool, 3), make(chan bool)
		got := deliveries{fail: func(e mongostore.Entry, _ int) error {
			begun <- true
			<-goOn
			return errors.New(strings.Repeat("long ", 150))
		}}
		r := b.relay(t, &got, mongostore.RelayConfig{})
		done := make(chan error, 1)
		go func() { _, err := r.Drain(t.Context()); done <- err }()
		for range 3 {
			<-begun
		}
		b.fillUp(t, "full", 100)
		close(goOn)
		require.NoError(t, <-done)
		require.Equal(t, 2, got.what("retried"))
		require.Equal(t, 1, got.what("lease_lost"))
		require.NotZero(t, b.doc(t, "o-1").Lookup("lease", "cause").Type)
		require.NotZero(t, b.doc(t, "o-2").Lookup("lease", "cause").Type)
	},
}

// fillUp leaves so many bytes of the server's limit in a document.
func (b *bundle) fillUp(t *testing.T, id string, left int) {
	t.Helper()
	b.byHand = true
	pad := strings.Repeat("x", maxDocument-len(b.doc(t, id))-left-10) // 10: name, type and lengths of the field
	require.Eventually(t, func() bool {                               // the tests' servers have little cache
		_, err := b.executions.UpdateByID(t.Context(), id, d("$set", d("pad", pad)))
		return err == nil
	}, time.Minute, 100*time.Millisecond)
}
