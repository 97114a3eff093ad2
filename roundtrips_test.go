package mongostore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

func TestCommandsSent(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		_, database := server.Database(t)
		var sent mongotest.Commands
		client := server.Client(t, options.Client().SetMonitor(sent.Monitor()))
		store := newStore(t, client, database, mongostore.Config{})
		blocks := newStore(t, client, database, mongostore.Config{SeqBlock: 100})
		ctx := t.Context()

		emits := []mongostore.Emit{{Event: 1}, {Event: 2}}
		spawns := []mongostore.Spawn{{ChildID: "c"}}
		rest := mongostore.Changes{Processed: "e", Trace: bson.D{{Key: "a", Value: 1}},
			Timers: []mongostore.TimerOp{{Path: "a", FireAt: someTime}, {Path: "b", Cancel: true}}}

		count := func(name string, do func() error, want ...string) {
			t.Helper()
			sent.Reset()
			require.NoError(t, do(), name)
			require.ElementsMatch(t, want, sent.Names(), name)
		}
		commit := func(s *mongostore.Store, o *order, ch mongostore.Changes) func() error {
			return func() error { _, err := s.Commit(ctx, o, ch); return err }
		}
		with := func(e []mongostore.Emit, s []mongostore.Spawn) mongostore.Changes {
			ch := rest
			ch.Emits, ch.Spawns = e, s
			return ch
		}

		for name, o := range map[string]*order{"a first commit": newOrder("first"), "a later one": loadedOrder(t, store, "later")} {
			write := "update"
			if o.Version == 0 {
				write = "insert"
			}
			count(name+" without emits and spawns", commit(store, o, rest), write)
			rest.Processed += "+"
			*o = *loadedOrder(t, store, o.ID)
		}
		o := loadedOrder(t, store, "o")
		count("a commit with emits", commit(store, o, with(emits, nil)), "findAndModify", "update")
		rest.Processed = "e2"
		count("a commit with both", commit(store, o, with(emits, spawns)), "findAndModify", "findAndModify", "update")
		count("a first commit with both, while nobody else numbers", commit(store, newOrder("both"), with(emits, spawns)), "update", "insert")

		b := loadedOrder(t, blocks, "b")
		count("the first with a block", commit(blocks, b, mongostore.Changes{Emits: emits, Spawns: spawns}), "findAndModify", "findAndModify", "update")
		count("the next with a block", commit(blocks, b, mongostore.Changes{Emits: emits, Spawns: spawns}), "update")
		count("a first commit with a block", commit(blocks, newOrder("b2"), mongostore.Changes{Emits: emits, Spawns: spawns}), "insert")

		stale := loadedOrder(t, store, "o")
		require.NoError(t, commit(store, o, mongostore.Changes{})())
		sent.Reset()
		_, err := store.Commit(ctx, stale, mongostore.Changes{})
		require.ErrorIs(t, err, mongostore.ErrConflict)
		require.Equal(t, []string{"update", "find"}, sent.Names(), "a conflict costs one more")

		again := loadedOrder(t, store, "o")
		sent.Reset()
		res, err := store.Commit(ctx, again, mongostore.Changes{Processed: "e2"})
		require.NoError(t, err)
		require.True(t, res.Deduplicated)
		require.Equal(t, []string{"update", "find", "update"}, sent.Names(), "an event handled before costs two more")

		count("Load", func() error { return store.Load(ctx, "o", &order{}) }, "find")
		count("LoadForEvent", func() error { _, err := store.LoadForEvent(ctx, "o", "new", &order{}); return err }, "find")
		count("LoadForEvent of a handled one", func() error { _, err := store.LoadForEvent(ctx, "o", "e2", &order{}); return err }, "find", "update")
		count("IsProcessed", func() error { _, err := store.IsProcessed(ctx, "o", "e"); return err }, "find")
		count("AppendTrace", func() error { return store.AppendTrace(ctx, "o", bson.D{{Key: "a", Value: 1}}) }, "update")
		count("AppendTrace of a new one", func() error { return store.AppendTrace(ctx, "new", bson.D{{Key: "a", Value: 1}}) }, "update")
		count("ReadTrace", func() error { var steps []bson.M; return store.ReadTrace(ctx, "o", &steps) }, "find")
		count("Inspect", func() error { _, err := store.Inspect(ctx, "o"); return err }, "find")
		count("PendingOutbox", func() error { _, err := store.PendingOutbox(ctx, 0); return err }, "find")
		count("PendingSpawns", func() error { _, err := store.PendingSpawns(ctx, 0); return err }, "find")
		count("DueTimers", func() error { _, err := store.DueTimers(ctx, someTime, 0); return err }, "find")
		count("List", func() error { _, err := store.List(ctx, mongostore.ListOptions{}); return err }, "find")
		entries, err := store.PendingOutbox(ctx, 2)
		require.NoError(t, err)
		count("AckOutbox", func() error { return store.AckOutbox(ctx, entries...) }, "update")

		var leases []*mongostore.Lease
		count("Claim", func() (err error) { leases, err = store.Claim(ctx, mongostore.ClaimOptions{}); return err }, "find", "update", "find")
		require.NotEmpty(t, leases)
		l := leases[0]
		count("Extend", func() error { return store.Extend(ctx, l, time.Hour) }, "update")
		count("Bury", func() error { return store.Bury(ctx, l.Outbox[0], nil) }, "update")
		count("Requeue", func() error { _, err := store.Requeue(ctx, l.Outbox[0]); return err }, "update")
		count("DeadLetters", func() error { _, err := store.DeadLetters(ctx, mongostore.DeadLetterOptions{}); return err }, "find")
		count("Complete", func() error { return store.Complete(ctx, l) }, "update")
		for _, l := range leases[1:] {
			count("Release", func() error { return store.Release(ctx, l) }, "update")
		}
		count("Stats", func() error { _, err := store.Stats(ctx); return err }, "aggregate", "aggregate")
		count("Purge of nothing", func() error {
			_, err := store.Purge(ctx, mongostore.PurgeOptions{FinishedBefore: someTime})
			return err
		}, "find")
	})
}

// loadedOrder commits id if it is not there, and loads it.
func loadedOrder(t testing.TB, s *mongostore.Store, id string) *order {
	t.Helper()
	var o order
	err := s.Load(t.Context(), id, &o)
	if errors.Is(err, mongostore.ErrNotFound) {
		_, err = s.Commit(t.Context(), newOrder(id), mongostore.Changes{})
		require.NoError(t, err)
		err = s.Load(t.Context(), id, &o)
	}
	require.NoError(t, err)
	return &o
}

// A value that remembers nothing of its document costs one trip more at most.
func TestCommandsSentByAValueFromElsewhere(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	_, database := server.Database(t)
	var sent mongotest.Commands
	store := newStore(t, server.Client(t, options.Client().SetMonitor(sent.Monitor())), database, mongostore.Config{})
	o := loadedOrder(t, store, "o")
	decoded := &order{Header: mongostore.Header{ID: "o", DefinitionID: "order", Status: "NEW", Version: o.Version}}

	sent.Reset()
	_, err := store.Commit(t.Context(), decoded, mongostore.Changes{})
	require.NoError(t, err)
	require.Equal(t, []string{"update"}, sent.Names())

	decoded = &order{Header: mongostore.Header{ID: "o", DefinitionID: "order", Status: "NEW", Version: decoded.Version}}
	sent.Reset()
	_, err = store.Commit(t.Context(), decoded, mongostore.Changes{Trace: bson.D{{Key: "a", Value: 1}}})
	require.NoError(t, err)
	require.Equal(t, []string{"find", "update"}, sent.Names())
}
