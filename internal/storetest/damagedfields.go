package storetest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseDamagedFields: every field with every wrong type. Each method either does
// without the field, or names it and leaves the document as it is.
func exerciseDamagedFields(t *testing.T, h *harness) {
	all := tests{}
	for name, cases := range damagedFields {
		all[name] = func(t *testing.T, b *bundle) {
			for i, c := range cases {
				b.requireNamed(t, fmt.Sprint("o-", i), c)
			}
		}
	}
	run(t, h.bundle, all)
}

// damage is what was done to a document, and the field that each method names; ""
// means that the method does not need it.
type damage struct {
	set   bson.D
	unset string

	load, commit, row, inspect, appendTrace, readTrace, adopt string
}

// each is one damage for each wrong value of a field.
func each(field string, named damage, values ...any) (all []damage) {
	for _, v := range values {
		named.set = d(field, v)
		all = append(all, named)
	}
	return all
}

func also(lists ...[]damage) (all []damage) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

func listOf(name string, elements ...string) []damage {
	named := damage{commit: name, inspect: name, adopt: name}
	all := each(name, named, "a text", 5, d("0", 1), true)
	for _, element := range elements {
		all = append(all, elementsOf(name, element)...)
	}
	return all
}

func elementsOf(name, element string) []damage {
	field := name + "." + element
	return each(name+".0."+element, damage{inspect: field, adopt: field}, bson.A{}, d("n", 1), true)
}

var damagedFields = map[string][]damage{
	"VersionIsNamedByAllThatNeedIt": also(
		each("version", damage{load: "version", commit: "version", row: "version", inspect: "version", adopt: "version"},
			nil, "7", 7.5, nan, math.Inf(1), -1, bson.A{}, d(), true),
		[]damage{{unset: "version", load: "version", commit: "version", row: "version", inspect: "version", adopt: "version"}},
	),
	"DataIsNamedByLoadInspectAndAdopt": also(
		each("data", damage{load: "data", inspect: "data", adopt: "data"}, nil, 5, d(), bson.A{}, true),
		each("data", damage{load: "data"}, "not json", "", `{"total":"five"}`, "[]", "5", bson.Binary{Data: []byte("{")}),
		[]damage{{unset: "data", load: "data", inspect: "data", adopt: "data"}},
	),
	"PromotedFieldsAreNamedByLoadAndRowsAndRepairedByACommit": also(
		each("definition_id", damage{load: "definition_id", row: "definition_id", inspect: "definition_id"}, 5, d(), bson.A{"a"}),
		each("status", damage{load: "status", row: "status", inspect: "status"}, 5, d(), bson.A{"a"}),
		each("outcome", damage{load: "outcome", row: "outcome", inspect: "outcome"}, 5, d(), bson.A{"a"}),
		each("active_path", damage{load: "active_path", row: "active_path", inspect: "active_path"}, 5, d(), bson.A{"a"}),
		each("parent_id", damage{load: "parent_id", row: "parent_id", inspect: "parent_id"}, 5, d(), bson.A{"a"}),
	),
	"TimesOfRowsAreNamedByRows": also(
		each("updated_at", damage{row: "updated_at", inspect: "updated_at"}, "soon", nan, math.Inf(1), 1e300, bson.DateTime(5), d()),
		each("finished_at", damage{row: "finished_at", inspect: "finished_at"}, "soon", nan, math.Inf(-1), bson.DateTime(5), d()),
	),
	"OutboxIsNamedByACommitThatEmits": also(
		listOf("outbox", "seq", "event", "target_id"),
		each("outbox.0.seq", damage{inspect: "outbox.seq", adopt: "outbox.seq"}, nil, "1", 1.5, nan),
		each("outbox.0.event", damage{inspect: "outbox.event", adopt: "outbox.event"}, nil, 5),
		each("outbox.0", damage{inspect: "outbox.0", adopt: "outbox.0"}, nil, 5, "text", bson.A{}),
	),
	"SpawnsAreNamedByACommitThatSpawns": also(
		listOf("spawns", "seq", "parent_id", "child_id", "root_path"),
		each("spawns.0.seq", damage{inspect: "spawns.seq", adopt: "spawns.seq"}, nil, "1", 1.5, nan),
		each("spawns.0.child_id", damage{inspect: "spawns.child_id", adopt: "spawns.child_id"}, nil, ""),
		each("spawns.0.context", damage{inspect: "spawns.context", adopt: "spawns.context"}, 5, "text", bson.A{}),
		each("spawns.0", damage{inspect: "spawns.0", adopt: "spawns.0"}, nil, 5, "text", bson.A{}),
	),
	"ProcessedIsNamedByACommitThatAddsToIt": each("processed", damage{commit: "processed", inspect: "processed"}, "a text", 5, d("0", 1), true),
	"TimersAreNamedByACommitThatArms": also(
		each("timers", damage{commit: "timers", inspect: "timers", adopt: "timers"}, "a text", 5, bson.A{1}, true),
		each("timers.Wait", damage{inspect: "timers.Wait", adopt: "timers.Wait"}, nil, "soon", nan, math.Inf(1), 1e300, d(), bson.A{}, bson.DateTime(5)),
	),
	"TraceIsNamedByAllThatTouchIt": also(
		each("trace", damage{commit: "trace", inspect: "trace", appendTrace: "trace", readTrace: "trace"}, "a text", 5, d("0", 1), true),
		each("trace.0", damage{inspect: "trace.0", readTrace: "trace.0"}, nil, 5, "text", bson.A{}),
		each("trace.0.index", damage{}, nil, "text", nan, math.Inf(1), d(), bson.A{}),
	),
	"TraceNextIsNamedByLoadAndByACommitThatTraces": each("trace_next", damage{load: "trace_next", commit: "trace_next"}, "text", nan, math.Inf(1), 1.5, -1, d()),
	"CommitsAreNamedByACommit":                     each("commits", damage{commit: "commits"}, "a text", 5, true),
	"LeaseIsNobodys":                               each("lease", damage{}, "a text", 5, bson.A{}, d("token", 5), d("until", "soon", "token", "t")),
}

// requireNamed checks every method on one damaged document.
func (b *bundle) requireNamed(t *testing.T, id string, c damage) {
	t.Helper()
	o := b.create(t, id, b.everything("ev-1"))
	if c.unset != "" {
		b.unset(t, id, c.unset)
	} else {
		b.set(t, id, c.set)
	}
	what := fmt.Sprintf("%v %s", c.set, c.unset)
	before := b.doc(t, id)
	outcome := func(method, field string, err error) {
		t.Helper()
		if field == "" {
			require.NoError(t, err, "%s with %s", method, what)
			return
		}
		require.Error(t, err, "%s with %s", method, what)
		requireDamaged(t, err, id, field)
		require.Equal(t, before.String(), b.doc(t, id).String(), "%s with %s left the document as it was", method, what)
	}
	outcome("Load", c.load, b.store.Load(t.Context(), id, &order{}))
	_, err := b.store.LoadForEvent(t.Context(), id, "ev-9", &order{})
	outcome("LoadForEvent", c.load, err)
	page, err := b.store.List(t.Context(), mongostore.ListOptions{IDPrefix: id})
	require.NoError(t, err)
	require.Equal(t, []string{id}, idsOf(page.Items), what)
	outcome("List", c.row, page.Items[0].Err)
	in, err := b.store.Inspect(t.Context(), id)
	require.NoError(t, err)
	outcome("Inspect", c.inspect, in.Summary.Err)
	var steps []bson.Raw
	outcome("ReadTrace", c.readTrace, b.store.ReadTrace(t.Context(), id, &steps))
	b.requireGonePast(t, id, what)
	before = b.doc(t, id) // timer_at may have been mended

	blind := newOrder(id)
	blind.Version = o.Version
	_, err = b.store.Commit(t.Context(), blind, b.everything("ev-2"))
	outcome("Commit", c.commit, err)
	outcome("AppendTrace", c.appendTrace, b.store.AppendTrace(t.Context(), id, d("n", 1)))
	b.damage.take()
	require.NoError(t, b.executions.FindOneAndReplace(t.Context(), d("_id", id), before).Err())
	b.adopt(t)
	if c.adopt != "" {
		require.Equal(t, []string{id + " " + c.adopt}, b.damage.take(), what)
	}
	_, err = b.executions.DeleteOne(t.Context(), d("_id", id))
	require.NoError(t, err)
}

// requireGonePast: what works through many documents does not stop here.
func (b *bundle) requireGonePast(t *testing.T, id, what string) {
	t.Helper()
	before := b.doc(t, id)
	_, err := b.store.IsProcessed(t.Context(), id, "ev-9")
	require.NoError(t, err, what)
	for _, err := range []error{
		b.store.AckOutbox(t.Context(), mongostore.OutboxEntry{ExecutionID: id, Seq: 1 << 40}, mongostore.OutboxEntry{ExecutionID: "other", Seq: 1}),
		b.store.AckOutbox(t.Context(), mongostore.OutboxEntry{ExecutionID: id, Seq: 1 << 40}),
		b.store.AckSpawn(t.Context(), mongostore.SpawnEntry{ParentID: id, Seq: 1 << 40}),
		b.store.DeleteTimer(t.Context(), mongostore.Timer{ExecutionID: id, Path: "Wait", FireAt: at(1)}),
	} {
		require.NoError(t, err, what)
	}
	require.Equal(t, before.String(), b.doc(t, id).String(), what)
	b.outbox(t, 0)
	b.spawns(t, 0)
	b.due(t, 1e10, 0)
}
