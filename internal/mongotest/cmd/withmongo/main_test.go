//go:build unix

package main

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
	"go.uber.org/goleak"

	"github.com/execstore/mongostore/internal/mongotest"
)

// wrapperEnv makes the test binary withmongo itself.
const wrapperEnv = "WITHMONGO_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(wrapperEnv) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// wrapper is withmongo with servers of its own, and with a folder for
// temporary files of its own.
func wrapper(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), wrapperEnv+"=1", "TMPDIR="+tmp, mongotest.EnvURI+"=", mongotest.EnvRSURI+"=")
	return cmd, tmp
}

// requireGone waits until the server does not listen any more and no file is
// left.
func requireGone(t *testing.T, uri, tmp string) {
	t.Helper()
	cs, err := connstring.Parse(uri)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", cs.Hosts[0], time.Second)
		if err == nil {
			_ = conn.Close()
			return false
		}
		left, err := os.ReadDir(tmp)
		return err == nil && len(left) == 0
	}, 20*time.Second, 10*time.Millisecond)
}

func TestTellsTheServersAndExitsAsTheCommandDoes(t *testing.T) {
	t.Parallel()
	cmd, tmp := wrapper(t, "--", "sh", "-c", `echo "$MONGOSTORE_TEST_URI $MONGOSTORE_TEST_RS_URI"; exit 7`)
	out, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode(), "%s", exit.Stderr)
	uris := strings.Fields(string(out))
	require.Len(t, uris, 2)
	require.NotEqual(t, uris[0], uris[1])
	requireGone(t, uris[0], tmp)
	requireGone(t, uris[1], tmp)
}

func TestStartsOneServerOnly(t *testing.T) {
	t.Parallel()
	cmd, _ := wrapper(t, "-only", "replicaset", "sh", "-c", `echo "$MONGOSTORE_TEST_URI,$MONGOSTORE_TEST_RS_URI"`)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(out, []byte(",mongodb://")), "%s", out)
}

func TestSignalsEndCommandAndServers(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			cmd, tmp := wrapper(t, "-only", "standalone", "sh", "-c", `echo "$MONGOSTORE_TEST_URI $$"; exec sleep 600`)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(stdout).ReadString('\n')
			require.NoError(t, err)
			uri, number, _ := strings.Cut(strings.TrimSpace(line), " ")
			pid, err := strconv.Atoi(number)
			require.NoError(t, err)

			require.NoError(t, cmd.Process.Signal(sig))
			_ = cmd.Wait() // an error: it was killed
			if sig != syscall.SIGKILL {
				require.Equal(t, 128+int(sig), cmd.ProcessState.ExitCode())
			}
			require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, 10*time.Second, 5*time.Millisecond)
			requireGone(t, uri, tmp)
		})
	}
}

func TestSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		env  []string
		code int
		says string
	}{
		"NoCommand":      {nil, nil, 2, "usage: withmongo"},
		"UnknownServer":  {[]string{"-only", "five", "true"}, nil, 2, "usage: withmongo"},
		"UnknownCommand": {[]string{"-only", "standalone", "no-such-command"}, nil, 127, "no-such-command"},
		"NoServer": {[]string{"true"}, []string{"PATH=", "HOME=" + t.TempDir(), "XDG_CACHE_HOME=", mongotest.EnvServer + "=path"}, 1,
			"no MongoDB server: install Docker"},
		"UnknownRung": {[]string{"true"}, []string{mongotest.EnvServer + "=cloud"}, 1, `"cloud" is none of uri, docker, path, wheel`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, _ := wrapper(t, tc.args...)
			cmd.Env = append(cmd.Env, tc.env...)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, tc.code, cmd.ProcessState.ExitCode(), "%s", out)
			require.Contains(t, string(out), tc.says)
		})
	}
}
