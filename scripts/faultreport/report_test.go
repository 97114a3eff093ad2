package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const runs = `{"fault":"kill","topology":"standalone","store":"executions","injected":20,"acknowledged":1500,"unknown":3,"resolved":3}

{"fault":"kill","topology":"standalone","store":"executions","injected":20,"acknowledged":1000,"unknown":1,"resolved":1,"lost":1}
{"fault":"kill","topology":"replica set of one","store":"outbox","injected":1,"acknowledged":7}
{"history":"kill","topology":"standalone","loads":10,"commits":20,"open":1}
{"mutant":"w:1","test":"TestA","caught":true,"seconds":2}
{"mutant":"w:1","test":"TestA","caught":true,"seconds":12.34}
`

func TestRowsOfOneFaultAreAddedUp(t *testing.T) {
	t.Parallel()
	s := newSums()
	require.NoError(t, s.read(strings.NewReader(runs)))
	table := s.faultTable()
	require.Contains(t, table, "| executions | kill | standalone | 40 | 2,500 | 4 | 4 | 1 | 0 | 0 | 0 |\n")
	require.Contains(t, table, "| all |  |  | 41 | 2,507 | 4 | 4 | 1 | 0 | 0 | 0 |\n")
	require.Contains(t, table, "| store | fault |")
	require.Contains(t, s.historyTable(), "| kill | standalone | 10 | 0 | 0 | 20 | 1 | 0 |\n")
	require.Contains(t, s.mutantTable(), "| w:1 | `TestA` | 12.3 |\n")
	require.Contains(t, strings.ReplaceAll(s.summary(), "\n", " "), "Under 41 faults of 1 kinds, 2,507 operations were acknowledged: 1 lost")
}

func TestAMutantThatWasMissedOnceIsMissed(t *testing.T) {
	t.Parallel()
	s := newSums()
	require.NoError(t, s.read(strings.NewReader(`{"mutant":"w:1","test":"TestA","seconds":60}`+"\n"+runs)))
	require.Contains(t, s.mutantTable(), "| w:1 | **nothing** | 60.0 |\n")
	require.Contains(t, strings.ReplaceAll(s.summary(), "\n", " "), "Of 1 rules that were broken on purpose the suite caught 0")
}

func TestRewritesWhatIsBetweenMarkers(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	reports, page, readme := filepath.Join(folder, "faults.jsonl"), filepath.Join(folder, "page.md"), filepath.Join(folder, "README.md")
	require.NoError(t, os.WriteFile(reports, []byte(runs), 0o600))
	pageText := "before\n"
	for _, name := range []string{"faults", "histories", "mutants"} {
		pageText += "<!-- " + name + ":begin -->\nSTALE\n<!-- " + name + ":end -->\nbetween\n"
	}
	require.NoError(t, os.WriteFile(page, []byte(pageText), 0o600))
	require.NoError(t, os.WriteFile(readme, []byte("nothing"), 0o600))
	require.ErrorContains(t, run([]string{reports}, page, readme), "no markers for reliability")
	require.NoError(t, os.WriteFile(readme, []byte("a\n<!-- reliability:begin -->\n<!-- reliability:end -->\nb\n"), 0o600))
	require.NoError(t, run([]string{reports}, page, readme))
	require.NoError(t, run([]string{reports}, page, readme), "a second time changes nothing")

	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(text), "between\n"))
	require.NotContains(t, string(text), "STALE")
	text, err = os.ReadFile(readme)
	require.NoError(t, err)
	require.Regexp(t, `(?s)^a\n<!-- reliability:begin -->\nUnder 41 .*\n<!-- reliability:end -->\nb\n$`, string(text))
}

func TestRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, newSums().read(strings.NewReader("\n{}\n")), "line 2")
	require.ErrorContains(t, newSums().read(strings.NewReader("no json\n")), "line 1")
}
