package outbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// How many events one command takes, by their number, their lanes and the bytes of their
// names: what would be too large is a transaction that no small server can hold.
func TestAppendable(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxName)
	for name, c := range map[string]struct {
		n    int
		each entry
		want int
	}{
		"few":                    {3, entry{id: "e", key: "k", handlers: []string{"h"}}, 3},
		"as many as are allowed": {appendMost + 1, entry{id: "e", key: "k", handlers: []string{"h"}}, appendMost},
		"lanes of many handlers": {1000, entry{id: "e", key: "k", handlers: make([]string, 1000)}, appendLanes / 1000},
		"no lanes without a key": {1000, entry{id: "e", handlers: make([]string, 1000)}, 1000},
		"one that is too much":   {2, entry{id: "e", key: "k", handlers: make([]string, appendLanes+1)}, 1},
		"long ids":               {10_000, entry{id: long, handlers: []string{"h"}}, appendNames / (maxName + 16)},
		"long keys":              {10_000, entry{id: "e", key: long, handlers: []string{""}}, appendNames / (maxName + 16)},
		"long handlers":          {10_000, entry{id: "e", key: "kk", handlers: []string{long[2:], long[2:]}}, appendNames / 2 / (maxName + 16)},
	} {
		entries := make([]entry, c.n)
		for i := range entries {
			entries[i] = c.each
		}
		require.Equal(t, c.want, appendable(entries), name)
	}
}
