package mongostore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// behind is a store whose client sits behind a proxy, and one that does not.
type behind struct {
	proxy      *mongotest.Proxy
	store      *mongostore.Store // through the proxy
	direct     *mongostore.Store
	executions *mongo.Collection // direct
}

func newBehind(t *testing.T, server *mongotest.Server, cfg mongostore.Config) *behind {
	t.Helper()
	client, database := server.Database(t)
	proxy := mongotest.NewProxy(t, server.Addr(t))
	// Retries of the driver itself would hide on a replica set what is tested here.
	through := server.Client(t, mongotest.Through(proxy), options.Client().SetRetryWrites(false).SetRetryReads(false))
	return &behind{
		proxy:      proxy,
		store:      newStore(t, through, database, cfg),
		direct:     newStore(t, client, database, mongostore.Config{}),
		executions: client.Database(database).Collection("executions"),
	}
}

func (b *behind) load(t *testing.T, id string) *order {
	t.Helper()
	var o order
	require.NoError(t, b.direct.Load(t.Context(), id, &o))
	return &o
}

// commitOn makes n commits of another writer on top of what stands.
func (b *behind) commitOn(t *testing.T, id string, n int) {
	t.Helper()
	for range n {
		var o order
		_, err := b.direct.Update(context.Background(), id, &o, mongostore.UpdateOptions{}, func(*mongostore.Changes) error { return nil })
		require.NoError(t, err)
	}
}

// foreignCommit moves the version as harel does, and leaves commits alone.
func (b *behind) foreignCommit(t *testing.T, id string) {
	t.Helper()
	_, err := b.executions.UpdateOne(context.Background(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "version", Value: 1}}}})
	require.NoError(t, err)
}

func (b *behind) awaitVersion(t *testing.T, id string, version int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		var o order
		err := b.direct.Load(context.Background(), id, &o)
		return err == nil && o.Version == version
	}, 10*time.Second, 2*time.Millisecond)
}

func TestBH01TheReplyToACommitIsLost(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		b := newBehind(t, server, mongostore.Config{})
		o := newOrder("ord-1001")
		for version, write := range []string{"insert", "update"} {
			b.proxy.OnReply(mongotest.Once(mongotest.Cut, write))
			ch := everything([]string{"ev-1", "ev-2"}[version])
			res, err := b.store.Commit(t.Context(), o, ch)
			require.NoError(t, err, write)
			require.EqualValues(t, version+1, res.Version)
			require.Equal(t, version+1, b.proxy.Replies().Cut, "the reply was lost")

			in, err := b.direct.Inspect(t.Context(), o.ID)
			require.NoError(t, err)
			require.EqualValues(t, version+1, in.Summary.Version)
			require.Len(t, in.Outbox, version+1)
			require.Equal(t, res.OutboxSeqs[0], in.Outbox[version].Seq, "the result is that of the commit that landed")
			require.Equal(t, version+1, in.Processed)
			require.Len(t, in.Trace, version+1)
		}
	})
}

// unknown makes a commit of ch whose outcome stays open: its write is treated as
// onWrite says, and nothing answers afterwards.
func (b *behind) unknown(t *testing.T, o *order, ch mongostore.Changes, onRequest, onReply mongotest.Action) {
	t.Helper()
	before := o.Version
	var mu sync.Mutex
	var written bool
	hook := func(action mongotest.Action) mongotest.Hook {
		return func(m *mongotest.Message) mongotest.Action {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case m.Command != "insert" && m.Command != "update" && m.Command != "find":
				return mongotest.Pass
			case !written && m.Command != "find":
				written = m.Reply != nil || action != mongotest.Pass
				return action
			case m.Reply == nil && written:
				return mongotest.Cut
			}
			return mongotest.Pass
		}
	}
	b.proxy.OnRequest(hook(onRequest))
	b.proxy.OnReply(hook(onReply))
	_, err := b.store.Commit(t.Context(), o, ch)
	require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
	require.NotErrorIs(t, err, mongostore.ErrConflict)
	require.Equal(t, before, o.Version, "the version in memory is unmoved")
	b.proxy.OnRequest(nil)
	b.proxy.OnReply(nil)
}

var quick = mongostore.Config{OutcomeTimeout: 300 * time.Millisecond, OpTimeout: time.Second}

func TestAnUnknownOutcomeIsSettledByCommittingAgain(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for name, lost := range map[string]struct {
			request, reply mongotest.Action
			landed         bool
		}{
			"that landed":       {mongotest.Pass, mongotest.Cut, true},
			"that never landed": {mongotest.Cut, mongotest.Pass, false},
		} {
			for _, start := range []int64{0, 1} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					b := newBehind(t, server, quick)
					fresh := func() *order {
						o := newOrder("o")
						if start == 1 {
							_, err := b.direct.Commit(t.Context(), o, mongostore.Changes{})
							require.NoError(t, err)
						}
						o.Total = 10
						return o
					}
					o := fresh()
					b.unknown(t, o, everything("e"), lost.request, lost.reply)

					copied := *o
					res, err := b.store.Commit(t.Context(), o, everything("e"))
					require.NoError(t, err, "the same contents again land or have landed")
					require.Equal(t, start+1, res.Version)
					in, err := b.direct.Inspect(t.Context(), "o")
					require.NoError(t, err)
					require.Len(t, in.Outbox, 1)
					require.Equal(t, res.OutboxSeqs, []int64{in.Outbox[0].Seq})
					require.Len(t, in.Spawns, 1)
					require.Len(t, in.Trace, 1)
					require.Equal(t, 1, in.Processed)

					_, err = b.store.Commit(t.Context(), &copied, everything("e"))
					require.NoError(t, err, "a copy of the value knows it too")
					require.Equal(t, start+1, b.load(t, "o").Version)
				})
			}
		}
	})
}

func TestOtherContentsAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		b := newBehind(t, server, quick)
		o := newOrder("landed")
		o.Total = 10
		b.unknown(t, o, mongostore.Changes{}, mongotest.Pass, mongotest.Cut)
		o.Total = 20
		_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
		var conflict *mongostore.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.True(t, conflict.Own, "our own earlier commit is in the way")
		require.NotErrorIs(t, err, mongostore.ErrExists, "it is not somebody else's")
		require.Equal(t, 10, b.load(t, "landed").Total)

		o = newOrder("lost")
		o.Total = 10
		b.unknown(t, o, mongostore.Changes{}, mongotest.Cut, mongotest.Pass)
		o.Total = 20
		_, err = b.store.Commit(t.Context(), o, mongostore.Changes{})
		require.NoError(t, err)
		require.Equal(t, 20, b.load(t, "lost").Total)
	})
}

// A write that is still on its way when its outcome is asked lands once, whether it
// comes before, between or after what is sent again.
func TestAHeldWriteLandsOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for name, releaseAt := range map[string]string{
			"before the read back":      "find",
			"before the resend":         "resend",
			"after the resend":          "end",
			"first and after the end":   "end",
			"first and before its twin": "resend",
		} {
			first := name[:5] == "first"
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBehind(t, server, mongostore.Config{})
				o := newOrder("o")
				write, old := "insert", int64(0)
				if !first {
					_, err := b.direct.Commit(t.Context(), o, mongostore.Changes{})
					require.NoError(t, err)
					write, old = "update", 1
				}
				release := make(chan struct{})
				letGo := sync.OnceFunc(func() { close(release); b.awaitVersion(t, "o", old+1) })
				b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
					switch {
					case m.Command == write && m.N == 1:
						return mongotest.Strand(release)
					case m.Command == "find" && releaseAt == "find", m.Command == write && releaseAt == "resend":
						letGo()
					}
					return mongotest.Pass
				})
				res, err := b.store.Commit(t.Context(), o, everything("e"))
				require.NoError(t, err)
				require.Equal(t, old+1, res.Version)
				letGo()
				in, err := b.direct.Inspect(t.Context(), "o")
				require.NoError(t, err)
				require.Equal(t, old+1, in.Summary.Version)
				require.Len(t, in.Outbox, 1)
				require.Equal(t, res.OutboxSeqs[0], in.Outbox[0].Seq)
				require.Equal(t, 1, in.Processed)
			})
		}
	})
}

func TestWhatOthersDidWhileTheOutcomeWasOpen(t *testing.T) {
	t.Parallel()
	landed, lost := mongotest.Cut, mongotest.Pass // what becomes of the reply; the request is cut where that passes
	for name, c := range map[string]struct {
		reply     mongotest.Action
		meanwhile func(t *testing.T, b *behind)
		want      error // nil: success
	}{
		"another commit on top":                       {landed, func(t *testing.T, b *behind) { b.commitOn(t, "o", 1) }, nil},
		"seven commits on top":                        {landed, func(t *testing.T, b *behind) { b.commitOn(t, "o", 7) }, nil},
		"so many commits on top that nobody can tell": {landed, func(t *testing.T, b *behind) { b.commitOn(t, "o", 8) }, mongostore.ErrUnknownOutcome},
		"a foreign commit on top":                     {landed, func(t *testing.T, b *behind) { b.foreignCommit(t, "o") }, nil},
		"two others instead of ours":                  {lost, func(t *testing.T, b *behind) { b.commitOn(t, "o", 2) }, mongostore.ErrConflict},
		"a foreign commit instead of ours":            {lost, func(t *testing.T, b *behind) { b.foreignCommit(t, "o") }, mongostore.ErrConflict},
		"deleted with ours in it":                     {landed, func(t *testing.T, b *behind) { require.NoError(t, b.direct.Delete(context.Background(), "o", 3)) }, mongostore.ErrUnknownOutcome},
		"deleted before ours":                         {lost, func(t *testing.T, b *behind) { require.NoError(t, b.direct.Delete(context.Background(), "o", 2)) }, mongostore.ErrUnknownOutcome},
		"deleted and made again to the same version": {lost, func(t *testing.T, b *behind) {
			require.NoError(t, b.direct.Delete(context.Background(), "o", 2))
			_, err := b.direct.Commit(context.Background(), newOrder("o"), mongostore.Changes{})
			require.NoError(t, err)
			b.commitOn(t, "o", 1)
		}, mongostore.ErrUnknownOutcome},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, server *mongotest.Server) {
				b := newBehind(t, server, mongostore.Config{})
				o := newOrder("o")
				for range 2 {
					_, err := b.direct.Commit(t.Context(), o, mongostore.Changes{})
					require.NoError(t, err)
				}
				meanwhile := sync.OnceFunc(func() { c.meanwhile(t, b) })
				if c.reply == lost {
					b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
						if m.Command == "update" && m.N == 1 {
							return mongotest.Cut
						}
						if m.Command == "find" {
							meanwhile()
						}
						return mongotest.Pass
					})
				} else {
					b.proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
					b.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
						if m.Command == "find" {
							meanwhile()
						}
						return mongotest.Pass
					})
				}
				res, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
				if c.want == nil {
					require.NoError(t, err)
					require.EqualValues(t, 3, res.Version)
					return
				}
				require.ErrorIs(t, err, c.want)
				require.EqualValues(t, 2, o.Version)
				if !errors.Is(c.want, mongostore.ErrConflict) {
					require.NotErrorIs(t, err, mongostore.ErrConflict)
				}
			})
		})
	}
}

func TestAWriteConcernErrorIsAnOpenOutcome(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		client, database := server.Database(t)
		named := server.Client(t, options.Client().SetAppName(database))
		store := newStore(t, named, database, mongostore.Config{})
		o := newOrder("o")
		_, err := store.Commit(t.Context(), o, mongostore.Changes{})
		require.NoError(t, err)
		clear := mongotest.FailCommand(t, client, mongotest.FailPoint{Commands: []string{"update"}, AppName: database, Times: 1,
			WriteConcernError: bson.D{{Key: "code", Value: 100}, {Key: "errmsg", Value: "made"}}})
		defer clear()
		res, err := store.Commit(t.Context(), o, everything("e"))
		require.NoError(t, err, "the write is there")
		require.EqualValues(t, 2, res.Version)
		in, err := store.Inspect(t.Context(), "o")
		require.NoError(t, err)
		require.Len(t, in.Outbox, 1)
	})
}

func TestBH02TheContextEndsInTheMiddleOfACommit(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		t.Run("and the reading back finds it", func(t *testing.T) {
			t.Parallel()
			b := newBehind(t, server, mongostore.Config{})
			b.proxy.OnReply(mongotest.Always(mongotest.Delay(500*time.Millisecond), "insert", "update", "find"))
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			o := newOrder("ord-1002")
			res, err := b.store.Commit(ctx, o, mongostore.Changes{})
			require.NoError(t, err)
			require.EqualValues(t, 1, res.Version)
			require.EqualValues(t, 1, b.load(t, "ord-1002").Version)
		})
		t.Run("and nothing answers in time", func(t *testing.T) {
			t.Parallel()
			b := newBehind(t, server, quick)
			b.proxy.OnReply(mongotest.Always(mongotest.Delay(time.Second), "insert", "update", "find"))
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			o := newOrder("ord-1002")
			_, err := b.store.Commit(ctx, o, mongostore.Changes{})
			require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Zero(t, o.Version)
			b.proxy.OnReply(nil)
			b.awaitVersion(t, "ord-1002", 1)
			b.commitOn(t, "ord-1002", 1)
			stale := newOrder("ord-1002")
			_, err = b.store.Commit(t.Context(), stale, mongostore.Changes{})
			require.ErrorIs(t, err, mongostore.ErrExists)
		})
		t.Run("before it is sent", func(t *testing.T) {
			t.Parallel()
			b := newBehind(t, server, mongostore.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := b.store.Commit(ctx, newOrder("o"), mongostore.Changes{})
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
			require.Zero(t, b.proxy.Seen("insert"))
		})
	})
}
