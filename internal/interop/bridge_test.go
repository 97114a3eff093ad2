package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/mongotest"
)

// contracts are harel's for foreign stores, as contracts.py names them.
var contracts = []string{
	"protocol", "listing", "outbox", "purge", "ids_with_prefix",
	"async protocol", "async listing", "async outbox", "async purge",
}

// TestBridge uses mongostore as a store of harel's, through the bridge command.
func TestBridge(t *testing.T) {
	python := needsPython(t)
	bridge := filepath.Join(t.TempDir(), "bridge")
	build := append([]string{"build", "-o", bridge}, append(raceFlag, "./bridge")...)
	out, err := exec.Command("go", build...).CombinedOutput()
	require.NoError(t, err, string(out))

	for naming, prefix := range prefixes {
		t.Run("contracts "+naming, func(t *testing.T) {
			t.Parallel()
			server := mongotest.Standalone(t)
			_, database := server.Database(t)
			requireContracts(t, runPython(t, python, "contracts.py", bridge, "-uri", server.URI(), "-database", database, "-prefix", prefix))
		})
	}
	t.Run("engine", func(t *testing.T) {
		t.Parallel()
		server := mongotest.Standalone(t)
		_, theirs := server.Database(t)
		_, ours := server.Database(t)
		requireParity(t, runPython(t, python, "parity.py", server.URI(), theirs, bridge, "-uri", server.URI(), "-database", ours))
	})
}

func requireContracts(t *testing.T, out []byte) {
	var failures map[string]*string
	require.NoError(t, json.Unmarshal(out, &failures), string(out))
	require.Len(t, failures, len(contracts))
	for _, name := range contracts {
		t.Run(name, func(t *testing.T) {
			failure, ran := failures[name]
			require.True(t, ran, "did not run")
			if failure != nil {
				t.Error(*failure)
			}
		})
	}
}

// requireParity: harel's engine went over every kind of execution on its own store
// and on mongostore, and found both to hold the same to the last digit.
func requireParity(t *testing.T, out []byte) {
	var ended struct {
		Executions int
		Expired    []string
	}
	require.NoError(t, json.Unmarshal(out, &ended))
	require.Equal(t, len(written)+len([]string{"fork-held:Both.A:0", "fork-held:Both.B:0", "caller-held:Run:0"}), ended.Executions)
	require.Equal(t, []string{"session-armed", "session-expired"}, ended.Expired, "a ttl runs out through the bridge")
}

// runPython gives what the program prints.
func runPython(t *testing.T, python, program string, arguments ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := pythonCommand(ctx, python, program, arguments...)
	cmd.WaitDelay = time.Second // its bridge holds the pipes until it ends too
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, stderr.String())
	}
	return stdout.Bytes()
}
