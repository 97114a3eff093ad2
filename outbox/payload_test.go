package outbox_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

func TestPayload(t *testing.T) { run(t, payloadTests) }

// travels stores one event and gives what a handler gets.
func (b *bundle) travels(t testing.TB, payload any, headers map[string]any) outbox.Message {
	t.Helper()
	b.append(t, outbox.Message{ID: "e-1", Type: "made", Payload: payload, Headers: headers, Handlers: []string{"h"}})
	d := b.claimOne(t)
	_, err := b.deliveries.DeleteMany(t.Context(), kv())
	require.NoError(t, err)
	_, err = b.events.DeleteMany(t.Context(), kv())
	require.NoError(t, err)
	return d.Message
}

var payloadTests = tests{
	"IsItsJSONText": func(t *testing.T, b *bundle) {
		type item struct {
			Name  string    `json:"name"`
			At    time.Time `json:"at"`
			Rest  []int     `json:"rest,omitempty"`
			Inner any
		}
		for _, c := range []struct {
			payload any
			want    string
		}{
			{nil, `null`}, {true, `true`}, {"", `""`}, {0, `0`}, {int64(math.MaxInt64), `9223372036854775807`}, {1e300, `1e+300`},
			{"<a&b>", `"<a&b>"`}, {"a\x00b", "\"a\\u0000b\""}, {"\U0001F600\uFFFD", "\"\U0001F600\uFFFD\""},
			{item{Name: "x", At: time.Unix(1, 0).UTC(), Inner: map[string]int{"b": 1, "a": 2}}, `{"name":"x","at":"1970-01-01T00:00:01Z","Inner":{"a":2,"b":1}}`},
			{json.RawMessage(` {"b" : 1.50, "a":[ ] } `), `{"b":1.50,"a":[]}`},
			{json.RawMessage(`"\ud83d\ude00 \ufffd"`), `"\ud83d\ude00 \ufffd"`},
			{json.Number("12345678901234567890"), `12345678901234567890`},
			{[]byte{0xff}, `"/w=="`},
		} {
			require.Equal(t, c.want, string(b.travels(t, c.payload, nil).Payload.(json.RawMessage)))
		}
	},

	"BH-09_DotsAndDollarsInKeysComeBackAsTheyAre": func(t *testing.T, b *bundle) {
		headers := map[string]any{"kubernetes.io/app": 1, "$set": map[string]any{"a.b": 2}, "": 3, "q": map[string]any{"$ne": nil}}
		want := map[string]any{"kubernetes.io/app": json.Number("1"), "$set": map[string]any{"a.b": json.Number("2")}, "": json.Number("3"), "q": map[string]any{"$ne": nil}}
		m := b.travels(t, headers, headers)
		require.Equal(t, want, m.Headers)
		require.JSONEq(t, `{"kubernetes.io/app":1,"$set":{"a.b":2},"":3,"q":{"$ne":null}}`, string(m.Payload.(json.RawMessage)))
		var batch []outbox.Message // by the other way of storing
		for i := range 70 {
			batch = append(batch, outbox.Message{ID: fmt.Sprintf("e-%d", i), Type: "$set", Key: "$k.x", Payload: headers, Headers: headers, Handlers: []string{"$h.x"}})
		}
		b.append(t, batch...)
		d := b.claimOne(t, "$h.x")
		require.Equal(t, want, d.Message.Headers)
		require.Equal(t, "$k.x", d.Message.Key)
	},

	"HeadersKeepTheirNumbersExactly": func(t *testing.T, b *bundle) {
		m := b.travels(t, nil, map[string]any{"n": int64(math.MaxInt64), "f": json.Number("1.10")})
		require.Equal(t, map[string]any{"n": json.Number("9223372036854775807"), "f": json.Number("1.10")}, m.Headers)
		require.Nil(t, b.travels(t, nil, map[string]any{}).Headers)
		require.Nil(t, b.travels(t, nil, nil).Headers)
	},

	"TextThatIsNotUTF8IsRefused": func(t *testing.T, b *bundle) {
		type inner struct{ S string }
		bad := "a\xff"
		for _, payload := range []any{
			bad, []any{1, bad}, map[string]any{"k": map[string]string{"x": bad}}, map[string]int{bad: 1}, &inner{bad}, struct{ inner }{inner{bad}},
			json.RawMessage("\"\xff\""), json.RawMessage(`"\ud800"`), json.RawMessage(`"\udc00x"`), json.RawMessage(`"\ud800\u0041"`), json.RawMessage(`{`), json.RawMessage(``),
		} {
			m := msg("e-1", "")
			m.Payload = payload
			require.ErrorIs(t, appendBy(t.Context(), b.store, m), mongostore.ErrInvalid, "%#v", payload)
			m.Payload, m.Headers = nil, map[string]any{"h": payload}
			require.ErrorIs(t, appendBy(t.Context(), b.store, m), mongostore.ErrInvalid, "%#v", payload)
		}
		b.requireEmpty(t)
	},
}
