package storetest

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseCommit: one update, only on the loaded version, all of it or nothing.
func exerciseCommit(t *testing.T, h *harness) {
	run(t, h.bundle, commitTests)
}

// everything is a Changes with something of each kind.
func (b *bundle) everything(eventID string) mongostore.Changes {
	return mongostore.Changes{
		Emits: []mongostore.Emit{
			{TargetID: "bill-7", Event: event{"Billed", 1}}, {Event: event{"Logged", 2}}, {TargetID: "bill-8", Event: json.RawMessage(`{"as": "it is"}`)},
		},
		Spawns:    []mongostore.Spawn{{ChildID: "c1", RootPath: "Fork.A", Input: d("n", 1)}, {ChildID: "c2"}},
		Timers:    []mongostore.TimerOp{{Path: "Pay.Wait", FireAt: b.clock.Now().Add(60e9)}, {Path: "Idle", FireAt: b.clock.Now().Add(5e9)}},
		Processed: eventID,
		Trace:     d("event_kind", "Start"),
	}
}

var commitTests = tests{
	"MovesTheVersionByOneAndStoresTheSnapshot": func(t *testing.T, b *bundle) {
		o := newOrder("o-1")
		o.Total, o.Notes = 5, []string{"a<b>&c", "ü\u2028"}
		for version := int64(1); version <= 10; version++ { // once around the commit slots
			o.Total++
			res := b.commit(t, o, mongostore.Changes{})
			require.Equal(t, mongostore.CommitResult{Version: version}, res)
			require.Equal(t, version, o.Version)
			loaded := b.load(t, "o-1")
			require.Equal(t, o.Total, loaded.Total)
			require.Equal(t, version, loaded.Version)
		}
		require.Equal(t, `{"id":"o-1","definition_id":"orders","status":"RUNNING","version":10,"total":15,"notes":["a<b>&c","ü\u2028"]}`,
			b.doc(t, "o-1").Lookup("data").StringValue(), "compact, in the order of the fields")
	},

	"WritesAllChangesAtOnce": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		ch := b.everything("ev-1")
		res := b.commit(t, o, ch)
		require.Equal(t, mongostore.CommitResult{Version: 2, OutboxSeqs: []int64{1, 2, 3}, SpawnSeqs: []int64{1, 2}}, res)
		b.requireEverything(t, "o-1", "ev-1", 0)
	},

	"LeavesWhatItDoesNotChange": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		before := b.doc(t, "o-1")
		o.Total = 9
		b.commit(t, o, mongostore.Changes{})
		after := b.doc(t, "o-1")
		require.Equal(t, fields(t, before), fields(t, after))
		for _, key := range fields(t, before) {
			switch key {
			case "data", "version", "commits":
				require.NotEqual(t, before.Lookup(key), after.Lookup(key), key)
			default:
				require.Equal(t, before.Lookup(key).String(), after.Lookup(key).String(), key)
			}
		}
	},

	"KeepsFieldsThatItDoesNotKnow": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		b.set(t, "o-1", d("team", "blue"))
		b.commit(t, o, mongostore.Changes{Emits: []mongostore.Emit{{Event: 1}}})
		require.Equal(t, "blue", b.doc(t, "o-1").Lookup("team").StringValue())
	},

	"GivesErrConflictWithExpectedAndFound": func(t *testing.T, b *bundle) {
		stale := b.create(t, "o-1")
		for winner := b.load(t, "o-1"); winner.Version < 4; {
			b.commit(t, winner, mongostore.Changes{})
		}
		before := b.doc(t, "o-1")
		_, err := b.store.Commit(t.Context(), stale, b.everything("ev-1"))
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 1, Actual: 4})
		require.EqualValues(t, 1, stale.Version)
		require.Equal(t, before, b.doc(t, "o-1"), "nothing was written")
		require.ErrorContains(t, err, "expected version 1, found version 4")
	},

	"GivesErrNotFoundAndErrConflictForAnExecutionThatIsGone": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		require.NoError(t, b.store.Delete(t.Context(), "o-1", 1))
		_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 1})
		require.EqualValues(t, 1, o.Version)

		never := newOrder("o-2")
		never.Version = 3
		_, err = b.store.Commit(t.Context(), never, mongostore.Changes{})
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-2", Expected: 3})
		require.Zero(t, b.count(t))
	},

	"DoesNotMatchAnotherIncarnationAtTheSameVersion": func(t *testing.T, b *bundle) {
		old := b.create(t, "o-1")
		require.NoError(t, b.store.Delete(t.Context(), "o-1", 1))
		b.create(t, "o-1")
		before := b.doc(t, "o-1")
		for _, ch := range []mongostore.Changes{{}, b.everything("ev-1")} {
			_, err := b.store.Commit(t.Context(), old, ch)
			requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 1, Actual: 1})
		}
		require.Equal(t, before, b.doc(t, "o-1"))
	},

	"LandsOnceFromTwoCopiesOfAValue": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		before := *o
		b.commit(t, o, mongostore.Changes{Trace: bson.D{}})
		_, err := b.store.Commit(t.Context(), &before, mongostore.Changes{Trace: bson.D{}})
		requireConflict(t, err, mongostore.ConflictError{ExecutionID: "o-1", Expected: 1, Actual: 2})
	},

	"LandsFromAValueThatWasDecodedElsewhere": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		text, err := json.Marshal(o)
		require.NoError(t, err)
		elsewhere := &order{}
		require.NoError(t, json.Unmarshal(text, elsewhere))
		elsewhere.Status = "DONE"
		b.commit(t, elsewhere, mongostore.Changes{Trace: bson.D{}, Processed: "ev-2"})
		require.Equal(t, "DONE", b.load(t, "o-1").Status)
		require.Equal(t, []int64{0, 1}, indexes(t, b.doc(t, "o-1")))
	},

	"SendsNothingOnceCtxHasEnded": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ch := range []mongostore.Changes{{}, b.everything("ev-1")} {
			_, err := b.store.Commit(ctx, o, ch)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
			require.EqualValues(t, 1, o.Version)
			require.EqualValues(t, 1, b.doc(t, "o-1").Lookup("version").AsInt64())
		}
		require.Zero(t, b.counter(t, "outbox"), "no number was taken")
		b.commit(t, o, mongostore.Changes{})
	},

	"LeavesChangesAsTheyWere": func(t *testing.T, b *bundle) {
		ch, same := b.everything("ev-1"), b.everything("ev-1")
		b.create(t, "o-1", ch)
		require.Equal(t, same, ch)
	},
}

// requireEverything checks what commit of everything stored.
func (b *bundle) requireEverything(t *testing.T, id, eventID string, traceIndex int64) {
	t.Helper()
	doc := b.doc(t, id)
	require.Equal(t, `[{"seq": {"$numberInt":"1"},"target_id": "bill-7","event": "{\"kind\":\"Billed\",\"n\":1}"},`+
		`{"seq": {"$numberInt":"2"},"target_id": null,"event": "{\"kind\":\"Logged\",\"n\":2}"},`+
		`{"seq": {"$numberInt":"3"},"target_id": "bill-8","event": "{\"as\": \"it is\"}"}]`, doc.Lookup("outbox").String())
	require.Equal(t, `[{"seq": {"$numberInt":"1"},"parent_id": "`+id+`","child_id": "c1","root_path": "Fork.A","context": {"n": {"$numberInt":"1"}}},`+
		`{"seq": {"$numberInt":"2"},"parent_id": "`+id+`","child_id": "c2","root_path": "","context": {}}]`, doc.Lookup("spawns").String())
	require.Equal(t, map[string]float64{"Pay．Wait": seconds(b.clock.Now()) + 60, "Idle": seconds(b.clock.Now()) + 5}, timersOf(t, doc))
	require.Equal(t, []string{eventID}, texts(t, doc, "processed"))
	step := values(t, doc, "trace")[0].Document()
	require.Equal(t, []string{"event_kind", "index"}, fields(t, step))
	require.Equal(t, traceIndex, step.Lookup("index").AsInt64())
	require.Equal(t, seconds(b.clock.Now()), doc.Lookup("due_at").Double())
	require.Equal(t, seconds(b.clock.Now())+5, doc.Lookup("timer_at").Double())
}
