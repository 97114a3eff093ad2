package names_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/names"
)

func TestDatabases(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "harel", "é", strings.Repeat("x", 63), "a-b_c"} {
		require.Empty(t, names.Database(good), good)
	}
	require.Equal(t, "has 64 bytes, MongoDB allows 63", names.Database(strings.Repeat("é", 32)), "bytes are counted")
	require.Equal(t, "is not UTF-8", names.Database("a\xff"))
	for _, c := range "/\\. \"$*<>:|?\x00" {
		require.Contains(t, names.Database("a"+string(c)), "MongoDB refuses", "%q", c)
	}
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("x", 255-len("db.")-len("outbox"))
	for _, good := range []string{"", "harel_", "a.", "systemic.", "a b ", longest} {
		require.Empty(t, names.Prefix("db", good, "outbox"), good)
	}
	require.Equal(t, "makes a namespace of 256 bytes, MongoDB allows 255", names.Prefix("db", longest, "outboxe"), "the name behind it counts")
	for prefix, reason := range map[string]string{
		"a$b": "holds $ or NUL", "a\x00": "holds $ or NUL", ".a": "makes an empty part", "a..b": "makes an empty part",
		"system.": `starts with "system."`, "\xff": "is not UTF-8",
	} {
		require.Contains(t, names.Prefix("db", prefix, "outbox"), reason, "%q", prefix)
	}
}
