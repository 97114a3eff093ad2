package cursor_test

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/cursor"
)

func TestACursorComesBackWithItsFilterOnly(t *testing.T) {
	t.Parallel()
	filter, other := cursor.Digest("%q %t", "orders", true), cursor.Digest("%q %t", "orders", false)
	require.Len(t, filter, 8)
	for _, id := range []string{"o-1", " ", "a/b?c&d", "é\u2028", `"`, "\x01", "\xff", "a\xed\xa0\x80", "\x00"} {
		text := cursor.Encode(id, filter)
		require.Regexp(t, `^[A-Za-z0-9_-]+$`, text)
		after, reason := cursor.Decode(text, filter)
		require.Empty(t, reason)
		require.Equal(t, id, after)
		after, reason = cursor.Decode(text, other)
		require.Equal(t, "belongs to another filter", reason)
		require.Empty(t, after)
	}
	after, reason := cursor.Decode("", filter)
	require.Empty(t, reason)
	require.Empty(t, after)
}

// Users keep cursors while programs are updated.
func TestACursorReadsAsItAlwaysDid(t *testing.T) {
	t.Parallel()
	filter := cursor.Digest("%q", "orders")
	require.Equal(t, "eyJhIjoieC0wMDEiLCJmIjoiYTVQYzhPcUNOd0k9In0", cursor.Encode("x-001", filter))
}

func TestWhatIsNoCursorIsRefused(t *testing.T) {
	t.Parallel()
	filter := cursor.Digest("")
	good := cursor.Encode("x-001", filter)
	for _, bad := range []string{"MA==", "x", "!!!", good + "A", good[1:], good[:len(good)-2], " " + good, "e30", "bnVsbA", "W10",
		cursor.Encode("", filter), base64.RawURLEncoding.EncodeToString([]byte(`{"a":5}`))} {
		after, reason := cursor.Decode(bad, filter)
		require.Equal(t, "is not a cursor that a listing gave", reason, bad)
		require.Empty(t, after)
	}
}
