package interop

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// stand is where an execution stands.
type stand struct{ Status, ActivePath, Outcome string }

// written is what harel's engine leaves behind in kinds.py, write.
var written = map[string]stand{
	"plain-running":          {"RUNNING", "Paid", ""},
	"plain-huge":             {"RUNNING", "Cart", ""},
	"plain-done":             {"DONE", "Shipped", "success"},
	"plain-suspended":        {"SUSPENDED", "Cart", ""},
	"plain-cancelled":        {"CANCELLED", "Cart", ""},
	"plain-queued":           {"PENDING", "", ""},
	"plain-bare":             {"PENDING", "", ""},
	"timed-late":             {"DONE", "Late", "late"},
	"timed-armed":            {"RUNNING", "Outer.Wait", ""},
	"timed-hop":              {"RUNNING", "Outer.Hop", ""},
	"session-expired":        {"DONE", "Closed", "expired"},
	"session-armed":          {"RUNNING", "Active", ""},
	"fork-done":              {"DONE", "Done", "success"},
	"fork-done:Both.A:0":     {"DONE", "Both.A.A2", "success"},
	"fork-done:Both.B:0":     {"DONE", "Both.B.B2", "success"},
	"fork-running":           {"RUNNING", "Both", ""},
	"fork-running:Both.A:0":  {"RUNNING", "Both.A.A1", ""},
	"fork-running:Both.B:0":  {"RUNNING", "Both.B.B1", ""},
	"fork-half":              {"RUNNING", "Both", ""},
	"fork-half:Both.A:0":     {"DONE", "Both.A.A2", "success"},
	"fork-half:Both.B:0":     {"RUNNING", "Both.B.B1", ""},
	"fork-held":              {"RUNNING", "Both", ""},
	"waiting-deferred":       {"RUNNING", "First", ""},
	"boom-failed":            {"FAILED", "Broken", ""},
	"tidy-done":              {"DONE", "Tidied", "cleaned"},
	"tidy-cancelling":        {"CANCELLING", "Busy", ""},
	"remembers":              {"RUNNING", "Pause", ""},
	"caller-running":         {"RUNNING", "Run", ""},
	"caller-running:Run:0":   {"RUNNING", "Look", ""},
	"caller-held":            {"RUNNING", "Run", ""},
	"batch-running":          {"RUNNING", "Each", ""},
	"batch-running:Each:0:0": {"RUNNING", "Look", ""},
	"batch-running:Each:0:1": {"RUNNING", "Look", ""},
	"batch-running:Each:0:2": {"RUNNING", "Look", ""},
	"batch-running:Each:0:3": {"RUNNING", "Look", ""},
	"batch-running:Each:0:4": {"RUNNING", "Look", ""},
}

// ended is where the open ones stand after kinds.py, carry_on.
var ended = map[string]stand{
	"plain-running":          {"DONE", "Shipped", "success"},
	"plain-huge":             {"RUNNING", "Paid", ""},
	"plain-suspended":        {"RUNNING", "Paid", ""},
	"plain-queued":           {"RUNNING", "Paid", ""},
	"timed-armed":            {"DONE", "Late", "late"},
	"timed-hop":              {"DONE", "Late", "late"},
	"session-armed":          {"DONE", "Closed", "expired"},
	"fork-running":           {"DONE", "Done", "success"},
	"fork-running:Both.A:0":  {"DONE", "Both.A.A2", "success"},
	"fork-running:Both.B:0":  {"DONE", "Both.B.B2", "success"},
	"fork-half":              {"DONE", "Done", "success"},
	"fork-half:Both.B:0":     {"DONE", "Both.B.B2", "success"},
	"fork-held":              {"DONE", "Done", "success"},
	"fork-held:Both.A:0":     {"DONE", "Both.A.A2", "success"},
	"fork-held:Both.B:0":     {"DONE", "Both.B.B2", "success"},
	"waiting-deferred":       {"DONE", "Done", "success"},
	"boom-failed":            {"RUNNING", "Ready", ""},
	"tidy-cancelling":        {"DONE", "Tidied", "cleaned"},
	"remembers":              {"RUNNING", "Work.One", ""},
	"caller-running":         {"DONE", "Good", "success"},
	"caller-running:Run:0":   {"DONE", "Won", "success"},
	"caller-held":            {"DONE", "Good", "success"},
	"caller-held:Run:0":      {"DONE", "Won", "success"},
	"batch-running:Each:0:0": {"DONE", "Won", "success"},
}

// standing says where an execution is expected. The seed's 18 fields have no
// expires_at, so there a ttl never ends.
func (b *bundle) standing(id string, after map[string]stand) stand {
	if b.naming == "seed" && strings.HasPrefix(id, "session-") {
		return written["session-armed"]
	}
	if where, moved := after[id]; moved {
		return where
	}
	return written[id]
}

// testHarelWrites lets harel's engine write executions of every kind. Go reads them
// all, commits on them, and harel's engine brings them to their end.
func testHarelWrites(t *testing.T, b *bundle) {
	b.harel.call("write_kinds", nil, nil)
	b.requireHarelsDocuments(t)
	b.requireLoads(t)
	b.requireSameLists(t)
	b.requireOwed(t)
	b.requireChildrenKnown(t)
	for id := range written {
		b.requireSameTrace(t, id)
	}

	b.requireAdopted(t)
	b.requireSameLists(t)
	require.Len(t, b.requireSameTimers(t, forever), 10)

	b.commitOnAll(t)
	b.requireSameLists(t)
	b.harel.call("carry_on", nil, nil)
	b.requireEnded(t)
	b.damage.requireNone(t)
}

// requireLoads reads every execution, whole and for events it has and has not seen.
func (b *bundle) requireLoads(t *testing.T) {
	require.Len(t, b.documents(t), len(written))
	for id := range written {
		where := b.standing(id, written)
		exe := b.load(t, id)
		snapshot := b.harel.load(id)
		require.Equal(t, where, stand{exe.Status, exe.ActivePath, exe.Outcome}, id)
		requireSameSnapshot(t, snapshot, encoded(t, exe))

		in, err := b.store.Inspect(t.Context(), id)
		require.NoError(t, err)
		require.NoError(t, in.Summary.Err)
		requireSameSnapshot(t, snapshot, string(in.Data))
		require.Equal(t, exe.Version, in.Summary.Version)
	}
	for eventID, want := range map[string]bool{"ev-plain": true, "ev-other": false} {
		var exe Execution
		seen, err := b.store.LoadForEvent(t.Context(), "plain-running", eventID, &exe)
		require.NoError(t, err)
		require.Equal(t, want, seen)
		seen, err = b.store.IsProcessed(t.Context(), "plain-running", eventID)
		require.NoError(t, err)
		require.Equal(t, want, seen)
	}
	require.Contains(t, *b.load(t, "boom-failed").Error, "<broken> & \u2028")
	require.Contains(t, string(b.load(t, "plain-huge").Context), `"huge":1180591620717411303424`)
	require.ErrorIs(t, b.store.Load(t.Context(), "plain-gone", &Execution{}), mongostore.ErrNotFound)
}

// requireSameLists compares pages under every filter that both sides know.
func (b *bundle) requireSameLists(t *testing.T) {
	t.Helper()
	requireSameRows(t, b.harel.list(nil), b.list(t, mongostore.ListOptions{}))
	for _, statuses := range [][]string{{"RUNNING"}, {"DONE", "FAILED"}, {"PENDING"}, {"SUSPENDED", "CANCELLED", "CANCELLING"}} {
		for _, roots := range []bool{false, true} {
			for _, definition := range []string{"", "Fork", "Plain", "Caller#Run"} {
				filter := args{"status": statuses, "roots_only": roots}
				if definition != "" {
					filter["definition_id"] = definition
				}
				requireSameRows(t, b.harel.list(filter),
					b.list(t, mongostore.ListOptions{Statuses: statuses, RootsOnly: roots, DefinitionID: definition}))
			}
		}
	}
	children := b.list(t, mongostore.ListOptions{ParentID: "fork-running"})
	require.Len(t, children, 2)
}

// requireOwed sweeps what is pending, without Adopt.
func (b *bundle) requireOwed(t *testing.T) {
	outbox, spawns := b.requireSamePending(t)
	targets := []string{}
	for _, e := range outbox {
		var event Event
		require.NoError(t, e.Decode(&event))
		targets = append(targets, e.TargetID+" "+event.Kind)
	}
	require.Equal(t, []string{"fork-half Finished", "tidy-cancelling Cancel", "plain-queued Start"}, targets)
	children := []string{}
	for _, e := range spawns {
		children = append(children, e.ChildID+" "+e.RootPath)
	}
	require.Equal(t, []string{"fork-held:Both.A:0 Both.A", "fork-held:Both.B:0 Both.B", "caller-held:Run:0 "}, children)
}

// requireChildrenKnown: a child that harel made is there for the relay of its
// parent, and a foreign one for any other.
func (b *bundle) requireChildrenKnown(t *testing.T) {
	spawn := mongostore.SpawnEntry{ParentID: "fork-running", ChildID: "fork-running:Both.A:0"}
	res, err := b.store.CreateChild(t.Context(), spawn, &Execution{}, mongostore.Changes{})
	require.NoError(t, err)
	require.True(t, res.Deduplicated)
	require.Equal(t, b.load(t, spawn.ChildID).Version, res.Version)
	spawn.ParentID = "fork-half"
	_, err = b.store.CreateChild(t.Context(), spawn, &Execution{}, mongostore.Changes{})
	require.ErrorIs(t, err, mongostore.ErrExists)
}

// requireAdopted gives all documents mongostore's fields; to do so again changes
// nothing.
func (b *bundle) requireAdopted(t *testing.T) {
	changed, err := b.store.Adopt(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, len(b.documents(t)), changed)
	changed, err = b.store.Adopt(t.Context())
	require.NoError(t, err)
	require.Zero(t, changed)
	for id, doc := range b.documents(t) {
		require.Equal(t, b.load(t, id).Status, doc.Lookup("status").StringValue())
	}
}

// commitOnAll commits something of every sort on every execution, and sees that
// harel finds it and everything else as it was.
func (b *bundle) commitOnAll(t *testing.T) {
	armed := b.harel.dueTimers(forever)
	for id := range written {
		before := b.harel.load(id)
		exe := b.load(t, id)
		version := exe.Version
		exe.Context = withField(exe.Context, "go", "1.0")
		in, err := b.store.Inspect(t.Context(), id)
		require.NoError(t, err)
		ch := mongostore.Changes{
			Emits:     []mongostore.Emit{{Event: Event{ID: "go-emit-" + id, Kind: "Told", Data: json.RawMessage(`{"n":1}`)}}},
			Processed: "go-" + id,
			Trace:     bson.D{{Key: "event_kind", Value: "Go"}, {Key: "context_out", Value: bson.D{{Key: "a.b", Value: 1.0}}}},
		}
		for _, timer := range in.Timers {
			ch.Timers = append(ch.Timers, mongostore.TimerOp{Path: timer.Path, Cancel: true}, mongostore.TimerOp{Path: timer.Path, FireAt: timer.FireAt})
		}
		res, err := b.store.Commit(t.Context(), exe, ch)
		require.NoError(t, err)
		require.Equal(t, version+1, res.Version)
		require.Len(t, res.OutboxSeqs, 1)

		after := b.harel.load(id)
		requireSameSnapshot(t, before, after, "version", "context")
		require.Equal(t, res.Version, decoded(t, after).Version)
		require.Equal(t, string(exe.Context), string(decoded(t, after).Context))
		require.True(t, b.harel.isProcessed(id, "go-"+id))
		steps := b.requireSameTrace(t, id)
		require.Equal(t, "Go", steps[len(steps)-1].Lookup("event_kind").StringValue())
	}
	b.requireSamePending(t)
	b.requireSameTimers(t, forever)
	require.ElementsMatch(t, armed, b.harel.dueTimers(forever), "armed anew for the very same times")
}

// withField adds a field to a JSON object and leaves the rest as it is.
func withField(object json.RawMessage, key, value string) json.RawMessage {
	added := `"` + key + `":` + value + "}"
	if !bytes.Equal(object, []byte("{}")) {
		added = "," + added
	}
	return json.RawMessage(strings.TrimSuffix(string(object), "}") + added)
}

// ttlPath is harel's timer of inactivity. It counts only while its time is the very
// double that the snapshot has as expires_at.
const ttlPath = "@ttl"

// requireEnded: harel's engine went on as if Go had never been there.
func (b *bundle) requireEnded(t *testing.T) {
	_, err := b.store.Adopt(t.Context())
	require.NoError(t, err)
	b.requireSameLists(t)
	outbox, spawns := b.requireSamePending(t)
	require.Empty(t, outbox)
	require.Empty(t, spawns)
	b.requireSameTimers(t, forever)
	for id := range written {
		want := b.standing(id, ended)
		exe := b.load(t, id)
		require.Equal(t, want, stand{exe.Status, exe.ActivePath, exe.Outcome}, id)
		require.Contains(t, string(exe.Context), `"go":1.0`, id)
		requireSameSnapshot(t, b.harel.load(id), encoded(t, exe))
		b.requireSameTrace(t, id)
	}
}
