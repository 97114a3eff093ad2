package interop

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// testGoWrites writes executions of every kind from Go. harel's store loads, lists
// and sweeps them, commits on, acknowledges, deletes and purges.
func testGoWrites(t *testing.T, b *bundle) {
	stored := b.writeFromGo(t)
	for _, doc := range b.documents(t) {
		requireOwnDocument(t, doc)
	}
	b.requireHarelLoads(t, stored)
	b.requireSamePending(t)
	b.requireSameTimers(t, forever)
	b.requireSameTimers(t, Seconds(dueAt)+1)
	requireSameRows(t, b.harel.list(nil), b.list(t, mongostore.ListOptions{}))
	b.requireHarelFilters(t)

	b.harelCommitsOn(t)
	b.harelAcknowledges(t)
	b.harelDeletesTimers(t)
	b.harelPurges(t)
	b.damage.requireNone(t)
}

// dueAt has a fraction that no double holds exactly.
var dueAt = time.Date(2025, 4, 30, 12, 0, 0, 123_457_000, time.UTC)

// everything is a commit with something in every field.
func everything(name string) (*Execution, mongostore.Changes) {
	fqn, failure, child := "pkg.Full", "ValueError: <a> & \u2028 b", "key"
	created, expires := json.Number("1746053379.0389447"), json.Number("1e+16")
	exe := &Execution{
		Header: mongostore.Header{
			ID: name, DefinitionID: "Full", ParentID: "go-parent", Status: "RUNNING", Outcome: "so <far>", ActivePath: "Fork.A",
		},
		DefinitionFQN: &fqn, RootPath: "Fork", Error: &failure, Priority: 4, ChildID: &child, ProcessedEvents: "7",
		History:   json.RawMessage(`{"Work":"Work.Two"}`),
		Context:   json.RawMessage(`{"z":1,"a":1.0,"big":1180591620717411303424,"e":1e+16,"s":"<&>` + "\u2028" + `","n":null,"k.k":{"$set":[]}}`),
		Deferred:  json.RawMessage(`[{"id":"d1","kind":"Early","created_time":"2026-01-02T03:04:05Z","received_time":null,"data":{}}]`),
		Children:  json.RawMessage(`{"c:1":{"root_path":"Fork.A","finished":true,"outcome":"success","result":{"x":1.0},"submachine":false,"key":"Fork.A"}}`),
		InvokeSeq: json.RawMessage(`{"Fork":2}`),
		CreatedAt: &created, UpdatedAt: &created, ExpiresAt: &expires,
	}
	input := bson.D{{Key: "a.b", Value: int32(1)}, {Key: "$set", Value: 1.0}, {Key: "", Value: bson.A{nil, true, "x"}}, {Key: "long", Value: int64(1) << 40}}
	return exe, mongostore.Changes{
		Emits: []mongostore.Emit{
			{TargetID: "go-parent", Event: Event{ID: name + "-1", Kind: "Told", Data: json.RawMessage(`{"n":1.0,"s":"<&>"}`)}},
			{Event: Event{ID: name + "-2", Kind: "Nobody", Data: json.RawMessage(`{}`)}},
			{TargetID: name, Event: Event{ID: name + "-3", Kind: "Self"}},
		},
		Spawns: []mongostore.Spawn{{ChildID: name + ":c", RootPath: "Fork.A", Input: input}, {ChildID: name + ":d"}},
		Timers: []mongostore.TimerOp{
			{Path: "Fork.A", FireAt: dueAt}, {Path: "@ttl", FireAt: dueAt.Add(time.Hour)}, {Path: "a state", FireAt: dueAt.Add(-time.Second)},
		},
		Processed: name + "-event",
		Trace:     bson.D{{Key: "event_kind", Value: "Start"}, {Key: "context_out", Value: input}, {Key: "timestamp", Value: Seconds(dueAt)}},
	}
}

// writeFromGo gives what is stored, by id.
func (b *bundle) writeFromGo(t *testing.T) map[string]*Execution {
	stored := map[string]*Execution{}
	commit := func(exe *Execution, ch mongostore.Changes) {
		_, err := b.store.Commit(t.Context(), exe, ch)
		require.NoError(t, err)
		stored[exe.ID] = exe
	}
	commit(everything("go-full"))
	for _, status := range []string{"PENDING", "RUNNING", "DONE", "CANCELLED", "SUSPENDED", "CANCELLING", "FAILED"} {
		commit(&Execution{Header: mongostore.Header{ID: "go-" + status, DefinitionID: "Bare", Status: status}}, mongostore.Changes{})
	}
	again, ch := everything("go-again")
	again.ParentID = ""
	commit(again, ch)
	again.Status, again.ActivePath, again.Context = "DONE", "", json.RawMessage(`{}`)
	commit(again, mongostore.Changes{
		Timers: []mongostore.TimerOp{{Path: "Fork.A", Cancel: true}, {Path: "@ttl", FireAt: dueAt}},
		Trace:  map[string]any{"event_kind": "End"}, Processed: "go-again-end",
	})
	require.NoError(t, b.store.AppendTrace(t.Context(), "go-again", bson.D{{Key: "event_kind", Value: "After"}}))
	return stored
}

// unknownFields are those that the seed does not know and so does not tell.
func (b *bundle) unknownFields() []string {
	if b.naming == "seed" {
		return []string{"created_at", "updated_at", "finished_at", "expires_at"}
	}
	return nil
}

func (b *bundle) requireHarelLoads(t *testing.T, stored map[string]*Execution) {
	for id, exe := range stored {
		requireSameSnapshot(t, encoded(t, exe), b.harel.load(id), b.unknownFields()...)
		b.requireSameTrace(t, id)
	}
	require.Empty(t, b.harel.load("go-gone"))
	for eventID, want := range map[string]bool{"go-again-event": true, "go-again-end": true, "go-full-event": false} {
		require.Equal(t, want, b.harel.isProcessed("go-again", eventID))
		data, seen := b.harel.loadForEvent("go-again", eventID)
		require.Equal(t, want, seen)
		require.Equal(t, stored["go-again"].Version, decoded(t, data).Version)
	}
	steps := b.requireSameTrace(t, "go-again")
	for i, kind := range []string{"Start", "End", "After"} {
		require.Equal(t, kind, steps[i].Lookup("event_kind").StringValue())
		require.EqualValues(t, i, steps[i].Lookup("index").AsInt64())
	}
}

func (b *bundle) requireHarelFilters(t *testing.T) {
	ids := func(filter args) (ids []string) {
		for _, row := range b.harel.list(filter) {
			ids = append(ids, row.ID)
		}
		return ids
	}
	require.Equal(t, []string{"go-DONE", "go-again"}, ids(args{"status": []string{"DONE"}}))
	require.Equal(t, []string{"go-again", "go-full"}, ids(args{"definition_id": "Full"}))
	require.Equal(t, []string{"go-again"}, ids(args{"definition_id": "Full", "roots_only": true}))
	var prefixed []string
	b.harel.call("ids_with_prefix", args{"prefix": "go-C"}, &prefixed)
	require.ElementsMatch(t, []string{"go-CANCELLED", "go-CANCELLING"}, prefixed)
}

// harelCommitsOn: harel's CAS holds on documents that Go wrote, and Go's on what
// harel makes of them.
func (b *bundle) harelCommitsOn(t *testing.T) {
	stale := b.load(t, "go-full")
	snapshot := b.harel.load("go-full")
	event := `{"id":"h-1","kind":"Back","created_time":null,"received_time":null,"data":{}}`
	target, handled := "go-again", "h-event"
	done := b.harel.commit(harelCommit{
		Data:      snapshot,
		Emits:     [][2]*string{{&target, &event}, {nil, &event}},
		Processed: &handled,
		Timers:    []harelTimer{{"schedule", "Fork.A", 5.0625}, {"schedule", "Fork.B", 7}},
		Spawns:    [][3]any{{"go-full:e", "Fork.B", args{"x": 1.5}}},
		Trace:     args{"event_kind": "Harel"},
	})
	require.EqualValues(t, 2, done.Version)
	require.Len(t, done.Seqs, 2)
	require.Greater(t, done.Seqs[0], int64(6), "Go's numbers are not given again")

	_, err := b.store.Commit(t.Context(), stale, mongostore.Changes{})
	var conflict *mongostore.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, mongostore.ConflictError{ExecutionID: "go-full", Expected: 1, Actual: 2}, *conflict)
	require.EqualValues(t, 1, stale.Version)

	_, err = b.harel.tryCommit(harelCommit{Data: snapshot})
	var remote *remoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, "conflict", remote.Type)
	require.EqualValues(t, 1, *remote.Expected)
	require.EqualValues(t, 2, *remote.Found)

	fresh := b.load(t, "go-full")
	requireSameSnapshot(t, b.harel.load("go-full"), encoded(t, fresh))
	seen, err := b.store.IsProcessed(t.Context(), "go-full", "h-event")
	require.NoError(t, err)
	require.True(t, seen)
	_, err = b.store.Adopt(t.Context())
	require.NoError(t, err)
	b.requireSamePending(t)
	b.requireSameTrace(t, "go-full")
	for _, timer := range b.requireSameTimers(t, 6) {
		require.Equal(t, "timeout:go-full:Fork.A:5.0625", timer.EntryID())
	}
	_, err = b.store.Commit(t.Context(), fresh, mongostore.Changes{Trace: bson.D{{Key: "event_kind", Value: "Go"}}})
	require.NoError(t, err)
	require.EqualValues(t, 3, decoded(t, b.harel.load("go-full")).Version)
	b.requireSameTrace(t, "go-full")
}

// harelAcknowledges empties the outbox and the spawns one by one.
func (b *bundle) harelAcknowledges(t *testing.T) {
	outbox, spawns := b.requireSamePending(t)
	require.Len(t, outbox, 8)
	require.Len(t, spawns, 5)
	for _, e := range outbox {
		b.harel.call("ack_outbox", args{"seq": e.Seq}, nil)
		left, _ := b.requireSamePending(t)
		require.NotContains(t, left, e)
		require.NoError(t, b.store.AckOutbox(t.Context(), e), "what is gone is no error")
	}
	for _, e := range spawns {
		b.harel.call("ack_spawn", args{"seq": e.Seq}, nil)
	}
	outbox, spawns = b.requireSamePending(t)
	require.Empty(t, outbox)
	require.Empty(t, spawns)
}

// harelDeletesTimers: only at the very time that they fire.
func (b *bundle) harelDeletesTimers(t *testing.T) {
	due := b.harel.dueTimers(forever)
	require.Len(t, due, 6)
	for i, d := range due {
		at, err := d.FireAt.Float64()
		require.NoError(t, err)
		b.harel.deleteTimer(d.ID, d.Path, math.Nextafter(at, 0))
		require.Len(t, b.requireSameTimers(t, forever), len(due)-i)
		b.harel.deleteTimer(d.ID, d.Path, d.FireAt)
		require.Len(t, b.requireSameTimers(t, forever), len(due)-i-1)
	}
}

// harelPurges: gone for Go too, and a stale value cannot bring it back.
func (b *bundle) harelPurges(t *testing.T) {
	stale := b.load(t, "go-again")
	_, err := b.store.Commit(t.Context(), b.load(t, "go-DONE"), mongostore.Changes{
		Emits: []mongostore.Emit{{TargetID: "go-again", Event: Event{ID: "late", Kind: "Late"}}},
	})
	require.NoError(t, err)
	require.False(t, b.harel.purge("go-again", stale.Version+1))
	require.True(t, b.harel.purge("go-again", stale.Version))
	require.ErrorIs(t, b.store.Load(t.Context(), "go-again", &Execution{}), mongostore.ErrNotFound)
	outbox, _ := b.requireSamePending(t)
	require.Empty(t, outbox, "what was addressed to it is gone")
	_, err = b.store.Commit(t.Context(), stale, mongostore.Changes{})
	require.ErrorIs(t, err, mongostore.ErrNotFound)
	require.ErrorIs(t, err, mongostore.ErrConflict)
	require.Empty(t, b.harel.load("go-again"))
}

// testGoDeletesWhatHarelWrote: the trace counter that harel made goes with it.
func testGoDeletesWhatHarelWrote(t *testing.T, b *bundle) {
	b.harel.commit(harelCommit{Data: `{"id":"h","definition_id":"D"}`, Trace: args{"event_kind": "Start"}})
	require.Contains(t, b.counterDocuments(t), "trace:h")
	require.ErrorIs(t, b.store.Delete(t.Context(), "h", 2), mongostore.ErrConflict)
	require.NotEmpty(t, b.harel.load("h"))
	require.NoError(t, b.store.Delete(t.Context(), "h", 1))
	require.Empty(t, b.harel.load("h"))
	require.NotContains(t, b.counterDocuments(t), "trace:h")
}

// testHarelRunsWhatGoStarted: a Start that Go put into the outbox runs in harel's
// engine.
func testHarelRunsWhatGoStarted(t *testing.T, b *bundle) {
	for i := range 3 {
		id := fmt.Sprint("started-", i)
		exe := &Execution{Header: mongostore.Header{ID: id, DefinitionID: "Plain", Status: "PENDING"}, Priority: i}
		start := mongostore.Emit{TargetID: id, Event: Event{ID: "start-" + id, Kind: "Start"}}
		_, err := b.store.Commit(t.Context(), exe, mongostore.Changes{Emits: []mongostore.Emit{start}})
		require.NoError(t, err)
	}
	b.harel.call("recover", args{"definition": "Plain"}, nil)
	for i := range 3 {
		exe := b.load(t, fmt.Sprint("started-", i))
		require.Equal(t, stand{"RUNNING", "Cart", ""}, stand{exe.Status, exe.ActivePath, exe.Outcome})
		require.Equal(t, i, exe.Priority)
		seen, err := b.store.IsProcessed(t.Context(), exe.ID, "start-"+exe.ID)
		require.NoError(t, err)
		require.True(t, seen)
	}
	outbox, _ := b.requireSamePending(t)
	require.Empty(t, outbox)
}
