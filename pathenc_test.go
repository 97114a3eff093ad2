package mongostore

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/internal/mongotest"
)

var oddPaths = []string{
	"", "A", "Fork.A", "Fork．A", ".", "..", "a..b", ".a", "a.", "$", "$x", "$[]", "$[a].b", "a.$.b", "a$b", "＼", "＼z", "＼s", "＼e", "＼d",
	"a＼", "＼＼", "％2E", "%2E", "%", `\`, "~", "@ttl", "a b", "日本", "0", "0.1", "__proto__", "\u2028", strings.Repeat("x.", 200),
}

func TestPathsEncodeAsHarelDoesWhereTheyAreOrdinary(t *testing.T) {
	t.Parallel()
	for path, key := range map[string]string{
		"A": "A", "Fork.A": "Fork．A", "a..b": "a．．b", ".a": "．a", "a b": "a b", "@ttl": "@ttl", "%2E": "%2E", `\`: `\`, "a$b": "a$b",
	} {
		require.Equal(t, key, encodePath(path))
		require.Equal(t, path, decodePath(key))
	}
}

func TestKeysThatHarelWroteDecodeAsItMeansThem(t *testing.T) {
	t.Parallel()
	for key, path := range map[string]string{"$x": "$x", "a＼b": "a＼b", "＼": "＼", "$x．y": "$x.y"} {
		require.Equal(t, path, decodePath(key))
		other, ok := harelKey(path)
		require.True(t, ok, "the same path has another key of ours: %q", path)
		require.Equal(t, key, other)
	}
	for _, path := range []string{"A", "Fork.A", "a．b", "$", "$[]", ""} {
		_, ok := harelKey(path)
		require.False(t, ok, "harel has no other key that means %q", path)
	}
}

func TestEncodedPathsAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, path := range oddPaths {
		key := encodePath(path)
		require.NotContains(t, seen, key, "%q and %q", path, seen[key])
		seen[key] = path
	}
}

func FuzzPathsComeBack(f *testing.F) {
	for _, path := range oddPaths {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		key := encodePath(path)
		if got := decodePath(key); got != path {
			t.Fatalf("%q became %q and came back as %q", path, key, got)
		}
		if key == "" || strings.Contains(key, ".") || strings.HasPrefix(key, "$") {
			t.Fatalf("%q became %q, which MongoDB would not take", path, key)
		}
		if other, ok := harelKey(path); ok && (decodePath(other) != path || other == key) {
			t.Fatalf("harel's key %q does not mean %q", other, path)
		}
	})
}

// FuzzTheServerTakesPaths arms, reads and deletes a timer under every path.
func FuzzTheServerTakesPaths(f *testing.F) {
	client, database := mongotest.Standalone(f).Database(f)
	s, err := New(client, Config{Database: database})
	require.NoError(f, err)
	for _, path := range oddPaths {
		f.Add(path)
	}
	at := fromSeconds(1_800_000_000.123456)
	f.Fuzz(func(t *testing.T, path string) {
		if !utf8.ValidString(path) || strings.Contains(path, "\x00") {
			return // refused, see the contract suite
		}
		ctx := t.Context()
		o := &struct{ Header }{Header{ID: "x-" + bson.NewObjectID().Hex()}}
		if _, err := s.Commit(ctx, o, Changes{}); err != nil {
			t.Fatal(err)
		}
		for range 2 { // arming again must not make another one
			if _, err := s.Commit(ctx, o, Changes{Timers: []TimerOp{{Path: path, FireAt: at}}}); err != nil {
				t.Fatal(err)
			}
		}
		in, err := s.Inspect(ctx, o.ID)
		if err != nil || len(in.Timers) != 1 || in.Timers[0].Path != path || !in.Timers[0].FireAt.Equal(at) {
			t.Fatalf("%q came back as %v, %v", path, in, err)
		}
		if err := s.DeleteTimer(ctx, in.Timers[0]); err != nil {
			t.Fatal(err)
		}
		if in, err = s.Inspect(ctx, o.ID); err != nil || len(in.Timers) != 0 {
			t.Fatalf("%q was not deleted: %v, %v", path, in.Timers, err)
		}
		if err := s.Delete(ctx, o.ID, o.Version); err != nil {
			t.Fatal(err)
		}
	})
}
