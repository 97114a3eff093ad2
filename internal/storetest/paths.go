package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exercisePaths: any path names its own timer and comes back as it was given.
func exercisePaths(t *testing.T, h *harness) {
	run(t, h.bundle, pathTests)
}

const (
	lookAlike = "\uFF0E" // what a dot becomes in a field name
	escape    = "\uFF3C"
)

var oddPaths = []string{
	"", ".", "..", ".a", "a.", "a..b", "Fork.A", "Fork" + lookAlike + "A", "Fork" + lookAlike + lookAlike + "A", lookAlike, escape, escape + escape,
	escape + "d", escape + "e", escape + "s", escape + "z", escape + "sx", escape + "." + lookAlike, "a" + escape, "a" + escape + "d",
	"$", "$x", "$x.y", "$[", "$[]", "$[x]", "$set", "a.$", "a.$.b", "a.$[]", "$.", "$" + lookAlike, "a$b",
	" ", "a b", "\t\n\r", "@ttl", "%2E", "%", "%252E", `\`, `\u002e`, "~", "~0", "~1", "/", "0", "1", "-1", "_id", "timers", "__proto__",
	"ü", "u\u0308", "日本", "\U0001F600", "\uFFFD", "\u200b", "\u007f", "\x01", "null", "'\"`", strings.Repeat("long.", 200),
}

// armAll arms each path for its place in the list.
func armAll(paths []string) (ops []mongostore.TimerOp) {
	for i, path := range paths {
		ops = append(ops, arm(path, float64(1000+i)))
	}
	return ops
}

// requirePaths checks that the armed timers are these, each for its place.
func (b *bundle) requirePaths(t *testing.T, paths []string) []mongostore.Timer {
	t.Helper()
	timers := b.due(t, 1e6, len(paths)+10)
	require.Len(t, timers, len(paths))
	for i, tm := range timers {
		require.Equal(t, paths[i], tm.Path)
		require.Equal(t, at(float64(1000+i)), tm.FireAt)
	}
	return timers
}

var pathTests = tests{
	"BH-08_LookAlikesLiveApartAndComeBackAsGiven": func(t *testing.T, b *bundle) {
		typed := "Fork" + lookAlike + "A"
		o := b.create(t, "o-1", arms(arm("Fork.A", 100.5), arm(typed, 200.5)))
		require.Equal(t, []string{"o-1:Fork.A@100.5", "o-1:" + typed + "@200.5"}, names(b.due(t, 300, 0)))
		b.commit(t, o, arms(mongostore.TimerOp{Path: "Fork.A", Cancel: true}))
		require.Equal(t, []string{"o-1:" + typed + "@200.5"}, names(b.due(t, 300, 0)))
		size := len(b.doc(t, "o-1"))
		for n := range 50 {
			o = b.load(t, "o-1")
			path := b.due(t, 300, 0)[0].Path
			b.commit(t, o, arms(arm(path, 200.5)))
			require.Len(t, timersOf(t, b.doc(t, "o-1")), 1, "round %d", n)
		}
		require.Equal(t, []string{"o-1:" + typed + "@200.5"}, names(b.due(t, 300, 0)))
		require.Less(t, len(b.doc(t, "o-1")), size+300, "only the commit slots may have been added")
	},

	"BH-08_OddPathsAllLiveTogether": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", arms(armAll(oddPaths)...))
		for _, tm := range b.requirePaths(t, oddPaths) {
			require.NoError(t, b.store.DeleteTimer(t.Context(), tm))
		}
		require.Empty(t, timersOf(t, b.doc(t, "o-1")))
	},

	"BH-08_OddPathsAreArmedAgainAndCancelledByLaterCommits": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		var before []mongostore.TimerOp
		for _, path := range oddPaths {
			before = append(before, arm(path, 5))
		}
		b.commit(t, o, arms(before...))
		b.commit(t, o, arms(armAll(oddPaths)...))
		b.requirePaths(t, oddPaths)
		for i, path := range slices.Backward(oddPaths) {
			b.commit(t, o, arms(mongostore.TimerOp{Path: path, Cancel: true}))
			b.requirePaths(t, oddPaths[:i])
		}
	},

	"BH-08_OddPathsAreAckedAndArmedBesideNewEntries": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", mongostore.Changes{Emits: []mongostore.Emit{{Event: 1}}})
		pipeline := func(ch mongostore.Changes) { // acking and emitting makes the update a pipeline
			entries, err := b.store.PendingOutbox(t.Context(), 0)
			require.NoError(t, err)
			ch.Emits, ch.Acks = []mongostore.Emit{{Event: 1}}, append(ch.Acks, entries[0])
			b.commit(t, o, ch)
		}
		pipeline(arms(armAll(oddPaths)...))
		timers := b.requirePaths(t, oddPaths)
		half := len(oddPaths) / 2
		var acks mongostore.Changes
		for _, tm := range timers[half:] {
			acks.Acks = append(acks.Acks, tm)
		}
		pipeline(acks)
		b.requirePaths(t, oddPaths[:half])
		var cancels []mongostore.TimerOp
		for _, path := range oddPaths[:half] {
			cancels = append(cancels, mongostore.TimerOp{Path: path, Cancel: true})
		}
		pipeline(arms(cancels...))
		b.requirePaths(t, nil)
	},

	"BH-08_RandomPathsComeBackAsGiven": func(t *testing.T, b *bundle) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		alphabet := []string{".", lookAlike, escape, "%2E", "%", `\`, "~", "$", "a", "d", "e", "s", "z", "[", "]"}
		for round := range 5 {
			unique := map[string]bool{}
			var paths []string
			for len(paths) < 100 {
				var path strings.Builder
				for range rnd.IntN(7) {
					path.WriteString(alphabet[rnd.IntN(len(alphabet))])
				}
				if !unique[path.String()] {
					unique[path.String()] = true
					paths = append(paths, path.String())
				}
			}
			o := b.create(t, fmt.Sprint("o-", round), arms(armAll(paths)...))
			b.commit(t, o, arms(armAll(paths)...))
			for _, tm := range b.requirePaths(t, paths) {
				require.NoError(t, b.store.DeleteTimer(t.Context(), tm))
			}
		}
	},

	"BH-08_KeysOfHarelMeanWhatHarelMeans": func(t *testing.T, b *bundle) {
		keys := map[string]string{ // as harel writes them: only the dot is replaced
			"Fork" + lookAlike + "A": "Fork.A", "$x": "$x", "a" + lookAlike + lookAlike + "b": "a..b", "@ttl": "@ttl", escape + "q": escape + "q", "plain": "plain",
		}
		timers := d()
		want := map[string]bool{}
		for key, path := range keys {
			timers = append(timers, d(key, 100)...)
			want[path] = true
		}
		for _, id := range []string{"deleted", "cancelled", "armed"} {
			b.insert(t, d("_id", id, "version", 1, "data", `{"version":1}`, "timers", timers))
		}
		_, err := b.store.Adopt(t.Context())
		require.NoError(t, err)
		due := b.due(t, 200, 0)
		require.Len(t, due, 3*len(keys))
		var cancel, again []mongostore.TimerOp
		for _, tm := range due {
			require.True(t, want[tm.Path], tm.Path)
			switch tm.ExecutionID {
			case "deleted":
				require.NoError(t, b.store.DeleteTimer(t.Context(), tm))
			case "cancelled":
				cancel = append(cancel, mongostore.TimerOp{Path: tm.Path, Cancel: true})
			default:
				again = append(again, arm(tm.Path, 300))
			}
		}
		b.commit(t, b.load(t, "cancelled"), arms(cancel...))
		b.commit(t, b.load(t, "armed"), arms(again...))
		require.Empty(t, timersOf(t, b.doc(t, "deleted")))
		require.Empty(t, timersOf(t, b.doc(t, "cancelled")))
		require.Len(t, timersOf(t, b.doc(t, "armed")), len(keys), "one timer a path")
		require.Empty(t, b.due(t, 200, 0))
		require.Len(t, b.due(t, 300, 0), len(keys))
	},

	"ThatHoldNULOrAreNotUTF8AreRefused": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		for _, path := range []string{"a\x00b", "\x00", "a\xff", "\xed\xa0\x80"} {
			for _, op := range []mongostore.TimerOp{arm(path, 5), {Path: path, Cancel: true}} {
				_, err := b.store.Commit(t.Context(), o, arms(arm("good", 1), op))
				requireInvalid(t, err, "Changes.Timers[1].Path")
			}
		}
		require.Empty(t, timersOf(t, b.doc(t, "o-1")))
	},
}
