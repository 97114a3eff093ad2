// Package docs_test holds the written word to the code: links lead somewhere, make
// targets and tests that are named exist, and the README's program does what the
// README says, in an empty module of its own.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/mongotest"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

const root = ".."

// pages are all Markdown files of the project, by their path from its root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "bench/*.md", "examples/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, file := range files {
			name, err := filepath.Rel(root, file)
			require.NoError(t, err)
			found[name] = read(t, name)
		}
	}
	require.Contains(t, found, "README.md")
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(text)
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for name, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := name
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
			}
			_, err := os.Stat(filepath.Join(root, file))
			require.NoError(t, err, "%s links to %s", name, m[1])
			if anchor != "" {
				require.Contains(t, anchors(read(t, file)), anchor, "%s links to %s", name, m[1])
			}
		}
	}
}

var heading = regexp.MustCompile(`(?m)^#+ (.*)$`)

// anchors are the names that a page's headings can be linked by.
func anchors(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

var (
	madeTarget = regexp.MustCompile("(?m)(?:`|^)(?:[A-Z_]+=\\S+ )*make ([a-z/-]+)")
	makeTarget = regexp.MustCompile(`(?m)^([a-z/-]+):`)
)

func TestMakeTargetsExist(t *testing.T) {
	t.Parallel()
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	named := 0
	texts := pages(t)
	texts[".ci/run"] = read(t, ".ci/run")
	for name, text := range texts {
		for _, m := range madeTarget.FindAllStringSubmatch(text, -1) {
			require.True(t, targets[m[1]], "%s says make %s", name, m[1])
			named++
		}
	}
	require.Greater(t, named, 5, "the search finds what is there")
}
