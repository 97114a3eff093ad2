package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseChildren: a child is created once, whoever tries how often.
func exerciseChildren(t *testing.T, h *harness) {
	run(t, h.bundle, childTests)
}

// spawned is a parent that asks for a child, and the entry that says so.
func (b *bundle) spawned(t *testing.T, parent, child string) mongostore.SpawnEntry {
	t.Helper()
	b.create(t, parent, mongostore.Changes{Spawns: []mongostore.Spawn{{ChildID: child, RootPath: "Fork.A", Input: d("amount", 5)}}})
	spawns := b.spawns(t, 0)
	return spawns[len(spawns)-1]
}

// child is a value to create one from.
func child() *order {
	return &order{Header: mongostore.Header{DefinitionID: "children", Status: "PENDING"}, Total: 5}
}

var childTests = tests{
	"IsCreatedWithItsIDAndItsParent": func(t *testing.T, b *bundle) {
		e := b.spawned(t, "p-1", "p-1/c1")
		c := child()
		res, err := b.store.CreateChild(t.Context(), e, c, b.everything("ev-1"))
		require.NoError(t, err)
		require.Equal(t, mongostore.CommitResult{Version: 1, OutboxSeqs: []int64{1, 2, 3}, SpawnSeqs: []int64{2, 3}}, res)
		require.Equal(t, "p-1/c1 p-1", c.ID+" "+c.ParentID)
		require.EqualValues(t, 1, c.Version)
		stored := b.load(t, "p-1/c1")
		require.Equal(t, "p-1/c1 p-1 PENDING", stored.ID+" "+stored.ParentID+" "+stored.Status)
		require.Equal(t, 5, stored.Total)
		require.NoError(t, b.store.AckSpawn(t.Context(), e))
		require.Empty(t, seqs(t, b.doc(t, "p-1"), "spawns"))
		b.commit(t, c, mongostore.Changes{})
	},

	"IsNotCreatedAgainHoweverFarItHasCome": func(t *testing.T, b *bundle) {
		e := b.spawned(t, "p-1", "p-1/c1")
		c := child()
		_, err := b.store.CreateChild(t.Context(), e, c, mongostore.Changes{})
		require.NoError(t, err)
		for c.Version < 4 {
			b.commit(t, c, b.everything("ev-1"))
		}
		before := b.doc(t, "p-1/c1")
		again := child()
		res, err := b.store.CreateChild(t.Context(), e, again, b.everything("ev-2")) // the relay died before AckSpawn
		require.NoError(t, err)
		require.Equal(t, mongostore.CommitResult{Version: 4, Deduplicated: true}, res)
		require.Equal(t, before, b.doc(t, "p-1/c1"))
	},

	"GivesErrExistsForAnExecutionOfAnotherParent": func(t *testing.T, b *bundle) {
		root := b.create(t, "root")
		others := b.spawned(t, "p-2", "of p-2")
		_, err := b.store.CreateChild(t.Context(), others, child(), mongostore.Changes{})
		require.NoError(t, err)
		b.create(t, "p-1")
		for _, id := range []string{root.ID, "of p-2"} {
			before := b.doc(t, id)
			c := child()
			_, err = b.store.CreateChild(t.Context(), mongostore.SpawnEntry{ParentID: "p-1", ChildID: id, Seq: 1}, c, mongostore.Changes{})
			requireConflict(t, err, mongostore.ConflictError{ExecutionID: id, Expected: 0, Actual: 1})
			require.Zero(t, c.Version)
			require.Equal(t, before, b.doc(t, id))
		}
	},

	"FillsWhatAppendTraceMade": func(t *testing.T, b *bundle) {
		e := b.spawned(t, "p-1", "p-1/c1")
		b.appendTrace(t, "p-1/c1", d("n", 0))
		res, err := b.store.CreateChild(t.Context(), e, child(), mongostore.Changes{Trace: d("n", 1)})
		require.NoError(t, err)
		require.False(t, res.Deduplicated)
		require.Equal(t, []int64{0, 1}, indexes(t, b.doc(t, "p-1/c1")))
	},

	"ThatHarelCreatedIsKnownByItsSnapshot": func(t *testing.T, b *bundle) {
		e := b.spawned(t, "p-1", "p-1/c1")
		b.insert(t, d("_id", "p-1/c1", "definition_id", "M", "version", 3, "data", `{"id":"p-1/c1","status":"RUNNING","parent_id":"p-1","version":3}`))
		res, err := b.store.CreateChild(t.Context(), e, child(), mongostore.Changes{})
		require.NoError(t, err)
		require.Equal(t, mongostore.CommitResult{Version: 3, Deduplicated: true}, res)
		e.ParentID = "p-2"
		_, err = b.store.CreateChild(t.Context(), e, child(), mongostore.Changes{})
		require.ErrorIs(t, err, mongostore.ErrExists)
	},

	"ThatIsDamagedIsNamed": func(t *testing.T, b *bundle) {
		e := b.spawned(t, "p-1", "p-1/c1")
		b.insert(t, d("_id", "p-1/c1", "version", 3, "data", `{}`, "status", "S", "parent_id", 5))
		_, err := b.store.CreateChild(t.Context(), e, child(), mongostore.Changes{})
		requireDamaged(t, err, "p-1/c1", "parent_id")
		b.set(t, "p-1/c1", d("version", "three"))
		_, err = b.store.CreateChild(t.Context(), e, child(), mongostore.Changes{})
		requireDamaged(t, err, "p-1/c1", "version")
	},

	"RefusesWhatCannotBe": func(t *testing.T, b *bundle) {
		good := mongostore.SpawnEntry{ParentID: "p-1", ChildID: "c-1", Seq: 1}
		committed := b.create(t, "o-1")
		bad := good
		bad.ParentID = ""
		_, err := b.store.CreateChild(t.Context(), bad, child(), mongostore.Changes{})
		requireInvalid(t, err, "SpawnEntry.ParentID")
		bad = good
		bad.ChildID = "a\x00"
		_, err = b.store.CreateChild(t.Context(), bad, child(), mongostore.Changes{})
		requireInvalid(t, err, "SpawnEntry.ChildID")
		_, err = b.store.CreateChild(t.Context(), good, committed, mongostore.Changes{})
		requireInvalid(t, err, "child")
		require.Equal(t, "o-1", committed.ID, "untouched")
		_, err = b.store.CreateChild(t.Context(), good, nil, mongostore.Changes{})
		requireInvalid(t, err, "Execution")
		require.Equal(t, 1, b.count(t))
	},
}
