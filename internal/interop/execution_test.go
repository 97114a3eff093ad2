package interop

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestExecutionKeepsWhatHarelWrote: what Go does not look into is the same text
// after a round trip.
func TestExecutionKeepsWhatHarelWrote(t *testing.T) {
	t.Parallel()
	full, _ := everything("full")
	snapshot := encoded(t, full)
	require.Equal(t, snapshot, encoded(t, decoded(t, snapshot)))
	require.Contains(t, snapshot, `"context":`+string(full.Context))

	bare := `{"id":"b","definition_id":"D","status":"PENDING","version":0,"error":null,"parent_id":null,"active_path":null,"outcome":null,"created_at":1e+16}`
	requireSameSnapshot(t, bare, encoded(t, decoded(t, bare)), "root_path")
	for _, refused := range []string{`"history":null`, `"context":null`, `"deferred":null`, `"children":null`, `"invoke_seq":null`} {
		require.NotContains(t, encoded(t, decoded(t, bare)), refused, "harel refuses null there")
	}
}

// TestDocumentsAreTyped: 1 and 1.0 differ on both ways, and no key means anything.
func TestDocumentsAreTyped(t *testing.T) {
	t.Parallel()
	text := `{"i":1,"f":1.0,"long":1099511627776,"e":1e+16,"small":1e-07,"$date":"x","a.b":{"":[]},"n":null,"t":true,"s":"<&\u2028"}`
	doc, err := DocumentFromJSON([]byte(text))
	require.NoError(t, err)
	require.Equal(t, bson.D{
		{Key: "i", Value: int32(1)}, {Key: "f", Value: 1.0}, {Key: "long", Value: int64(1) << 40}, {Key: "e", Value: 1e16},
		{Key: "small", Value: 1e-7}, {Key: "$date", Value: "x"}, {Key: "a.b", Value: bson.D{{Key: "", Value: bson.A{}}}},
		{Key: "n", Value: nil}, {Key: "t", Value: true}, {Key: "s", Value: "<&\u2028"},
	}, doc)
	raw, err := bson.Marshal(doc)
	require.NoError(t, err)
	back, err := JSONFromDocument(raw)
	require.NoError(t, err)
	again, err := DocumentFromJSON(back)
	require.NoError(t, err)
	require.Equal(t, doc, again)

	_, err = DocumentFromJSON([]byte(`[1]`))
	require.ErrorContains(t, err, "not a JSON object")
	_, err = DocumentFromJSON([]byte(`{"a":1180591620717411303424}`))
	require.Error(t, err, "BSON has no such integer")
	_, err = DocumentFromJSON([]byte(`{"a":`))
	require.Error(t, err)
	raw, err = bson.Marshal(bson.D{{Key: "at", Value: bson.DateTime(1)}})
	require.NoError(t, err)
	_, err = JSONFromDocument(raw)
	require.ErrorContains(t, err, "at: is a BSON UTC datetime")
}
