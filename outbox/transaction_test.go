package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

func TestTransaction(t *testing.T) { run(t, transactionTests) }

var errRefused = errors.New("refused by the function")

var transactionTests = tests{
	"CommitsWhatItsFunctionWrites": func(t *testing.T, b *bundle) {
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			if err := insert(ctx, b.business(), "b-1"); err != nil {
				return err
			}
			err := b.store.Append(ctx, msg("e-1", "k"))
			require.Empty(t, idsIn(t, b.business()), "nobody sees it before")
			require.Empty(t, idsIn(t, b.events))
			return err
		}))
		require.Equal(t, []string{"b-1"}, idsIn(t, b.business()))
		require.Equal(t, []string{"e-1"}, idsIn(t, b.events))
		require.Equal(t, []string{"h:e-1"}, idsIn(t, b.deliveries))
	},

	"ReadsASnapshotAndCommitsToTheMajority": func(t *testing.T, b *bundle) {
		store, sent := b.monitored(t)
		require.NoError(t, appendBy(t.Context(), store, msg("e-1", "k")))
		started := false
		for _, c := range sent.Commands() {
			if c.Body.Lookup("startTransaction").Type != 0 {
				started = true
				require.Equal(t, "snapshot", c.Body.Lookup("readConcern", "level").StringValue())
			}
			if c.Name == "commitTransaction" {
				require.Equal(t, "majority", c.Body.Lookup("writeConcern", "w").StringValue())
				require.True(t, c.Body.Lookup("writeConcern", "j").Boolean())
			}
		}
		require.True(t, started)
		require.Contains(t, sent.Names(), "commitTransaction")
	},

	"ReturnsTheErrorOfItsFunctionAndCommitsNothing": func(t *testing.T, b *bundle) {
		err := b.store.Transaction(t.Context(), func(ctx context.Context) error {
			require.NoError(t, insert(ctx, b.business(), "b-1"))
			require.NoError(t, b.store.Append(ctx, msg("e-1", "k")))
			return errRefused
		})
		require.Equal(t, errRefused, err, "as it is")
		b.holdsNothing(t)
	},

	"RunsAgainFromANewSnapshotAfterAConflict": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "hot"))
		add := func(ctx context.Context) (n int32, err error) {
			doc, err := b.business().FindOneAndUpdate(ctx, kv("_id", "hot"), kv("$inc", kv("n", 1))).Raw()
			n, _ = doc.Lookup("n").Int32OK()
			return n, err
		}
		runs, before := 0, int32(-1)
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			if _, err := b.business().CountDocuments(ctx, bson.D{}); err != nil { // takes the snapshot
				return err
			}
			if runs++; runs == 1 {
				_, err := add(t.Context())
				require.NoError(t, err)
			}
			var err error
			before, err = add(ctx)
			return err
		}))
		require.Equal(t, 2, runs)
		require.EqualValues(t, 1, before, "the second run sees what the first conflicted with")
	},

	"ManyPublishersOfOneKeyAllGetThrough": func(t *testing.T, b *bundle) {
		const publishers, each = 8, 6
		var runs atomic.Int64
		together(publishers, func(i int) {
			for n := range each {
				err := b.store.Transaction(t.Context(), func(ctx context.Context) error {
					runs.Add(1)
					return b.store.Append(ctx, msg(fmt.Sprintf("e-%d-%d", i, n), "hot"))
				})
				if err != nil {
					t.Errorf("publisher %d: %v", i, err)
				}
			}
		})
		docs := all(t, b.deliveries)
		require.Len(t, docs, publishers*each)
		seen := map[int64]bool{}
		for _, doc := range docs {
			seen[doc.Lookup("sequence").AsInt64()] = true
		}
		require.Len(t, seen, publishers*each, "no number twice")
		require.Greater(t, runs.Load(), int64(publishers*each), "there were conflicts, else this shows nothing")
	},

	"GoesOnRunningUntilCtxEnds": func(t *testing.T, b *bundle) {
		require.NoError(t, b.db.CreateCollection(t.Context(), "business"))
		holder, sess := b.begin(t)
		require.NoError(t, insert(holder, b.business(), "hot")) // stays open: everybody conflicts with it
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		runs := 0
		err := b.store.Transaction(ctx, func(ctx context.Context) error {
			runs++
			return insert(ctx, b.business(), "hot")
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
		require.Greater(t, runs, 2)
		require.NoError(t, sess.AbortTransaction(holder))
		require.Empty(t, idsIn(t, b.business()))
	},

	"ReturnsAnErrorThatNoRetryMendsAtOnce": func(t *testing.T, b *bundle) {
		require.NoError(t, insert(t.Context(), b.business(), "b-1"))
		runs, start := 0, time.Now()
		err := b.store.Transaction(t.Context(), func(ctx context.Context) error {
			runs++
			return insert(ctx, b.business(), "b-1")
		})
		require.True(t, mongo.IsDuplicateKeyError(err), "%v", err)
		require.Equal(t, 1, runs)
		require.Less(t, time.Since(start), 20*time.Second)
	},

	"IsLimitedTo120SecondsWithoutADeadline": func(t *testing.T, b *bundle) {
		require.NoError(t, b.store.Transaction(context.Background(), func(ctx context.Context) error {
			deadline, limited := ctx.Deadline()
			require.True(t, limited)
			require.WithinDuration(t, time.Now().Add(2*time.Minute), deadline, 20*time.Second)
			return nil
		}))
		own, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.NoError(t, b.store.Transaction(own, func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			require.WithinDuration(t, time.Now().Add(time.Hour), deadline, 20*time.Second, "a later one of the caller's is kept")
			return nil
		}))
	},

	"APanicAbortsAndPassesThrough": func(t *testing.T, b *bundle) {
		var session bson.RawValue
		require.PanicsWithValue(t, "boom", func() {
			_ = b.store.Transaction(t.Context(), func(ctx context.Context) error {
				session = sessionID(ctx)
				require.NoError(t, insert(ctx, b.business(), "b-1"))
				require.True(t, b.isOpen(t, session))
				panic("boom")
			})
		})
		require.False(t, b.isOpen(t, session))
		b.holdsNothing(t)
	},

	"TheEndOfItsGoroutineAborts": func(t *testing.T, b *bundle) {
		var session bson.RawValue
		ended := make(chan bool)
		go func() {
			defer close(ended)
			_ = b.store.Transaction(t.Context(), func(ctx context.Context) error {
				session = sessionID(ctx)
				_ = insert(ctx, b.business(), "b-1")
				runtime.Goexit()
				return nil
			})
		}()
		within(t, ended)
		require.False(t, b.isOpen(t, session))
		b.holdsNothing(t)
	},

	"ItsFunctionMayAbortOrCommitItself": func(t *testing.T, b *bundle) {
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			require.NoError(t, b.store.Append(ctx, msg("e-1", "k")))
			return mongo.SessionFromContext(ctx).AbortTransaction(ctx)
		}))
		b.holdsNothing(t)
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			require.NoError(t, b.store.Append(ctx, msg("e-2", "k")))
			return mongo.SessionFromContext(ctx).CommitTransaction(ctx)
		}))
		require.Equal(t, []string{"e-2"}, idsIn(t, b.events))
	},

	"ANestedOneJoins": func(t *testing.T, b *bundle) {
		inner := 0
		nested := func(ctx context.Context) error {
			return b.store.Transaction(ctx, func(ctx context.Context) error {
				inner++
				return b.store.Append(ctx, msg("e-1", "k"))
			})
		}
		err := b.store.Transaction(t.Context(), func(ctx context.Context) error {
			require.NoError(t, nested(ctx))
			return errRefused
		})
		require.ErrorIs(t, err, errRefused)
		b.holdsNothing(t)
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error {
			require.NoError(t, nested(ctx))
			require.Empty(t, idsIn(t, b.events), "who started it commits it")
			return nil
		}))
		require.Equal(t, 2, inner)
		require.Equal(t, []string{"h:e-1"}, idsIn(t, b.deliveries))
	},

	"JoinsATransactionOfTheCallersOwn": func(t *testing.T, b *bundle) {
		ctx, sess := b.begin(t)
		require.NoError(t, b.store.Transaction(ctx, func(ctx context.Context) error {
			require.Same(t, sess, mongo.SessionFromContext(ctx))
			return b.store.Append(ctx, msg("e-1", "k"))
		}))
		require.Equal(t, errRefused, b.store.Transaction(ctx, func(context.Context) error { return errRefused }))
		require.True(t, sess.TransactionRunning(), "the caller decides")
		require.NoError(t, sess.CommitTransaction(ctx))
		require.Equal(t, []string{"h:e-1"}, idsIn(t, b.deliveries))
	},

	"TwoStoresOfOneClientShareOne": func(t *testing.T, b *bundle) {
		other, err := outbox.New(b.client, outbox.Config{Database: b.db.Name(), Prefix: "other_", Clock: b.clock})
		require.NoError(t, err)
		require.NoError(t, other.Setup(t.Context()))
		both := func(fails error) error {
			return b.store.Transaction(t.Context(), func(ctx context.Context) error {
				require.NoError(t, b.store.Append(ctx, msg("e-1", "k")))
				require.NoError(t, appendBy(ctx, other, msg("e-2", "k")))
				return fails
			})
		}
		require.ErrorIs(t, both(errRefused), errRefused)
		require.NoError(t, both(nil))
		require.Equal(t, []string{"h:e-1"}, idsIn(t, b.deliveries))
		require.Equal(t, []string{"h:e-2"}, idsIn(t, b.db.Collection("other_deliveries")))
	},

	"RefusesASessionWithoutAnOpenTransaction": func(t *testing.T, b *bundle) {
		never, err := b.client.StartSession()
		require.NoError(t, err)
		defer never.EndSession(t.Context())
		aborted, sess := b.begin(t)
		require.NoError(t, sess.AbortTransaction(aborted))
		committed, sess := b.begin(t)
		require.NoError(t, sess.CommitTransaction(committed))
		for _, ctx := range []context.Context{mongo.NewSessionContext(t.Context(), never), aborted, committed} {
			require.ErrorIs(t, b.store.Transaction(ctx, func(context.Context) error { panic("never called") }), outbox.ErrOutsideTransaction)
			require.ErrorIs(t, b.store.Append(ctx, msg("e-1", "k")), outbox.ErrOutsideTransaction)
		}
		b.holdsNothing(t)
	},

	"RefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		require.Equal(t, "fn", invalidField(b.store.Transaction(t.Context(), nil)))
		sess, err := b.server.Client(t).StartSession()
		require.NoError(t, err)
		defer sess.EndSession(context.Background())
		require.NoError(t, sess.StartTransaction())
		err = b.store.Transaction(mongo.NewSessionContext(t.Context(), sess), func(context.Context) error { panic("never called") })
		require.ErrorIs(t, err, mongostore.ErrInvalid)
		require.Equal(t, "ctx", invalidField(err))
	},

	"IsNotBegunAfterCtxHasEnded": func(t *testing.T, b *bundle) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := b.store.Transaction(ctx, func(context.Context) error { panic("never called") })
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
	},
}

// holdsNothing is that no transaction has left anything.
func (b *bundle) holdsNothing(t testing.TB) {
	t.Helper()
	for _, coll := range []*mongo.Collection{b.business(), b.events, b.deliveries, b.keys} {
		require.Empty(t, idsIn(t, coll), coll.Name())
	}
}

func TestAStandaloneServerHasNoTransactions(t *testing.T) {
	t.Parallel()
	client, name := mongotest.Standalone(t).Database(t)
	store, err := outbox.New(client, outbox.Config{Database: name})
	require.NoError(t, err)
	for what, fn := range map[string]func(ctx context.Context) error{
		"append": func(ctx context.Context) error { return store.Append(ctx, msg("e-1", "k")) },
		"a write of the user's": func(ctx context.Context) error {
			return insert(ctx, client.Database(name).Collection("business"), "b-1")
		},
		"a wrapped error": func(ctx context.Context) error {
			return fmt.Errorf("insert: %w", insert(ctx, client.Database(name).Collection("business"), "b-1"))
		},
	} {
		start := time.Now()
		require.ErrorIs(t, store.Transaction(t.Context(), fn), outbox.ErrNoTransactions, what)
		require.Less(t, time.Since(start), 20*time.Second, "at once")
	}
	names, err := client.Database(name).ListCollectionNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Empty(t, names, "nothing was created")
}
