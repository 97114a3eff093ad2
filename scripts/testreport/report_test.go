package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const stream = `mongostore: not an event
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestLeftOut","Output":"=== RUN TestLeftOut\n"}
{"Action":"output","Package":"p","Test":"TestLeftOut","Output":"    a_test.go:1: no server\n"}
{"Action":"skip","Package":"p","Test":"TestLeftOut"}
`

func read(t *testing.T, text string) (*report, string) {
	t.Helper()
	var out bytes.Buffer
	r := newReport(&out)
	require.NoError(t, r.read(strings.NewReader(text)))
	r.print()
	return r, out.String()
}

func TestShowsResultsSkipsAndTotals(t *testing.T) {
	t.Parallel()
	r, out := read(t, stream+`{"Action":"pass","Package":"p","Elapsed":1.25}`+"\n")
	require.Equal(t, "mongostore: not an event\nok  \tp\t1.2s\n"+
		"skipped: p TestLeftOut: a_test.go:1: no server\n1 passed, 0 failed, 1 skipped\n", out)
	require.NoError(t, r.verdict(map[string]bool{"TestLeftOut": true}))
	require.NoError(t, r.verdict(nil))
	require.ErrorContains(t, r.verdict(map[string]bool{"TestOther": true}), "not named as one that may be: p TestLeftOut")
}

func TestShowsWhatFailed(t *testing.T) {
	t.Parallel()
	r, out := read(t, `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"why\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"output","Package":"p","Test":"TestCutOff","Output":"panic: oh\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t1.0s\n"}
{"Action":"fail","Package":"p"}
`)
	require.Contains(t, out, "why\n")
	require.Contains(t, out, "panic: oh\n")
	require.Contains(t, out, "FAIL\tp\t")
	err := r.verdict(nil)
	require.ErrorContains(t, err, "failed: p TestBad")
	require.ErrorContains(t, err, "no test ran")
}

func TestTellsOfABuildThatFailed(t *testing.T) {
	t.Parallel()
	r, out := read(t, `{"ImportPath":"p","Action":"build-output","Output":"p.go:1: undefined: x\n"}
{"ImportPath":"p","Action":"build-fail"}
`)
	require.Contains(t, out, "undefined: x\n")
	require.ErrorContains(t, r.verdict(nil), "failed: build of p")
}

func TestAPackageThatNeverEndsIsAFailure(t *testing.T) {
	t.Parallel()
	r, _ := read(t, stream)
	require.ErrorContains(t, r.verdict(map[string]bool{"TestLeftOut": true}), "no end: p")
}

func TestReadsNames(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "names")
	require.NoError(t, os.WriteFile(file, []byte("# why\nTestA\n  TestB/C # more\n\n"), 0o600))
	names, err := readNames(file)
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"TestA": true, "TestB/C": true}, names)
}
