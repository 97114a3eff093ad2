package mongostore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// A write has landed, its reply is lost, and the server cannot be reached any more.
// That it cannot be asked is no answer.

// leaves makes the server go away with the first reply to a command, and come back
// after a while; zero: it stays away.
func (b *behind) leaves(command string, away time.Duration) {
	var once sync.Once
	b.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
		action := mongotest.Pass
		if m.Command == command {
			once.Do(func() {
				action = mongotest.Cut
				b.proxy.Refuse(true)
				b.proxy.CutAll()
				if away > 0 {
					time.AfterFunc(away, func() { b.proxy.Refuse(false) })
				}
			})
		}
		return action
	})
}

// away is longer than quick gives to one command, and shorter than in20s.
const away = 500 * time.Millisecond

func in20s(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestACommitWhoseServerGoesAwayHasAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		for version, write := range []string{"insert", "update"} {
			t.Run(write, func(t *testing.T) {
				t.Parallel()
				b := newBehind(t, server, quick)
				o := newOrder("o")
				for range version {
					_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
					require.NoError(t, err)
				}
				b.leaves(write, 0)
				_, err := b.store.Commit(t.Context(), o, everything("e"))
				require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
				require.EqualValues(t, version, o.Version, "in memory")
				require.EqualValues(t, version+1, b.load(t, "o").Version, "it has landed")

				_, err = b.store.Commit(t.Context(), o, everything("e"))
				require.ErrorIs(t, err, mongostore.ErrUnknownOutcome, "again, while the server is still away")

				b.proxy.Refuse(false)
				res, err := b.store.Commit(in20s(t), o, everything("e"))
				require.NoError(t, err, "again, once it is back")
				require.EqualValues(t, version+1, res.Version)
				in, err := b.direct.Inspect(t.Context(), "o")
				require.NoError(t, err)
				require.EqualValues(t, version+1, in.Summary.Version)
				require.Len(t, in.Outbox, 1)
				require.Equal(t, res.OutboxSeqs[0], in.Outbox[0].Seq)
			})
		}
	})
}

func TestACommitWhoseServerIsBackInTimeIsSettled(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		b := newBehind(t, server, quick)
		o := newOrder("o")
		for version, write := range []string{"insert", "update"} {
			b.leaves(write, away)
			res, err := b.store.Commit(in20s(t), o, mongostore.Changes{})
			require.NoError(t, err, write)
			require.EqualValues(t, version+1, res.Version)
		}
		require.EqualValues(t, 2, b.load(t, "o").Version)
	})
}

func TestAnUpdateWhoseServerIsBackInTimeLandsOnce(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), quick)
	_, err := b.store.Commit(t.Context(), newOrder("o"), mongostore.Changes{})
	require.NoError(t, err)
	b.leaves("update", away)
	runs := 0
	var o order
	res, err := b.store.Update(in20s(t), "o", &o, mongostore.UpdateOptions{}, func(*mongostore.Changes) error {
		runs++
		o.Total++
		return nil
	})
	require.NoError(t, err)
	require.EqualValues(t, 2, res.Version)
	require.Equal(t, 1, runs)
	require.Equal(t, 1, b.load(t, "o").Total)
}

func TestAnUpdateWhoseServerGoesAwayHasAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := newBehind(t, mongotest.Standalone(t), quick)
	_, err := b.store.Commit(t.Context(), newOrder("o"), mongostore.Changes{})
	require.NoError(t, err)
	b.leaves("update", 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	runs := 0
	var o order
	_, err = b.store.Update(ctx, "o", &o, mongostore.UpdateOptions{}, func(*mongostore.Changes) error {
		runs++
		o.Total++
		return nil
	})
	require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
	require.Equal(t, 1, runs)
	require.Equal(t, 1, b.load(t, "o").Total, "it has landed")
}

func TestADeleteWhoseServerGoesAway(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		b := newBehind(t, server, quick)
		for id, c := range map[string]struct {
			away time.Duration
			want error
		}{"for good": {0, mongostore.ErrUnknownOutcome}, "and is back in time": {away, nil}} {
			b.proxy.Refuse(false)
			_, err := b.direct.Commit(t.Context(), newOrder(id), mongostore.Changes{})
			require.NoError(t, err)
			b.leaves("delete", c.away)
			ctx := t.Context()
			if c.want == nil {
				ctx = in20s(t)
			}
			require.ErrorIs(t, b.store.Delete(ctx, id, 1), c.want, id)
			require.ErrorIs(t, b.direct.Load(t.Context(), id, &order{}), mongostore.ErrNotFound, "it has landed")
		}
	})
}

// Not parallel: a server has one failCommand at a time, and another test sets it.
func TestAReadBackThatTheServerRefusesIsRepeated(t *testing.T) {
	server := mongotest.Standalone(t)
	client, database := server.Database(t)
	proxy := mongotest.NewProxy(t, server.Addr(t))
	through := server.Client(t, mongotest.Through(proxy), options.Client().SetAppName(database).SetRetryReads(false))
	s := newStore(t, through, database, mongostore.Config{})
	o := newOrder("o")
	_, err := s.Commit(t.Context(), o, mongostore.Changes{})
	require.NoError(t, err)
	const notAvailableYet = 134 // ReadConcernMajorityNotAvailableYet
	mongotest.FailCommand(t, client, mongotest.FailPoint{Commands: []string{"find"}, AppName: database, Times: 1, ErrorCode: notAvailableYet})
	proxy.OnReply(mongotest.Once(mongotest.Cut, "update"))
	res, err := s.Commit(t.Context(), o, mongostore.Changes{})
	require.NoError(t, err)
	require.EqualValues(t, 2, res.Version)
	require.Equal(t, 2, proxy.Seen("find"), "the first was refused")
}
