//go:build unix

package mongod

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Most of this package is tested through mongotest, which puts a mongod into
// the cache where there is none. Here is what becomes of mongod when its owner
// dies, shown with a stand-in for it: a sleep.

// ownerEnv makes the test binary an owner: it starts a stand-in,
// says the folder and the pid, leaves word to touch the file that the variable
// names, and waits to be killed.
const ownerEnv = "MONGOD_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		own()
	}
	goleak.VerifyTestMain(m)
}

// standIn starts a supervised sleep instead of a mongod.
func standIn() (*Process, error) {
	p := newProcess(0)
	if err := p.shell.start(p.dir, []string{"sleep", "600"}); err != nil {
		return nil, err
	}
	return p, p.spawn()
}

func own() {
	p, err := standIn()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if _, err := OnDeath("touch", os.Getenv(ownerEnv)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.dir, p.pid)
	select {}
}

func TestNothingOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			mark := filepath.Join(t.TempDir(), "mark")
			owner := exec.Command(os.Args[0])
			owner.Env = append(os.Environ(), ownerEnv+"="+mark)
			out, err := owner.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, owner.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			var dir string
			var pid int
			_, err = fmt.Sscan(line, &dir, &pid)
			require.NoError(t, err, line)
			require.True(t, alive(pid))
			require.DirExists(t, dir)
			require.NoFileExists(t, mark)

			require.NoError(t, owner.Process.Signal(signal))
			require.Error(t, owner.Wait())
			require.Eventually(t, func() bool {
				_, noDir := os.Stat(dir)
				_, noMark := os.Stat(mark)
				return !alive(pid) && errors.Is(noDir, os.ErrNotExist) && noMark == nil
			}, 10*time.Second, 5*time.Millisecond)
		})
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	p, err := standIn()
	require.NoError(t, err)
	pid := p.pid
	require.DirExists(t, p.dir)
	p.Stop()
	require.False(t, alive(pid))
	require.NoDirExists(t, p.dir)
	p.Stop()
}

func TestAProcessThatNobodyRefersToGoesOn(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "mark")
	pid := func() int {
		p, err := standIn()
		require.NoError(t, err)
		_, err = OnDeath("touch", mark)
		require.NoError(t, err)
		return p.pid
	}()
	for range 3 {
		runtime.GC()
		time.Sleep(20 * time.Millisecond) // what must not happen has no signal
	}
	require.True(t, alive(pid))
	require.NoFileExists(t, mark)
}

func TestKillAndSpawnAgain(t *testing.T) {
	t.Parallel()
	p, err := standIn()
	require.NoError(t, err)
	defer p.Stop()
	first := p.pid
	require.NoError(t, p.Kill())
	require.False(t, alive(first))
	require.DirExists(t, p.dir, "the data stays")
	require.Error(t, p.Pause(), "nothing runs")
	require.NoError(t, p.spawn())
	require.NotEqual(t, first, p.pid)
	require.NoError(t, p.Pause())
	p.Stop() // a paused process too
	require.False(t, alive(first))
}

func TestStartSaysWhyMongodEnded(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "mongod")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho 'no such option'; exit 2\n"), 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := Start(ctx, Config{Binary: script})
	require.ErrorContains(t, err, "no such option")
	require.ErrorContains(t, err, script)
}

func TestFindPrefersPathThenTheNewestInTheCache(t *testing.T) {
	fake := func(dir string) string {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		path := filepath.Join(dir, "mongod")
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
		return path
	}
	home, path := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("PATH", path)
	_, err := Find()
	require.ErrorIs(t, err, ErrNotFound)

	cache, err := CacheFolder()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(cache, home))
	fake(strings.Replace(cache, WheelVersion, "5.0.1", 1))
	newest := fake(cache)
	found, err := Find()
	require.NoError(t, err)
	require.Equal(t, newest, found)

	installed := fake(path)
	found, err = Find()
	require.NoError(t, err)
	require.Equal(t, installed, found)
}

func TestOnDeathIsTakenBack(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "mark")
	release, err := OnDeath("touch", mark)
	require.NoError(t, err)
	release()
	require.NoFileExists(t, mark)
}

func TestDatabaseName(t *testing.T) {
	t.Parallel()
	long := DatabaseName(t.Name() + "/" + strings.Repeat("Ünder the $ixty.three ", 9))
	require.Regexp(t, "^t_[a-z0-9_]{48}_[0-9a-f]{12}$", long)
	require.NotEqual(t, DatabaseName("TestA"), DatabaseName("TestA"))
}
