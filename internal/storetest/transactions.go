package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
)

// exerciseTransactions: the caller's transaction, by a session in ctx. Only where
// the server has transactions.
func exerciseTransactions(t *testing.T, h *harness) {
	run(t, h.bundle, transactionTests)
	t.Run("Joined", func(t *testing.T) { run(t, h.bundle, joiningTests) })
	t.Run("Refused", func(t *testing.T) { run(t, h.bundle, refusedTests) })
}

// transaction is one that the test opens and ends by hand.
type transaction struct {
	context.Context
	session *mongo.Session
}

// begin opens a transaction by the client that the store has.
func (b *bundle) begin(t *testing.T) *transaction {
	t.Helper()
	session, err := b.client.StartSession()
	require.NoError(t, err)
	t.Cleanup(func() { session.EndSession(context.Background()) })
	require.NoError(t, session.StartTransaction())
	return &transaction{mongo.NewSessionContext(t.Context(), session), session}
}

func (tx *transaction) commit(t *testing.T) {
	t.Helper()
	require.NoError(t, tx.session.CommitTransaction(tx))
}

func (tx *transaction) abort(t *testing.T) {
	t.Helper()
	require.NoError(t, tx.session.AbortTransaction(tx))
}

// business is a write of the caller's own.
func (b *bundle) business(t *testing.T, ctx context.Context, id string) {
	t.Helper()
	_, err := b.client.Database(b.database).Collection("business").InsertOne(ctx, bson.D{{Key: "_id", Value: id}})
	require.NoError(t, err)
}

func (b *bundle) hasBusiness(t *testing.T) bool {
	t.Helper()
	n, err := b.db.Collection("business").CountDocuments(t.Context(), d())
	require.NoError(t, err)
	return n > 0
}

// everyWrite does all that joins, on executions made by someExecutions.
func (b *bundle) everyWrite(t *testing.T, ctx context.Context) {
	t.Helper()
	ok := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	b.business(t, ctx, "b-1")
	o := &order{}
	require.NoError(t, b.store.Load(ctx, "loaded", o))
	o.Total = 7
	ok(b.store.Commit(ctx, o, b.everything("ev-9")))
	ok(b.store.Commit(ctx, newOrder("first"), b.everything("ev-1")))
	ok(b.store.Update(ctx, "updated", o, mongostore.UpdateOptions{EventID: "ev-9"}, add1(o)))
	ok(b.store.Update(ctx, "made", o, mongostore.UpdateOptions{Create: true}, add1(o)))
	ok(b.store.CreateChild(ctx, mongostore.SpawnEntry{ParentID: "owing", ChildID: "child", Seq: 1}, child(), mongostore.Changes{}))
	ok(nil, b.store.Delete(ctx, "deleted", 1))
	first := seqs(t, b.doc(t, "owing"), "outbox")[0]
	ok(nil, b.store.AckOutbox(ctx, mongostore.OutboxEntry{ExecutionID: "owing", Seq: first}, mongostore.OutboxEntry{ExecutionID: "loaded", Seq: 999}))
	ok(nil, b.store.AckSpawn(ctx, mongostore.SpawnEntry{ParentID: "owing", Seq: seqs(t, b.doc(t, "owing"), "spawns")[0]}))
	ok(nil, b.store.DeleteTimer(ctx, mongostore.Timer{ExecutionID: "owing", Path: "Idle", FireAt: b.clock.Now().Add(5e9)}))
}

func (b *bundle) someExecutions(t *testing.T) {
	t.Helper()
	for _, id := range []string{"loaded", "updated", "deleted"} {
		b.create(t, id)
	}
	b.create(t, "owing", b.everything("ev-1"))
}

var transactionTests = tests{
	"CommitsWithTheCallersWrites": func(t *testing.T, b *bundle) {
		b.someExecutions(t)
		tx := b.begin(t)
		b.everyWrite(t, tx)
		require.Equal(t, []string{"deleted", "loaded", "owing", "updated"}, b.list(t, mongostore.ListOptions{}), "nobody sees it before")
		tx.commit(t)
		require.True(t, b.hasBusiness(t))
		require.Equal(t, []string{"child", "first", "loaded", "made", "owing", "updated"}, b.list(t, mongostore.ListOptions{}))
		require.Equal(t, 7, b.load(t, "loaded").Total)
		require.True(t, b.seen(t, "updated", "ev-9"))
		owing := b.inspect(t, "owing")
		require.Len(t, owing.Outbox, 2)
		require.Len(t, owing.Spawns, 1)
		require.Len(t, owing.Timers, 1)
		require.Equal(t, "owing", b.load(t, "child").ParentID)
	},

	"AbortsWithTheCallersWrites": func(t *testing.T, b *bundle) {
		b.someExecutions(t)
		before := b.documents(t)
		tx := b.begin(t)
		b.everyWrite(t, tx)
		tx.abort(t)
		require.False(t, b.hasBusiness(t))
		after := b.documents(t)
		require.Equal(t, before[:4], after[:4], "every execution is as it was")
		require.Len(t, b.list(t, mongostore.ListOptions{}), 4)
		require.EqualValues(t, 1, b.load(t, "loaded").Version, "Load tells the old truth")
		b.everyWrite(t, t.Context())
	},

	"IsRunAgainByWithTransactionAfterAWriteConflict": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		session, err := b.client.StartSession()
		require.NoError(t, err)
		defer session.EndSession(t.Context())
		runs := 0
		_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			o := &order{}
			return b.store.Update(ctx, "o-1", o, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
				if runs++; runs == 1 { // after the snapshot was taken
					b.commit(t, b.load(t, "o-1"), mongostore.Changes{})
				}
				return add1(o)(ch)
			})
		})
		require.NoError(t, err)
		require.Equal(t, 2, runs)
		require.EqualValues(t, 3, b.load(t, "o-1").Version)
		require.Equal(t, 1, b.load(t, "o-1").Total)
		require.Len(t, values(t, b.doc(t, "o-1"), "outbox"), 1)
	},

	"ShowsTheDriversErrorWithItsLabels": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		one, two := b.begin(t), b.begin(t)
		ours, theirs := &order{}, &order{}
		require.NoError(t, b.store.Load(one, "o-1", ours))
		require.NoError(t, b.store.Load(two, "o-1", theirs))
		_, err := b.store.Commit(one, ours, mongostore.Changes{})
		require.NoError(t, err)
		_, err = b.store.Commit(two, theirs, mongostore.Changes{})
		var server mongo.ServerError
		require.ErrorAs(t, err, &server)
		require.True(t, server.HasErrorLabel("TransientTransactionError"))
		require.NotErrorIs(t, err, mongostore.ErrConflict)
		require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
		require.EqualValues(t, 1, theirs.Version)
		one.commit(t)
	},

	"MovesTheVersionInMemoryAtOnce": func(t *testing.T, b *bundle) {
		tx := b.begin(t)
		o := newOrder("o-1")
		for version := int64(1); version <= 3; version++ {
			res, err := b.store.Commit(tx, o, mongostore.Changes{Trace: d("n", version), Emits: emit(1).Emits, Processed: "ev-1"})
			require.NoError(t, err)
			require.Equal(t, version, res.Version)
			require.Equal(t, version, o.Version)
			require.Equal(t, version > 1, res.Deduplicated)
		}
		tx.abort(t)
		require.ErrorIs(t, b.store.Load(t.Context(), "o-1", &order{}), mongostore.ErrNotFound)
		_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
		require.ErrorIs(t, err, mongostore.ErrNotFound, "the value belonged to the attempt")
	},

	"TakesNumbersOutsideOfIt": func(t *testing.T, b *bundle) {
		one, two := b.begin(t), b.begin(t)
		a, err := b.store.Commit(one, newOrder("o-1"), emit(1))
		require.NoError(t, err)
		c, err := b.store.Commit(two, newOrder("o-2"), emit(1))
		require.NoError(t, err, "two open transactions do not wait for each other's numbers")
		require.Less(t, a.OutboxSeqs[0], c.OutboxSeqs[0])
		one.abort(t)
		two.commit(t)
		require.EqualValues(t, 2, b.counter(t, "outbox"))
	},

	"HoldsAPlainCommitUpUntilItsDeadline": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		tx := b.begin(t)
		held := b.load(t, "o-1")
		_, err := b.store.Commit(tx, held, mongostore.Changes{})
		require.NoError(t, err)
		store := b.with(t, func(c *mongostore.Config) { c.OutcomeTimeout = 100 * time.Millisecond })
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = store.Commit(ctx, o, mongostore.Changes{})
		require.Error(t, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
		require.EqualValues(t, 1, o.Version)
		tx.abort(t)
		_, err = store.Commit(t.Context(), o, mongostore.Changes{})
		require.NoError(t, err, "the same contents again: landed once, now or before")
		require.EqualValues(t, 2, b.load(t, "o-1").Version)
	},

	"LetsAWaitingPlainCommitGoOnceItEnds": func(t *testing.T, b *bundle) {
		for id, end := range map[string]func(*transaction, *testing.T){"aborted": (*transaction).abort, "committed": (*transaction).commit} {
			b.create(t, id)
			tx := b.begin(t)
			_, err := b.store.Commit(tx, b.load(t, id), mongostore.Changes{})
			require.NoError(t, err)
			waiting := make(chan error)
			o := b.load(t, id)
			go func() {
				_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
				waiting <- err
			}()
			select {
			case err = <-waiting:
				t.Fatalf("it did not wait: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			end(tx, t)
			err = <-waiting
			if id == "aborted" {
				require.NoError(t, err)
			} else {
				requireConflict(t, err, mongostore.ConflictError{ExecutionID: id, Expected: 1, Actual: 2})
			}
			require.EqualValues(t, 2, b.load(t, id).Version)
		}
	},
}

var joiningTests = tests{
	"FirstCommitThatMeetsAnExecutionLeavesTheTransactionAlive": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		b.appendTrace(t, "stub", d("n", 0))
		b.insert(t, d("_id", "zero", "version", 0, "data", "{}"))
		tx := b.begin(t)
		b.business(t, tx, "b-1")
		_, err := b.store.Commit(tx, newOrder("o-1"), b.everything("ev-1"))
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Actual: 1})
		_, err = b.store.CreateChild(tx, mongostore.SpawnEntry{ParentID: "p-1", ChildID: "o-1"}, child(), mongostore.Changes{})
		require.ErrorIs(t, err, mongostore.ErrExists)
		for _, id := range []string{"stub", "zero", "new"} {
			_, err = b.store.Commit(tx, newOrder(id), mongostore.Changes{Trace: d("n", 1)})
			require.NoError(t, err, id)
		}
		tx.commit(t)
		require.True(t, b.hasBusiness(t))
		require.Equal(t, []int64{0, 1}, indexes(t, b.doc(t, "stub")))
		require.EqualValues(t, 1, b.load(t, "zero").Version)
	},

	"ConflictIsToldOnceAndLeavesTheTransactionAlive": func(t *testing.T, b *bundle) {
		stale := b.create(t, "o-1")
		b.commit(t, b.load(t, "o-1"), mongostore.Changes{})
		tx := b.begin(t)
		b.business(t, tx, "b-1")
		_, err := b.store.Commit(tx, stale, mongostore.Changes{})
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 1, Actual: 2})
		requireConflict(t, b.store.Delete(tx, "o-1", 1), mongostore.ConflictError{ExecutionID: "o-1", Expected: 1, Actual: 2})
		runs := 0
		_, err = b.store.Update(tx, "o-1", &order{}, mongostore.UpdateOptions{}, func(*mongostore.Changes) error {
			runs++
			other := &order{}
			require.NoError(t, b.store.Load(tx, "o-1", other))
			_, err := b.store.Commit(tx, other, mongostore.Changes{})
			return err
		})
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 2, Actual: 3})
		require.Equal(t, 1, runs)
		tx.commit(t)
		require.True(t, b.hasBusiness(t))
	},

	"MissesAreMendedAsOutsideOfIt": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", mongostore.Changes{Processed: "ev-1", Trace: d("n", 0)})
		b.appendTrace(t, "o-1", d("n", 1))
		tx := b.begin(t)
		res, err := b.store.Commit(tx, o, mongostore.Changes{Processed: "ev-1", Trace: d("n", 2),
			Acks: []mongostore.Entry{mongostore.Timer{ExecutionID: "o-1", Path: "gone", FireAt: at(1)}}})
		require.NoError(t, err)
		require.True(t, res.Deduplicated)
		tx.commit(t)
		require.Equal(t, []int64{0, 1, 2}, indexes(t, b.doc(t, "o-1")))
	},

	"ReadsSeeTheTransactionsOwnWritesOrAreOutside": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		tx := b.begin(t)
		_, err := b.store.Commit(tx, b.load(t, "o-1"), b.everything("ev-1"))
		require.NoError(t, err)
		o := &order{}
		require.NoError(t, b.store.Load(tx, "o-1", o))
		require.EqualValues(t, 2, o.Version)
		seen, err := b.store.LoadForEvent(tx, "o-1", "ev-1", o)
		require.NoError(t, err)
		require.True(t, seen)
		seen, err = b.store.IsProcessed(tx, "o-1", "ev-1")
		require.NoError(t, err)
		require.True(t, seen)

		in, err := b.store.Inspect(tx, "o-1")
		require.NoError(t, err)
		require.EqualValues(t, 1, in.Summary.Version)
		page, err := b.store.List(tx, mongostore.ListOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, page.Items[0].Version)
		outbox, err := b.store.PendingOutbox(tx, 0)
		require.NoError(t, err)
		require.Empty(t, outbox)
		spawns, err := b.store.PendingSpawns(tx, 0)
		require.NoError(t, err)
		require.Empty(t, spawns)
		timers, err := b.store.DueTimers(tx, at(1e10), 0)
		require.NoError(t, err)
		require.Empty(t, timers)
		steps := []step{}
		require.NoError(t, b.store.ReadTrace(tx, "o-1", &steps))
		require.Empty(t, steps)
		tx.commit(t)
		require.Len(t, b.outbox(t, 0), 3)
	},

	"AckOfALostLeaseIsToldAndLeavesTheTransactionAlive": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		b.lease(t, "o-1", "another")
		tx := b.begin(t)
		b.business(t, tx, "b-1")
		entry := mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1, Token: "mine"}
		require.ErrorIs(t, b.store.AckOutbox(tx, entry), mongostore.ErrLeaseLost)
		require.ErrorIs(t, b.store.DeleteTimer(tx, mongostore.Timer{ExecutionID: "o-1", Path: "Idle", FireAt: b.clock.Now().Add(5e9), Token: "mine"}), mongostore.ErrLeaseLost)
		_, err := b.store.Commit(tx, o, mongostore.Changes{Acks: []mongostore.Entry{entry}})
		require.ErrorIs(t, err, mongostore.ErrLeaseLost)
		tx.commit(t)
		require.True(t, b.hasBusiness(t))
	},

	"DamageIsToldEvenIfItKillsTheTransaction": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		b.create(t, "o-2")
		b.set(t, "o-1", d("outbox", "a text"))
		tx := b.begin(t)
		_, err := b.store.Commit(tx, o, emit(1))
		requireDamaged(t, err, "o-1", "outbox")
		require.EqualValues(t, 1, o.Version)
		tx.abort(t)
		for _, others := range [][]mongostore.OutboxEntry{nil, {{ExecutionID: "o-2", Seq: 1}}} {
			tx = b.begin(t)
			b.business(t, tx, "b-1")
			err = b.store.AckOutbox(tx, append(others, mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1})...)
			require.Error(t, err, "the server has aborted the transaction: it must not look well")
			tx.abort(t)
		}
	},

	"BH-10_NullsAreMendedOrTold": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		b.set(t, "o-1", d("outbox", nil, "timers", nil))
		tx := b.begin(t)
		_, err := b.store.Commit(tx, o, b.everything("ev-1"))
		require.ErrorIs(t, err, mongostore.ErrDamaged, "a classic update fails on null, and with it the transaction")
		tx.abort(t)
		b.commit(t, o, b.everything("ev-1")) // outside it is mended
	},
}

var refusedTests = tests{
	"ASessionWithoutAnOpenTransactionIsRefused": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		before := b.doc(t, "o-1")
		never, err := b.client.StartSession()
		require.NoError(t, err)
		defer never.EndSession(t.Context())
		aborted, committed := b.begin(t), b.begin(t)
		aborted.abort(t)
		committed.commit(t)
		for name, ctx := range map[string]context.Context{"never": mongo.NewSessionContext(t.Context(), never), "aborted": aborted, "committed": committed} {
			_, err := b.store.Commit(ctx, o, emit(1))
			requireInvalid(t, err, "ctx")
			_, err = b.store.Update(ctx, "o-1", &order{}, mongostore.UpdateOptions{}, func(*mongostore.Changes) error { return nil })
			requireInvalid(t, err, "ctx")
			_, err = b.store.CreateChild(ctx, mongostore.SpawnEntry{ParentID: "o-1", ChildID: "c1"}, child(), mongostore.Changes{})
			requireInvalid(t, err, "ctx")
			requireInvalid(t, b.store.Delete(ctx, "o-1", 1), "ctx")
			requireInvalid(t, b.store.AckOutbox(ctx, mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1}), "ctx")
			requireInvalid(t, b.store.AckSpawn(ctx, mongostore.SpawnEntry{ParentID: "o-1", Seq: 1}), "ctx")
			requireInvalid(t, b.store.DeleteTimer(ctx, mongostore.Timer{ExecutionID: "o-1", Path: "Idle", FireAt: b.clock.Now().Add(5e9)}), "ctx")
			require.Equal(t, before, b.doc(t, "o-1"), name)
		}
		require.EqualValues(t, 3, b.counter(t, "outbox"))
		require.Equal(t, 1, b.count(t))
	},

	"AnOpenTransactionIsRefusedByWhatCannotJoin": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", emit("x"))
		l := b.claimOnly(t)
		before := b.doc(t, "o-1")
		tx := b.begin(t)
		b.business(t, tx, "b-1")
		for name, call := range underLease {
			if name != "AckOutbox" && name != "Commit" { // these join
				requireInvalid(t, call(tx, b, l), "ctx")
			}
		}
		_, err := b.store.Claim(tx, mongostore.ClaimOptions{})
		requireInvalid(t, err, "ctx")
		_, err = b.store.Requeue(tx, l.Outbox[0])
		requireInvalid(t, err, "ctx")
		_, err = b.store.Purge(tx, mongostore.PurgeOptions{FinishedBefore: b.clock.Now()})
		requireInvalid(t, err, "ctx")
		relay := b.relay(t, &deliveries{}, mongostore.RelayConfig{})
		requireInvalid(t, relay.Run(tx), "ctx")
		_, err = relay.Drain(tx)
		requireInvalid(t, err, "ctx")
		requireInvalid(t, b.store.AppendTrace(tx, "o-1", d("n", 1)), "ctx")
		requireInvalid(t, b.store.Setup(tx), "ctx")
		_, err = b.store.Adopt(tx)
		requireInvalid(t, err, "ctx")
		require.Equal(t, before, b.doc(t, "o-1"))
		detached := mongo.NewSessionContext(tx, nil)
		require.NoError(t, b.store.AppendTrace(detached, "o-1", d("n", 1)))
		require.NoError(t, b.store.Setup(detached))
		_, err = b.store.Adopt(detached)
		require.NoError(t, err)
		o := b.load(t, "o-1")
		_, err = b.store.Commit(detached, o, mongostore.Changes{})
		require.NoError(t, err)
		tx.abort(t)
		require.EqualValues(t, 2, b.load(t, "o-1").Version, "it was outside on purpose")
	},

	"ASessionOfAnotherClientIsRefusedByTheDriver": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		session, err := b.server.Client(t).StartSession()
		require.NoError(t, err)
		defer session.EndSession(t.Context())
		require.NoError(t, session.StartTransaction())
		ctx := mongo.NewSessionContext(t.Context(), session)
		_, err = b.store.Commit(ctx, o, mongostore.Changes{})
		require.Error(t, err)
		require.False(t, errors.Is(err, mongostore.ErrConflict) || errors.Is(err, mongostore.ErrUnknownOutcome), "%v", err)
		require.EqualValues(t, 1, b.load(t, "o-1").Version)
		require.NoError(t, session.AbortTransaction(t.Context()))
	},
}
