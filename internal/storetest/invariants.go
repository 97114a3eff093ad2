package storetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// What must be true of every document that only the store has written, whatever a
// test has done to it. Each test's database is looked through when it ends.

func (b *bundle) checkInvariants(t *testing.T) {
	cursor, err := b.executions.Find(context.Background(), bson.D{})
	require.NoError(t, err)
	var docs []bson.Raw
	require.NoError(t, cursor.All(context.Background(), &docs))
	seen := map[string]map[int64]bool{"outbox": {}, "spawns": {}}
	for _, doc := range docs {
		if doc.Lookup("data").Type == 0 {
			checkTrace(t, doc)
			continue // what AppendTrace made before the first commit
		}
		checkShape(t, doc)
		checkVersion(t, doc)
		checkTrace(t, doc)
		b.checkTimes(t, doc)
		checkLease(t, doc)
		for field := range seen {
			checkNumbers(t, doc, field, seen[field])
		}
	}
}

func checkShape(t *testing.T, doc bson.Raw) {
	for field, kind := range map[string]bson.Type{
		"outbox": bson.TypeArray, "spawns": bson.TypeArray, "trace": bson.TypeArray, "processed": bson.TypeArray,
		"timers": bson.TypeEmbeddedDocument, "commits": bson.TypeEmbeddedDocument,
		"status": bson.TypeString, "outcome": bson.TypeString, "active_path": bson.TypeString, "definition_id": bson.TypeString,
		"updated_at": bson.TypeDouble,
	} {
		require.Equal(t, kind, doc.Lookup(field).Type, "%s of %s", field, doc)
	}
	parent := doc.Lookup("parent_id")
	require.Contains(t, []bson.Type{bson.TypeNull, bson.TypeString}, parent.Type)
	for _, field := range []string{"finished_at", "due_at", "timer_at", "seq_hi"} {
		require.NotEqual(t, bson.TypeNull, doc.Lookup(field).Type, "%s of %s", field, doc)
	}
	ids := map[string]bool{}
	for _, v := range values(t, doc, "processed") {
		require.False(t, ids[v.StringValue()], "processed twice: %s", v)
		ids[v.StringValue()] = true
	}
}

func checkVersion(t *testing.T, doc bson.Raw) {
	version := doc.Lookup("version").AsInt64()
	require.Positive(t, version)
	slot := doc.Lookup("commits", strconv.FormatInt(version%8, 10)).ObjectID()
	require.EqualValues(t, version, binary.BigEndian.Uint32(slot[:4]), "the slot of the current version")
	text, ok := doc.Lookup("data").StringValueOK()
	if !ok {
		return // another codec's snapshot
	}
	var head struct {
		ID      string `json:"id"`
		Status  string `json:"status"`
		Version int64  `json:"version"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &head))
	require.Equal(t, version, head.Version, "data of %s", doc)
	require.Equal(t, doc.Lookup("_id").StringValue(), head.ID)
	require.Equal(t, doc.Lookup("status").StringValue(), head.Status)
}

func checkTrace(t *testing.T, doc bson.Raw) {
	next := int64(0)
	for _, v := range values(t, doc, "trace") {
		index := v.Document().Lookup("index").AsInt64()
		require.GreaterOrEqual(t, index, next, "trace of %s", doc)
		next = index + 1
	}
	stored, _ := doc.Lookup("trace_next").AsInt64OK() // 0: harel made the document
	require.GreaterOrEqual(t, stored, next, "trace_next of %s", doc)
}

// checkTimes: what is owed is found, and not too late.
func (b *bundle) checkTimes(t *testing.T, doc bson.Raw) {
	elements, err := doc.Lookup("timers").Document().Elements()
	require.NoError(t, err)
	owes := len(values(t, doc, "outbox")) > 0 || len(values(t, doc, "spawns")) > 0
	held, _ := doc.Lookup("lease", "until").DoubleOK() // nothing is due before
	for _, e := range elements {
		fire := e.Value().Double()
		require.LessOrEqual(t, doc.Lookup("timer_at").Double(), fire, "timer_at of %s", doc)
		require.LessOrEqual(t, doc.Lookup("due_at").Double(), max(fire, held), "due_at of %s", doc)
	}
	if owes {
		require.LessOrEqual(t, doc.Lookup("due_at").Double(), max(seconds(b.clock.Now()), held), "due_at of %s", doc)
	}
}

// checkLease: held by a token or backing off without one, and the dead are found.
func checkLease(t *testing.T, doc bson.Raw) {
	if lease := doc.Lookup("lease"); lease.Type != 0 && lease.Type != bson.TypeNull {
		require.Equal(t, bson.TypeDouble, doc.Lookup("lease", "until").Type, "lease of %s", doc)
		require.Positive(t, doc.Lookup("lease", "attempts").AsInt64(), "lease of %s", doc)
		token := doc.Lookup("lease", "token")
		require.True(t, token.Type == 0 || token.StringValue() != "", "lease of %s", doc)
	}
	dead := len(values(t, doc, "dead")) > 0
	require.Equal(t, dead, doc.Lookup("dead_at").Type == bson.TypeDouble, "dead_at of %s", doc)
	require.Equal(t, dead, doc.Lookup("dead").Type == bson.TypeArray, "dead of %s", doc)
}

func checkNumbers(t *testing.T, doc bson.Raw, field string, seen map[int64]bool) {
	last := int64(0)
	for _, v := range values(t, doc, field) {
		seq := v.Document().Lookup("seq").AsInt64()
		require.Greater(t, seq, last, "%s of %s", field, doc)
		require.False(t, seen[seq], "%s number %d twice", field, seq)
		seen[seq], last = true, seq
	}
}

// values gives the elements of an array; none where there is none.
func values(t *testing.T, doc bson.Raw, field string) []bson.RawValue {
	t.Helper()
	arr, ok := doc.Lookup(field).ArrayOK()
	if !ok {
		return nil
	}
	all, err := arr.Values()
	require.NoError(t, err)
	return all
}

// seqs gives the numbers in an array of a document.
func seqs(t *testing.T, doc bson.Raw, field string) []int64 {
	t.Helper()
	numbers := []int64{}
	for _, v := range values(t, doc, field) {
		numbers = append(numbers, v.Document().Lookup("seq").AsInt64())
	}
	return numbers
}

// texts gives the strings in an array of a document.
func texts(t *testing.T, doc bson.Raw, field string) []string {
	t.Helper()
	list := []string{}
	for _, v := range values(t, doc, field) {
		list = append(list, v.StringValue())
	}
	return list
}

// timersOf gives the stored timers of a document by their stored keys.
func timersOf(t *testing.T, doc bson.Raw) map[string]float64 {
	t.Helper()
	elements, err := doc.Lookup("timers").Document().Elements()
	require.NoError(t, err)
	timers := map[string]float64{}
	for _, e := range elements {
		timers[e.Key()] = e.Value().AsFloat64()
	}
	return timers
}

// indexes gives the trace indexes of a document.
func indexes(t *testing.T, doc bson.Raw) []int64 {
	t.Helper()
	list := []int64{}
	for _, v := range values(t, doc, "trace") {
		list = append(list, v.Document().Lookup("index").AsInt64())
	}
	return list
}

// fields are the keys of a document in order.
func fields(t *testing.T, doc bson.Raw) []string {
	t.Helper()
	elements, err := doc.Elements()
	require.NoError(t, err)
	keys := make([]string, 0, len(elements))
	for _, e := range elements {
		keys = append(keys, e.Key())
	}
	return slices.Clip(keys)
}
