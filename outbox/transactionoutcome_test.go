package outbox_test

import (
	"context"
	"errors"
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

// unsure is a store behind a proxy, and a transaction on it that writes one document
// and one event.
type unsure struct {
	*bundle
	store   *outbox.Store
	proxy   *mongotest.Proxy
	coll    *mongo.Collection // through the proxy
	runs    int
	session bson.RawValue // of the last run
}

func newUnsure(t *testing.T) *unsure {
	b := newBundle(t)
	require.NoError(t, b.db.CreateCollection(t.Context(), "business"))
	proxy := mongotest.NewProxy(t, b.server.Addr(t))
	client := b.server.Client(t, mongotest.Through(proxy))
	return &unsure{bundle: b, store: b.on(t, client), proxy: proxy, coll: client.Database(b.db.Name()).Collection("business")}
}

// write runs the transaction; then goes first what the test wants inside it.
func (u *unsure) write(ctx context.Context, then func(ctx context.Context) error) error {
	return u.store.Transaction(ctx, func(ctx context.Context) error {
		u.runs++
		u.session = sessionID(ctx)
		err := errors.Join(insert(ctx, u.coll, "b-1"), u.store.Append(ctx, msg("e-1", "k")))
		if err != nil || then == nil {
			return err
		}
		return then(ctx)
	})
}

// landed is whether both are stored; it fails if it is one of them.
func (u *unsure) landed(t *testing.T) bool {
	t.Helper()
	business, events := idsIn(t, u.business()), idsIn(t, u.events)
	require.Len(t, events, len(business), "both or neither")
	return len(business) > 0
}

// cleanEnd checks what a ctx that ended before the commit must leave: a clean error,
// soon, and nothing on the server.
func (u *unsure) cleanEnd(t *testing.T, err error, since time.Time) {
	t.Helper()
	require.Less(t, time.Since(since), time.Second)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
	require.Equal(t, 1, u.runs, "never again after the end")
	u.proxy.OnReply(nil)
	u.proxy.OnRequest(nil)
	u.closesSoon(t, u.session)
	require.False(t, u.landed(t))
	require.Zero(t, u.proxy.Seen("commitTransaction"))
}

func TestBH02TheContextEndsBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(ctx context.Context, u *unsure, cancel func()) error{
		"inside the function, which returns its error": func(ctx context.Context, _ *unsure, cancel func()) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		},
		"inside the function, which returns another error": func(_ context.Context, _ *unsure, cancel func()) error {
			cancel()
			return errors.Join(errRefused, context.Canceled)
		},
		"just before the commit": func(_ context.Context, _ *unsure, cancel func()) error {
			cancel()
			return nil
		},
		"while a command is on its way": func(ctx context.Context, u *unsure, cancel func()) error {
			u.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
				if m.Command == "find" {
					cancel()
					return mongotest.Drop
				}
				return mongotest.Pass
			})
			return u.coll.FindOne(ctx, bson.D{}).Err()
		},
		"after a conflict": func(ctx context.Context, u *unsure, cancel func()) error {
			err := insert(ctx, u.coll, "hot") // of another transaction, that is open
			cancel()
			return err
		},
		"and then no reply comes any more": func(ctx context.Context, u *unsure, cancel func()) error {
			u.proxy.OnReply(mongotest.Always(mongotest.Drop))
			cancel()
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnsure(t)
			holder, sess := u.begin(t)
			require.NoError(t, insert(holder, u.business(), "hot"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var cancelled time.Time
			err := u.write(ctx, func(ctx context.Context) error {
				return then(ctx, u, func() { cancelled = time.Now(); cancel() })
			})
			u.cleanEnd(t, err, cancelled)
			require.NoError(t, sess.AbortTransaction(holder))
		})
	}
}

func TestBH02TheContextEndsDuringTheCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request, reply mongotest.Action
		landed, known  bool
	}{
		"and the reply comes late":      {mongotest.Pass, mongotest.Delay(500 * time.Millisecond), true, true},
		"and the request comes late":    {mongotest.Delay(500 * time.Millisecond), mongotest.Pass, true, true},
		"and no reply comes":            {mongotest.Pass, mongotest.Drop, true, false},
		"and it never reaches a server": {mongotest.Drop, mongotest.Pass, false, false},
	} {
		for _, deadline := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				u := newUnsure(t)
				ctx, cancel := context.WithCancel(t.Context())
				want := context.Canceled
				if deadline {
					ctx, cancel = context.WithTimeout(t.Context(), 700*time.Millisecond)
					want = context.DeadlineExceeded
				}
				defer cancel()
				var ended atomic.Int64
				u.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
					if m.Command != "commitTransaction" {
						return mongotest.Pass
					}
					if m.N == 1 && !deadline {
						cancel()
					}
					if m.N == 1 {
						<-ctx.Done()
						ended.Store(time.Now().UnixNano())
					}
					return c.request
				})
				u.proxy.OnReply(mongotest.Always(c.reply, "commitTransaction"))
				err := u.write(ctx, nil)
				took := time.Since(time.Unix(0, ended.Load()))
				u.proxy.OnReply(nil)
				u.proxy.OnRequest(nil)
				require.Equal(t, 1, u.runs)
				require.Less(t, took, 4*time.Second)
				u.closesSoon(t, u.session)
				require.Equal(t, c.landed, u.landed(t))
				if c.known {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
				require.ErrorIs(t, err, want)
			})
		}
	}
}

func TestTheReplyToACommitIsLostWhileTheCallerWaits(t *testing.T) {
	t.Parallel()
	lose := func(n int64, action mongotest.Action) mongotest.Hook {
		return func(m *mongotest.Message) mongotest.Action {
			if m.Command == "commitTransaction" && int64(m.N) <= n {
				return action
			}
			return mongotest.Pass
		}
	}
	for name, c := range map[string]struct{ request, reply mongotest.Hook }{
		"once":                            {reply: lose(1, mongotest.Cut)},
		"more often than a driver tries":  {reply: lose(5, mongotest.Cut)},
		"without a word":                  {reply: lose(1, mongotest.Drop)},
		"because the request was":         {request: lose(1, mongotest.Cut)},
		"because the requests were":       {request: lose(5, mongotest.Cut)},
		"because the request was ignored": {request: lose(1, mongotest.Drop)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnsure(t)
			u.proxy.OnRequest(c.request)
			u.proxy.OnReply(c.reply)
			require.NoError(t, u.write(t.Context(), nil))
			require.Equal(t, 1, u.runs, "only the commit is sent again")
			require.True(t, u.landed(t))
			require.Greater(t, u.proxy.Seen("commitTransaction"), 1)
		})
	}
}

func TestTheReplyToAWriteInsideIsLost(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"insert", "update", "findAndModify"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			u := newUnsure(t)
			u.proxy.OnReply(mongotest.Once(mongotest.Cut, command))
			require.NoError(t, u.write(t.Context(), nil))
			require.Equal(t, 2, u.runs, "the function runs again")
			require.Equal(t, []string{"b-1"}, idsIn(t, u.business()))
			require.Equal(t, []string{"h:e-1"}, idsIn(t, u.deliveries))
			require.EqualValues(t, 1, u.doc(t, "h:e-1").Lookup("sequence").AsInt64())
		})
	}
}

// What fails after a commit that landed is no error of it.
func TestASettlementThatFailsIsNoErrorOfTheTransaction(t *testing.T) {
	t.Parallel()
	u := newUnsure(t)
	u.append(t, msg("e-0", "k")) // so that the next one waits
	u.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
		if u.proxy.Seen("commitTransaction") > 0 && m.Command == "aggregate" {
			return mongotest.Cut
		}
		return mongotest.Pass
	})
	require.NoError(t, u.write(t.Context(), nil))
	require.Equal(t, "waiting", u.status(t, "h:e-1"))
}

// The server has one fail point, so one test after the other, on a server of their own.
func TestWhatTheServerSaysOfATransaction(t *testing.T) {
	t.Parallel()
	cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true})
	for _, c := range []struct {
		name string
		fail mongotest.FailPoint
		runs int
		want error // nil: success
	}{
		{"a write fails for a while", mongotest.FailPoint{Commands: []string{"insert"}, Times: 2, ErrorCode: 112, ErrorLabels: []string{"TransientTransactionError"}}, 3, nil},
		{"a write fails for good", mongotest.FailPoint{Commands: []string{"insert"}, Times: 1, ErrorCode: 8000, ErrorLabels: []string{}}, 1, errAny},
		{"the primary steps down inside", mongotest.FailPoint{Commands: []string{"update"}, Times: 1, ErrorCode: 10107}, 2, nil},
		{"the connection ends inside", mongotest.FailPoint{Commands: []string{"update"}, Times: 1, CloseConnection: true}, 2, nil},
		{"the commit is refused for a while", mongotest.FailPoint{Commands: []string{"commitTransaction"}, Times: 1, ErrorCode: 112, ErrorLabels: []string{"TransientTransactionError"}}, 2, nil},
		{"the commit is refused for good", mongotest.FailPoint{Commands: []string{"commitTransaction"}, Times: 1, ErrorCode: 8000, ErrorLabels: []string{}}, 1, errAny},
		{"the outcome is not known once", mongotest.FailPoint{Commands: []string{"commitTransaction"}, Times: 1, ErrorCode: 50, ErrorLabels: []string{"UnknownTransactionCommitResult"}}, 1, nil},
		{"the primary steps down during the commit", mongotest.FailPoint{Commands: []string{"commitTransaction"}, Times: 3, ErrorCode: 11602}, 1, nil},
		{"the majority is late", mongotest.FailPoint{Commands: []string{"commitTransaction"}, Times: 1, WriteConcernError: kv("code", 64, "errmsg", "late", "errInfo", kv("wtimeout", true))}, 1, nil},
		{"the connection ends during the commit", mongotest.FailPoint{Commands: []string{"commitTransaction"}, Times: 3, CloseConnection: true}, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) { //nolint:paralleltest // one fail point
			client := cluster.Client(options.Client().SetAppName("failing"))
			c.fail.AppName = "failing"
			db := client.Database(mongotestName(c.name))
			store, err := outbox.New(client, outbox.Config{Database: db.Name()})
			require.NoError(t, err)
			require.NoError(t, store.Setup(t.Context()))
			require.NoError(t, db.CreateCollection(t.Context(), "business"))
			clear := mongotest.FailCommand(t, client, c.fail)
			runs := 0
			err = store.Transaction(t.Context(), func(ctx context.Context) error {
				runs++
				if err := insert(ctx, db.Collection("business"), "b-1"); err != nil {
					return err
				}
				return store.Append(ctx, msg("e-1", "k"))
			})
			clear()
			require.Equal(t, c.runs, runs)
			if c.want != nil {
				require.Error(t, err)
				require.Empty(t, idsIn(t, db.Collection("business")))
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"b-1"}, idsIn(t, db.Collection("business")))
			require.Equal(t, []string{"h:e-1"}, idsIn(t, db.Collection("outbox_deliveries")))
		})
	}
}

var errAny = errors.New("any")
