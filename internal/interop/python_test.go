package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// envWithout names parts of the tests to leave out, separated by commas.
const envWithout = "MONGOSTORE_TEST_WITHOUT"

const partName = "interop"

// needsPython gives the python of the environment that has harel, and makes it
// first. It skips the test if it is left out by name, and fails it if there is no
// Python to be had.
func needsPython(t *testing.T) string {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(envWithout), ","), partName) {
		t.Skipf("%s=%s leaves out %s: harel and mongostore are not run against each other", envWithout, os.Getenv(envWithout), partName)
	}
	python, err := environment()
	if err != nil {
		t.Fatalf("the interop tests need harel: %v", err)
	}
	return python
}

var environment = sync.OnceValues(func() (string, error) {
	installer, err := exec.LookPath("python3")
	if err != nil {
		return "", fmt.Errorf("install python3, 3.11 or newer, with venv and pip (on Debian: apt-get install python3-venv), or set %s=%s to leave these tests out", envWithout, partName)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(installer, filepath.Join("..", "..", "scripts", "interop-venv"), filepath.Join(cache, "mongostore"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(&stderr, progress{})
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("scripts/interop-venv: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
})

// progress shows what the installer says while it works.
type progress struct{}

func (progress) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("mongostore: ")) {
		return os.Stderr.Write(p)
	}
	return len(p), nil
}

// pythonCommand runs one of this folder's programs, leaving no compiled files behind.
func pythonCommand(ctx context.Context, python, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, python, append([]string{"-B", filepath.Join("python", program)}, args...)...)
}

// harelProcess answers by JSON lines, for one database at a time. It ends with the
// test that started it, and with this process.
type harelProcess struct {
	mu      sync.Mutex
	in      io.WriteCloser
	replies *json.Decoder
	kill    func()
}

// patience is how long one request or program may take before it counts as hung.
const patience = 2 * time.Minute

func startHarel(t *testing.T, python, uri, naming, twin string) *harelProcess {
	t.Helper()
	// not the test's context, which ends before its cleanup
	cmd := pythonCommand(context.Background(), python, "harel_side.py", uri, naming, twin)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var log bytes.Buffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close() // it ends with its stdin
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		err := cmd.Wait()
		if t.Failed() || err != nil {
			t.Errorf("harel ended with %v and said:\n%s", err, log.String())
		}
	})
	return &harelProcess{in: in, replies: json.NewDecoder(bufio.NewReader(out)), kill: func() { _ = cmd.Process.Kill() }}
}

// harelSide is harel on one test's database.
type harelSide struct {
	process  *harelProcess
	database string
	t        *testing.T
}

// remoteError is an exception on harel's side.
type remoteError struct {
	Type, Message   string
	Expected, Found *int64
}

func (e *remoteError) Error() string { return e.Type + ": " + e.Message }

// try sends one request. An exception of the operation is a *remoteError.
func (h *harelSide) try(op string, args, result any) error {
	line, err := json.Marshal(map[string]any{"database": h.database, "op": op, "args": args})
	if err != nil {
		return err
	}
	var reply struct {
		Result json.RawMessage
		Error  *remoteError
	}
	if err := h.process.ask(line, &reply); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if reply.Error != nil {
		return reply.Error
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(reply.Result, result)
}

func (p *harelProcess) ask(line []byte, reply any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	hung := time.AfterFunc(patience, p.kill)
	defer hung.Stop()
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return err
	}
	return p.replies.Decode(reply)
}

// call is try that fails the test.
func (h *harelSide) call(op string, args, result any) {
	h.t.Helper()
	require.NoError(h.t, h.try(op, args, result), op)
}

// damageLog keeps what the store could not read.
type damageLog struct {
	mu  sync.Mutex
	all []string
}

func (d *damageLog) add(e *mongostore.DamagedError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, e.Error())
}

func (d *damageLog) requireNone(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Empty(t, d.all)
}
