package docs_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	testName   = regexp.MustCompile("`((?:Test|Fuzz|Example)[A-Za-z0-9_]*)`")
	suiteName  = regexp.MustCompile("`((?:TestInterop|[A-Z][A-Za-z]*)/[A-Za-z0-9_-]+)`")
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)[A-Za-z0-9_]*)\(`)
	topicOf    = regexp.MustCompile(`"([A-Za-z]+)":\s+(exercise[A-Za-z]+)`)
	topicTests = regexp.MustCompile(`(?m)^func (exercise[A-Za-z]+)\(`)
)

func TestSeedMapNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	there := testsInTheTree(t)
	page := read(t, "docs/seed-map.md")
	named := append(testName.FindAllStringSubmatch(page, -1), suiteName.FindAllStringSubmatch(page, -1)...)
	require.Greater(t, len(named), 50, "the search finds what is there")
	for _, m := range named {
		require.True(t, there[m[1]], "docs/seed-map.md names %s", m[1])
	}
}

// testsInTheTree are the names of all test functions, and those of the tests in the
// tables of the contract suite and of TestInterop, as Topic/Name.
func testsInTheTree(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		rel, err := filepath.Rel(root, path)
		for _, m := range testFunc.FindAllStringSubmatch(read(t, rel), -1) {
			names[m[1]] = true
		}
		return err
	}))
	addTable(t, names, "TestInterop", read(t, "internal/interop/main_test.go"))
	addSuite(t, names)
	addTables(t, names, "outbox")
	return names
}

var tableTest = regexp.MustCompile(`(?m)^func Test([A-Za-z]+)\(t \*testing\.T\)\s+\{ run\(t, `)

// addTables adds the tests of a folder that stand in the table of a topic's file.
func addTables(t *testing.T, names map[string]bool, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		rel, err := filepath.Rel(root, file)
		require.NoError(t, err)
		text := read(t, rel)
		for _, m := range tableTest.FindAllStringSubmatch(text, -1) {
			addTable(t, names, m[1], text)
		}
	}
}

// addSuite finds each topic's file by its exercise function.
func addSuite(t *testing.T, names map[string]bool) {
	t.Helper()
	files := map[string]string{} // exercise function: text of its file
	found, err := filepath.Glob(filepath.Join(root, "internal/storetest/*.go"))
	require.NoError(t, err)
	for _, file := range found {
		rel, err := filepath.Rel(root, file)
		require.NoError(t, err)
		text := read(t, rel)
		for _, m := range topicTests.FindAllStringSubmatch(text, -1) {
			files[m[1]] = text
		}
	}
	for _, m := range topicOf.FindAllStringSubmatch(read(t, "internal/storetest/storetest.go"), -1) {
		addTable(t, names, m[1], files[m[2]])
	}
}

var tableEntry = regexp.MustCompile(`(?m)^\s+"([A-Za-z0-9_-]+)":\s`)

func addTable(t *testing.T, names map[string]bool, topic, text string) {
	t.Helper()
	entries := tableEntry.FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, entries, topic)
	for _, m := range entries {
		names[topic+"/"+m[1]] = true
	}
}
