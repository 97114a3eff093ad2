package storetest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// exerciseLifecycle: construction costs no network, and nothing is owned but what
// Connect opened.
func exerciseLifecycle(t *testing.T, h *harness) {
	run(t, h.bundle, lifecycleTests)
}

var lifecycleTests = tests{
	"NewSendsNothing": func(t *testing.T, b *bundle) {
		client := mongotest.Connect(t, "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50")
		store, err := mongostore.New(client, mongostore.Config{})
		require.NoError(t, err)
		require.Error(t, store.Load(t.Context(), "o-1", &order{}))
		require.NoError(t, store.Close(t.Context()))
	},

	"CloseLeavesAnInjectedClientConnected": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		require.NoError(t, b.store.Close(t.Context()))
		require.NoError(t, b.store.Close(t.Context()))
		require.NoError(t, b.client.Ping(t.Context(), nil))
	},

	"ConnectMakesAStoreThatCloseDisconnects": func(t *testing.T, b *bundle) {
		store, err := mongostore.Connect(t.Context(), b.server.URI(), b.cfg)
		require.NoError(t, err)
		_, err = store.Commit(t.Context(), newOrder("o-1"), mongostore.Changes{})
		require.NoError(t, err)
		require.NoError(t, store.Close(t.Context()))
		require.Error(t, store.Load(t.Context(), "o-1", &order{}))
		b.load(t, "o-1")
	},

	"ConnectPingsUntilTheServerAnswers": func(t *testing.T, b *bundle) {
		proxy := mongotest.NewProxy(t, b.server.Addr(t))
		proxy.Refuse(true)
		time.AfterFunc(300*time.Millisecond, func() { proxy.Refuse(false) }) // a server that starts later
		store, err := mongostore.Connect(t.Context(), proxy.URI(), b.cfg)
		require.NoError(t, err)
		require.NoError(t, store.Close(t.Context()))
	},

	"ConnectGivesTheErrorOfThePingWhenCtxEnds": func(t *testing.T, b *bundle) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := listener.Addr().String()
		require.NoError(t, listener.Close())
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = mongostore.Connect(ctx, "mongodb://"+addr, b.cfg)
		require.Error(t, err)
		require.NotErrorIs(t, err, mongostore.ErrInvalid)
		require.ErrorContains(t, err, addr)
		require.Less(t, time.Since(start), 5*time.Second)
	},

	"ConnectRefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		for _, uri := range []string{"", "localhost", "mongodb://user:secret@", "mongodb://user:secret", "mongodb://user:secret%40h:1", "mongodb://h/?w=x&journal=perhaps"} {
			_, err := mongostore.Connect(t.Context(), uri, b.cfg)
			requireInvalid(t, err, "uri")
			require.NotContains(t, err.Error(), "secret")
		}
		_, err := mongostore.Connect(t.Context(), b.server.URI(), mongostore.Config{SeqBlock: -1})
		requireInvalid(t, err, "Config.SeqBlock")
	},

	"CloseWaitsForCallsThatAreUnderWayUntilCtxEnds": func(t *testing.T, b *bundle) {
		proxy := mongotest.NewProxy(t, b.server.Addr(t))
		store := b.on(t, mongotest.Connect(t, proxy.URI()), func(*mongostore.Config) {})
		release := make(chan struct{})
		held := holdOnce(proxy, "findAndModify", release)
		ended := make(chan error)
		go func() {
			_, err := store.Commit(t.Context(), newOrder("o-1"), emit(1))
			ended <- err
		}()
		<-held
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, store.Close(ctx), context.Canceled)
		close(release)
		require.NoError(t, <-ended)
		require.NoError(t, store.Close(t.Context()))
	},
}

// holdOnce holds the next command of that name until release is closed, and says when
// it has come.
func holdOnce(proxy *mongotest.Proxy, command string, release <-chan struct{}) (held <-chan struct{}) {
	came := make(chan struct{})
	hold := mongotest.Once(mongotest.Hold(release), command)
	proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
		action := hold(m)
		if action != mongotest.Pass {
			close(came)
		}
		return action
	})
	return came
}
