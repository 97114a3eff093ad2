package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseUpdate: load, apply, commit, and again when another writer was first.
func exerciseUpdate(t *testing.T, h *harness) {
	run(t, h.bundle, updateTests)
}

// add1 counts up and emits.
func add1(o *order) func(*mongostore.Changes) error {
	return func(ch *mongostore.Changes) error {
		o.Total++
		ch.Emits = append(ch.Emits, mongostore.Emit{Event: event{"Added", o.Total}})
		return nil
	}
}

var updateTests = tests{
	"LoadsAppliesAndCommits": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		o := &order{Total: 99, Notes: []string{"of another execution"}}
		res, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{}, add1(o))
		require.NoError(t, err)
		require.Equal(t, mongostore.CommitResult{Version: 2, OutboxSeqs: []int64{1}}, res)
		require.Equal(t, 1, o.Total)
		require.Equal(t, 1, b.load(t, "o-1").Total)
		require.Empty(t, b.load(t, "o-1").Notes)
	},

	"GivesErrNotFoundUnlessToldToCreate": func(t *testing.T, b *bundle) {
		o := &order{Total: 99}
		ran := false
		_, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{}, func(*mongostore.Changes) error { ran = true; return nil })
		require.ErrorIs(t, err, mongostore.ErrNotFound)
		require.False(t, ran)
		require.Equal(t, 99, o.Total, "untouched")
		for _, opts := range []mongostore.UpdateOptions{{Create: true}, {Create: true, EventID: "ev-1"}} {
			id := "o-" + opts.EventID
			o = &order{Header: mongostore.Header{ID: "another", Version: 7, Status: "OLD"}, Total: 99}
			res, err := b.store.Update(t.Context(), id, o, opts, func(*mongostore.Changes) error {
				require.Equal(t, &order{Header: mongostore.Header{ID: id}}, o, "zero but for its ID")
				o.Status = "NEW"
				return nil
			})
			require.NoError(t, err)
			require.EqualValues(t, 1, res.Version)
			require.Equal(t, "NEW", b.load(t, id).Status)
		}
	},

	"RecordsTheEventAndSkipsItWhenHandled": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		for n := range 3 {
			o := &order{}
			runs := 0
			res, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{EventID: "ev-1"}, func(ch *mongostore.Changes) error {
				runs++
				ch.Processed = "something else"
				return add1(o)(ch)
			})
			require.NoError(t, err)
			require.Equal(t, n > 0, res.Deduplicated)
			require.Equal(t, n == 0, runs == 1)
			require.EqualValues(t, 2, res.Version)
			require.Equal(t, 1, o.Total, "loaded in any case")
		}
		require.Equal(t, []string{"ev-1"}, texts(t, b.doc(t, "o-1"), "processed"))
		require.Len(t, values(t, b.doc(t, "o-1"), "outbox"), 1)
	},

	"RunsAgainAfterAConflict": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		o, runs := &order{}, 0
		res, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
			if runs++; runs <= 2 {
				other := b.load(t, "o-1")
				other.Total += 10
				b.commit(t, other, mongostore.Changes{})
			}
			return add1(o)(ch)
		})
		require.NoError(t, err)
		require.Equal(t, 3, runs)
		require.EqualValues(t, 4, res.Version)
		require.Equal(t, 21, b.load(t, "o-1").Total)
		require.Len(t, values(t, b.doc(t, "o-1"), "outbox"), 1, "the losing runs left nothing")
	},

	"LoadsWhatAnotherCreatedFirst": func(t *testing.T, b *bundle) {
		o, runs := &order{}, 0
		_, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{Create: true}, func(ch *mongostore.Changes) error {
			if runs++; runs == 1 {
				b.create(t, "o-1")
			}
			return add1(o)(ch)
		})
		require.NoError(t, err)
		require.Equal(t, 2, runs)
		require.EqualValues(t, 2, b.load(t, "o-1").Version)
	},

	"ReturnsTheErrorOfFnAndCommitsNothing": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		mine := errors.New("mine")
		o := &order{}
		_, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
			_ = add1(o)(ch)
			return mine
		})
		require.Equal(t, mine, err, "as it is")
		require.EqualValues(t, 1, b.load(t, "o-1").Version)
	},

	"EndsWithCtxWhenItLosesForEver": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o, runs := &order{}, 0
		_, err := b.store.Update(ctx, "o-1", o, mongostore.UpdateOptions{}, func(*mongostore.Changes) error {
			b.commit(t, b.load(t, "o-1"), mongostore.Changes{})
			if runs++; runs == 3 {
				cancel()
			}
			return nil
		})
		require.Error(t, err)
		require.Equal(t, 3, runs)
		require.EqualValues(t, 4, b.load(t, "o-1").Version, "the others' commits")
	},

	"GivesErrNotFoundWhenDeletedMeanwhile": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		o := &order{}
		_, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{}, func(*mongostore.Changes) error {
			return b.store.Delete(t.Context(), "o-1", 1)
		})
		require.ErrorIs(t, err, mongostore.ErrNotFound)
		require.Zero(t, b.count(t))

		b.create(t, "o-2")
		runs := 0
		res, err := b.store.Update(t.Context(), "o-2", o, mongostore.UpdateOptions{Create: true}, func(ch *mongostore.Changes) error {
			if runs++; runs == 1 {
				require.NoError(t, b.store.Delete(t.Context(), "o-2", 1))
			}
			return add1(o)(ch)
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, res.Version, "made anew")
	},

	"GivesTheErrorsOfLoadAndCommit": func(t *testing.T, b *bundle) {
		b.insert(t, d("_id", "damaged", "version", 1, "data", 5))
		nothing := func(*mongostore.Changes) error { return nil }
		_, err := b.store.Update(t.Context(), "damaged", &order{}, mongostore.UpdateOptions{Create: true}, nothing)
		requireDamaged(t, err, "damaged", "data")
		_, err = b.store.Update(t.Context(), "", &order{}, mongostore.UpdateOptions{Create: true}, nothing)
		requireInvalid(t, err, "id")
		_, err = b.store.Update(t.Context(), "o-1", &order{}, mongostore.UpdateOptions{Create: true}, func(ch *mongostore.Changes) error {
			ch.Timers = []mongostore.TimerOp{{Path: "x"}}
			return nil
		})
		requireInvalid(t, err, "Changes.Timers[0].FireAt")
		_, err = b.store.Update(t.Context(), "o-1", &order{}, mongostore.UpdateOptions{}, nil)
		requireInvalid(t, err, "fn")
		_, err = b.store.Update(t.Context(), "o-1", &order{}, mongostore.UpdateOptions{EventID: "a\x00b"}, nothing)
		requireInvalid(t, err, "UpdateOptions.EventID")
		_, err = b.store.Update(t.Context(), "o-1", nil, mongostore.UpdateOptions{Create: true}, nothing)
		requireInvalid(t, err, "Execution")
	},
}
