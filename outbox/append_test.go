package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

func TestAppend(t *testing.T) { run(t, appendTests) }

var appendTests = tests{
	"StoresEventAndDeliveriesWithTheTransaction": func(t *testing.T, b *bundle) {
		orders := b.db.Collection("orders")
		m := msg("e-1", "k", "h", "g")
		m.Headers = map[string]any{"trace": "t-1"}
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			if _, err := orders.InsertOne(ctx, kv("_id", "o-1")); err != nil {
				return err
			}
			return b.store.Append(ctx, m)
		}))
		require.Len(t, all(t, orders), 1)
		now := b.clock.Now()
		require.ElementsMatch(t, kv("_id", "e-1", "type", "made", "key", "k", "payload", `"e-1"`, "headers", `{"trace":"t-1"}`,
			"created_at", bson.NewDateTimeFromTime(now), "handlers", bson.A{"h", "g"}), decoded(t, all(t, b.events)[0]))
		require.Equal(t, kv("_id", "h:e-1", "event_id", "e-1", "type", "made", "handler", "h", "key", "k", "sequence", int64(1),
			"status", "pending", "available_at", bson.NewDateTimeFromTime(now), "attempts", int64(0), "requeues", int64(0),
			"due_at", bson.NewDateTimeFromTime(now), "active_lane", "h:k"), decoded(t, b.doc(t, "h:e-1")))
		require.Equal(t, kv("_id", "k", "n", int64(1)), decoded(t, all(t, b.keys)[0]))
	},

	"LeavesNothingOfATransactionThatAborts": func(t *testing.T, b *bundle) {
		failed := errors.New("no")
		require.ErrorIs(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			return errors.Join(b.store.Append(ctx, msg("e-1", "k"), msg("e-2", "")), failed)
		}), failed)
		b.requireEmpty(t)
		b.append(t, msg("e-3", "k"))
		require.EqualValues(t, 1, b.claimOne(t).Sequence, "the number was not used up")
	},

	"OfNothingIsNothing": func(t *testing.T, b *bundle) {
		b.append(t)
		b.requireEmpty(t)
	},

	"BH-16_IsRefusedWithoutAnOpenTransaction": func(t *testing.T, b *bundle) {
		none, err := b.client.StartSession()
		require.NoError(t, err)
		defer none.EndSession(context.Background())
		aborted, session := b.begin(t)
		require.NoError(t, b.store.Append(aborted, msg("e-0", "k")))
		require.NoError(t, session.AbortTransaction(t.Context()))
		committed, session := b.begin(t)
		_, err = b.db.Collection("orders").InsertOne(committed, kv("_id", 1))
		require.NoError(t, err)
		require.NoError(t, session.CommitTransaction(t.Context()))
		other, err := b.server.Client(t).StartSession()
		require.NoError(t, err)
		defer other.EndSession(context.Background())
		require.NoError(t, other.StartTransaction())
		for name, c := range map[string]struct {
			ctx  context.Context
			want error
		}{
			"no session":               {t.Context(), outbox.ErrOutsideTransaction},
			"no transaction":           {mongo.NewSessionContext(t.Context(), none), outbox.ErrOutsideTransaction},
			"an aborted one":           {aborted, outbox.ErrOutsideTransaction},
			"a committed one":          {committed, outbox.ErrOutsideTransaction},
			"one of another client":    {mongo.NewSessionContext(t.Context(), other), mongostore.ErrInvalid},
			"no session, and no event": {t.Context(), outbox.ErrOutsideTransaction},
		} {
			events := []outbox.Message{msg("e-1", "k")}
			if strings.HasSuffix(name, "no event") {
				events = nil
			}
			require.ErrorIs(t, b.store.Append(c.ctx, events...), c.want, name)
		}
		b.requireEmpty(t)
	},

	"BH-17_AKnownEventIsNotStoredAgain": func(t *testing.T, b *bundle) {
		store, client, duplicates := b.watchingDuplicates(t)
		orders := b.db.Collection("orders")
		publish := func(order string, times int) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, store.Transaction(ctx, func(ctx context.Context) error {
				if _, err := client.Database(b.db.Name()).Collection("orders").InsertOne(ctx, kv("_id", order)); err != nil {
					return err
				}
				for range times {
					if err := store.Append(ctx, msg("e-70", "k", "h", "g")); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		publish("o-7", 2)
		publish("o-8", 1)
		b.append(t, msg("e-70", "", "h"), msg("e-70", "k", "g"))
		require.Len(t, all(t, orders), 2)
		require.Len(t, all(t, b.events), 1)
		require.Len(t, all(t, b.deliveries), 2)
		require.Zero(t, duplicates.Load())
	},

	"BH-17_TwoAtOnceStoreANewEventOnce": func(t *testing.T, b *bundle) {
		store, _, duplicates := b.watchingDuplicates(t)
		for _, many := range []int{1, 70} { // both ways of finding out what is known
			for round := range 50 {
				key := []string{"", "k"}[round%2]
				batch := msgs(fmt.Sprintf("e-71-%d-%d", many, round), key, many, "h", "g")
				together(2, func(i int) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if err := appendBy(ctx, store, batch...); err != nil {
						t.Errorf("publisher %d: %v", i, err)
					}
				})
			}
		}
		require.Len(t, all(t, b.events), 50*71)
		require.Len(t, all(t, b.deliveries), 2*50*71)
		require.Zero(t, duplicates.Load())
	},

	"BH-18_AnOpenTransactionBlocksItsKeyAlone": func(t *testing.T, b *bundle) {
		t1, session := b.begin(t)
		require.NoError(t, b.store.Append(t1, msg("a1", "acct-1")))
		require.Empty(t, b.claim(t, 10))
		var tries atomic.Int64
		ended := make(chan error, 1)
		go func() {
			ended <- b.store.Transaction(context.Background(), func(ctx context.Context) error {
				tries.Add(1)
				return b.store.Append(ctx, msg("a2", "acct-1"))
			})
		}()
		eventually(t, func() bool { return tries.Load() > 2 }, "T2 conflicts")
		require.Empty(t, b.claim(t, 10))
		b.append(t, msg("b1", "acct-2"))
		require.Equal(t, "h:b1", b.claimOne(t).ID)
		require.Empty(t, b.claim(t, 10))
		require.NoError(t, session.CommitTransaction(t.Context()))
		require.NoError(t, <-ended)
		first := b.claimOne(t)
		require.Equal(t, "h:a1", first.ID)
		require.Empty(t, b.claim(t, 10))
		b.complete(t, first)
		second := b.claimOne(t)
		require.Equal(t, []any{"h:a2", int64(1), int64(2)}, []any{second.ID, first.Sequence, second.Sequence})
	},

	"BH-18_ManyPublishersOfOneKeyLoseAndOvertakeNothing": func(t *testing.T, b *bundle) {
		const publishers, events = 16, 500
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		var left atomic.Int64
		left.Store(events)
		var mu sync.Mutex
		var done []*outbox.Delivery
		var running atomic.Int64
		work := func() {
			for ctx.Err() == nil {
				ds, err := b.store.Claim(ctx, outbox.ClaimOptions{Handlers: []string{"h"}})
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("claim: %v", err)
					}
					return
				}
				for _, d := range ds {
					if running.Add(1) != 1 {
						t.Error("two of the key run at once")
					}
					mu.Lock()
					done = append(done, d)
					full := len(done) == events
					mu.Unlock()
					running.Add(-1)
					if err := b.store.Complete(ctx, d); err != nil {
						t.Errorf("complete: %v", err)
					}
					if full {
						cancel()
					}
				}
			}
		}
		together(publishers+2, func(i int) {
			if i >= publishers {
				work()
				return
			}
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				m := msg(fmt.Sprintf("e-%d", n), "acct-1")
				m.Payload = i
				if err := appendBy(ctx, b.store, m); err != nil && ctx.Err() == nil {
					t.Errorf("publisher %d: %v", i, err)
					return
				}
			}
		})
		require.Len(t, done, events)
		seen := map[string]bool{}
		for i, d := range done {
			require.EqualValues(t, i+1, d.Sequence)
			seen[d.Message.ID] = true
		}
		require.Len(t, seen, events)
	},

	"AKnownEventGainsOnlyTheHandlersThatItLacks": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "k", "h"), msg("e-2", "k", "h"))
		b.complete(t, b.claimOne(t))
		again := msg("e-1", "k", "h", "new")
		again.Payload, again.Type = "another", "other"
		b.append(t, again)
		require.Equal(t, "completed", b.status(t, "h:e-1"), "known ones stay as they are")
		require.Contains(t, decoded(t, all(t, b.events)[0]), bson.E{Key: "handlers", Value: bson.A{"h", "new"}})
		require.Len(t, all(t, b.deliveries), 3)
		d := b.claimOne(t, "new")
		require.JSONEq(t, `"e-1"`, string(d.Message.Payload.(json.RawMessage)))
		require.EqualValues(t, 3, d.Sequence, "its number is of now: it comes after what is there")
		b.append(t, again, again)
		require.Len(t, all(t, b.deliveries), 3)
	},

	"AKnownEventAmongManyGainsOnlyTheHandlersThatItLacks": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 50)...)
		b.append(t, msgs("e", "k", 100, "h", "new")...)
		require.Len(t, all(t, b.events), 100)
		require.Len(t, all(t, b.deliveries), 200)
		var last int64
		for range 100 {
			d := b.claimOne(t, "new")
			require.Greater(t, d.Sequence, last)
			last = d.Sequence
			b.complete(t, d)
		}
	},

	"AnEventNamedTwiceInOneCallGetsTheHandlersOfBoth": func(t *testing.T, b *bundle) {
		backing := []string{"h", "mine"}
		first := msg("e-1", "k", "h")
		first.Handlers = backing[:1]
		b.append(t, first, msg("e-1", "k", "h", "g"))
		require.Equal(t, []string{"h", "mine"}, backing, "the caller's slice is the caller's")
		require.ElementsMatch(t, []string{"h:e-1", "g:e-1"}, idsOf(b.claim(t, 10, "h", "g")))
		require.Equal(t, []string{"h", "g"}, b.listed(t, outbox.ListOptions{Handler: "g"})[0].Message.Handlers)
	},

	"NumbersAKeyInTheOrderOfMessages": func(t *testing.T, b *bundle) {
		b.append(t, msg("a-0", "a"), msg("b-0", "b"), msg("a-1", "a"), msg("none", ""), msg("b-1", "b"))
		b.append(t, msg("a-2", "a"))
		numbers := map[string]int64{}
		for _, d := range b.listed(t, outbox.ListOptions{}) {
			numbers[d.ID] = d.Sequence
		}
		require.Equal(t, map[string]int64{"h:a-0": 1, "h:a-1": 2, "h:a-2": 3, "h:b-0": 1, "h:b-1": 2, "h:none": 0}, numbers)
	},

	"TwoOpenTransactionsOfOneKeyConflict": func(t *testing.T, b *bundle) {
		first, session := b.begin(t)
		second, _ := b.begin(t)
		require.NoError(t, b.store.Append(first, msg("e-1", "k")))
		err := b.store.Append(second, msg("e-2", "k"))
		var labeled mongo.LabeledError
		require.ErrorAs(t, err, &labeled)
		require.True(t, labeled.HasErrorLabel("TransientTransactionError"), "%v", err)
		require.NoError(t, session.CommitTransaction(t.Context()))
		require.Len(t, all(t, b.deliveries), 1)
	},

	"ASessionOfTheCallersOwnStrandsNothing": func(t *testing.T, b *bundle) {
		ctx, session := b.begin(t)
		require.NoError(t, b.store.Append(ctx, msg("e-1", "k")))
		require.NoError(t, b.store.Append(ctx, msg("e-2", "k"), msg("e-3", "k")))
		require.NoError(t, session.CommitTransaction(t.Context()))
		for i := range 3 {
			eventually(t, func() bool {
				ds := b.claim(t, 10)
				if len(ds) == 0 {
					return false
				}
				require.Equal(t, []string{fmt.Sprintf("h:e-%d", i+1)}, idsOf(ds))
				b.complete(t, ds...)
				return true
			}, "the next of the key is claimed")
		}
	},

	"MoreInTheSameTransactionWaitsBehindWhatIsThere": func(t *testing.T, b *bundle) {
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			return errors.Join(b.store.Append(ctx, msg("e-1", "k")), b.store.Append(ctx, msg("e-2", "k")), b.store.Append(ctx, msg("e-2", "k", "g")))
		}))
		require.Equal(t, "waiting", b.status(t, "h:e-2"))
		require.Equal(t, "pending", b.status(t, "g:e-2"))
		for _, id := range []string{"h:e-1", "h:e-2"} {
			d := b.claimOne(t)
			require.Equal(t, id, d.ID)
			b.complete(t, d)
		}
	},

	"AnEventWithATimeIsDueThen_AndLaterOnesOfItsKeyWait": func(t *testing.T, b *bundle) {
		m := msg("e-1", "k")
		m.NotBefore = b.clock.Now().Add(time.Hour + 900*time.Microsecond)
		b.append(t, m, msg("e-2", "k"), msg("e-3", "other"))
		require.Equal(t, "h:e-3", b.claimOne(t).ID)
		b.clock.Advance(time.Hour - time.Millisecond)
		require.Equal(t, "h:e-3", b.claimOne(t).ID, "its lease has run out")
		b.clock.Advance(time.Millisecond)
		require.Equal(t, "h:e-1", b.claimOne(t).ID, "to the millisecond")
	},

	"AnEventOf16MiBLess64KiBIsStored_OneByteMoreIsTooLarge": func(t *testing.T, b *bundle) {
		m := msg("big", "k")
		m.Payload = ""
		b.append(t, m)
		rest := 16<<20 - 64<<10 - len(all(t, b.events)[0])
		for _, many := range []int{0, 70} {
			m.ID = fmt.Sprintf("b%02d", many)
			stored := b.count(t, b.events)
			m.Payload = strings.Repeat("x", rest+1)
			err := appendBy(t.Context(), b.store, append(msgs("beside", "", many), m)...)
			require.ErrorIs(t, err, mongostore.ErrTooLarge)
			require.ErrorIs(t, err, mongostore.ErrInvalid)
			var v *mongostore.ValidationError
			require.ErrorAs(t, err, &v)
			require.Equal(t, fmt.Sprintf("Message[%d].Payload", many), v.Field)
			require.Equal(t, stored, b.count(t, b.events), "nothing is stored")
			m.Payload = strings.Repeat("x", rest)
			b.append(t, append(msgs("beside", "", many), m)...)
		}
	},
}

func decoded(t testing.TB, doc bson.Raw) (d bson.D) {
	t.Helper()
	require.NoError(t, bson.Unmarshal(doc, &d))
	return d
}

func (b *bundle) count(t testing.TB, coll *mongo.Collection) int64 {
	t.Helper()
	n, err := coll.CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	return n
}

func (b *bundle) requireEmpty(t testing.TB) {
	t.Helper()
	for _, coll := range []*mongo.Collection{b.events, b.deliveries, b.keys} {
		require.Empty(t, all(t, coll), coll.Name())
	}
}

// watchingDuplicates is a store, and how many answers to it spoke of a duplicate key.
func (b *bundle) watchingDuplicates(t testing.TB) (*outbox.Store, *mongo.Client, *atomic.Int64) {
	t.Helper()
	var seen atomic.Int64
	note := func(text string) {
		if strings.Contains(text, "E11000") {
			seen.Add(1)
		}
	}
	client := b.server.Client(t, options.Client().SetMonitor(&event.CommandMonitor{
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { note(e.Reply.String()) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { note(e.Failure.Error()) },
	}))
	return b.on(t, client), client, &seen
}
