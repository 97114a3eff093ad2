package interop

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// defaults are what harel takes a field for that is left out. An empty string is
// not among them: harel's parent_id "" is a child's.
var defaults = []string{"null", "{}", "[]", "0"}

// fieldsOf gives the fields of a snapshot, or of an event, as their JSON texts.
func fieldsOf(t *testing.T, snapshot string) map[string]string {
	t.Helper()
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(snapshot), &raw), snapshot)
	fields := map[string]string{}
	for key, text := range raw {
		if !slices.Contains(defaults, string(text)) {
			fields[key] = canonicalText(t, text)
		}
	}
	return fields
}

// canonicalText leaves everything as it is, but writes a string as Go does.
func canonicalText(t *testing.T, text json.RawMessage) string {
	t.Helper()
	if text[0] != '"' {
		return string(text)
	}
	var s string
	require.NoError(t, json.Unmarshal(text, &s))
	out, err := json.Marshal(s)
	require.NoError(t, err)
	return string(out)
}

// requireSameSnapshot compares two snapshots to the last digit, but for the named
// fields.
func requireSameSnapshot(t *testing.T, expected, found string, but ...string) {
	t.Helper()
	want, have := fieldsOf(t, expected), fieldsOf(t, found)
	for _, key := range but {
		delete(want, key)
		delete(have, key)
	}
	require.Equal(t, want, have)
}

// requireSameDocument compares a BSON document with the JSON of a Python dict:
// values, types of numbers, and the order of keys.
func requireSameDocument(t *testing.T, expected json.RawMessage, found bson.Raw) {
	t.Helper()
	want, err := DocumentFromJSON(expected)
	require.NoError(t, err)
	text, err := JSONFromDocument(found)
	require.NoError(t, err)
	have, err := DocumentFromJSON(text)
	require.NoError(t, err)
	require.Equal(t, want, have)
}

// decoded reads a snapshot as the engine type.
func decoded(t *testing.T, snapshot string) *Execution {
	t.Helper()
	var exe Execution
	require.NoError(t, json.Unmarshal([]byte(snapshot), &exe))
	return &exe
}

func encoded(t *testing.T, exe *Execution) string {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	require.NoError(t, enc.Encode(exe))
	return out.String()
}

func (b *bundle) load(t *testing.T, id string) *Execution {
	t.Helper()
	var exe Execution
	require.NoError(t, b.store.Load(t.Context(), id, &exe))
	return &exe
}

// toRow writes a Summary as harel's, but for the time.
func toRow(s mongostore.Summary) harelRow {
	return harelRow{
		ID: s.ID, DefinitionID: s.DefinitionID, Status: s.Status, Version: s.Version,
		Outcome: pointerTo(s.Outcome), ActivePath: pointerTo(s.ActivePath), ParentID: pointerTo(s.ParentID),
	}
}

func pointerTo(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// requireSameRows compares listings. Statuses that only mongostore calls finished
// have no finished_at in harel.
func requireSameRows(t *testing.T, expected []harelRow, found []mongostore.Summary) {
	t.Helper()
	require.Len(t, found, len(expected))
	for i, row := range found {
		require.NoError(t, row.Err)
		want := expected[i]
		if want.FinishedAt != nil {
			require.Equal(t, *want.FinishedAt, Seconds(row.FinishedAt), row.ID)
		}
		want.FinishedAt = nil
		require.Equal(t, want, toRow(row))
	}
}

func (b *bundle) list(t *testing.T, opts mongostore.ListOptions) (rows []mongostore.Summary) {
	t.Helper()
	opts.Limit = 5
	for row, err := range b.store.All(t.Context(), opts) {
		require.NoError(t, err)
		rows = append(rows, row)
	}
	return rows
}

// requireSamePending compares what both sides say is pending.
func (b *bundle) requireSamePending(t *testing.T) (outbox []mongostore.OutboxEntry, spawns []mongostore.SpawnEntry) {
	t.Helper()
	outbox, err := b.store.PendingOutbox(t.Context(), 0)
	require.NoError(t, err)
	found := []harelOutbox{}
	for _, e := range outbox {
		found = append(found, harelOutbox{Seq: e.Seq, TargetID: pointerTo(e.TargetID), Event: string(e.Event)})
	}
	expected := b.harel.pendingOutbox()
	require.Len(t, found, len(expected))
	for i, e := range expected {
		requireSameSnapshot(t, e.Event, found[i].Event)
		e.Event, found[i].Event = "", ""
		require.Equal(t, e, found[i])
	}

	spawns, err = b.store.PendingSpawns(t.Context(), 0)
	require.NoError(t, err)
	expectedSpawns := b.harel.pendingSpawns()
	require.Len(t, spawns, len(expectedSpawns))
	for i, e := range expectedSpawns {
		s := spawns[i]
		requireSameDocument(t, e.Context, s.Input)
		require.Equal(t, e, harelSpawn{Seq: s.Seq, ParentID: s.ParentID, ChildID: s.ChildID, RootPath: s.RootPath, Context: e.Context})
	}
	return outbox, spawns
}

// forever is a time by which every timer of these tests is due.
const forever = 1e10

// requireSameTimers compares what both sides say is due, each to its last digit.
func (b *bundle) requireSameTimers(t *testing.T, now float64) []mongostore.Timer {
	t.Helper()
	due, err := b.store.DueTimers(t.Context(), TimeOf(now), 0)
	require.NoError(t, err)
	ids := []string{}
	for _, timer := range due {
		ids = append(ids, timer.EntryID())
	}
	expected := []string{}
	for _, d := range b.harel.dueTimers(now) {
		expected = append(expected, d.entryID())
	}
	require.ElementsMatch(t, expected, ids)
	for i := 1; i < len(due); i++ {
		require.False(t, due[i].FireAt.Before(due[i-1].FireAt), "timers come in the order of time")
	}
	return due
}

// requireSameTrace compares a whole timeline.
func (b *bundle) requireSameTrace(t *testing.T, id string) []bson.Raw {
	t.Helper()
	var steps []bson.Raw
	require.NoError(t, b.store.ReadTrace(t.Context(), id, &steps))
	expected := b.harel.readTrace(id)
	require.Len(t, steps, len(expected), id)
	for i, step := range expected {
		requireSameDocument(t, step, steps[i])
	}
	return steps
}
