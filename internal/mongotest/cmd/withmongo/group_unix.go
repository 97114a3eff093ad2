//go:build unix

package main

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/execstore/mongostore/internal/mongod"
)

var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// group is the command with all that it starts. It is a process group of its
// own, so that a Ctrl-C reaches each of them once, through withmongo.
type group struct {
	pid     int
	release func() // takes back that it dies with withmongo
}

// gate holds the command back until its end with withmongo is seen to.
const gate = `read -r _ <&3 || exit; exec "$@" 3<&-`

func startGroup(cmd *exec.Cmd) (*group, error) {
	cmd.Args = append([]string{"/bin/sh", "-c", gate, "withmongo"}, cmd.Args...)
	cmd.Path = "/bin/sh"
	cmd.Err = nil // a command that is not there: the shell says so
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	held, open, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = held.Close(), open.Close() }()
	cmd.ExtraFiles = []*os.File{held}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	g := &group{pid: cmd.Process.Pid}
	g.release, err = mongod.OnDeath("/bin/sh", "-c", `kill -s KILL -- "-$1"`, "sh", strconv.Itoa(g.pid))
	if err != nil {
		_ = open.Close() // the command ends without having begun
		_ = cmd.Wait()
		return nil, err
	}
	_, err = open.WriteString("go\n")
	return g, err
}

func (g *group) signal(sig os.Signal) {
	_ = syscall.Kill(-g.pid, sig.(syscall.Signal)) // gone already: nothing to tell
}

func signalCode(sig os.Signal) int { return 128 + int(sig.(syscall.Signal)) }

// statusCode is the exit code, written as a shell does for a signal.
func statusCode(exit *exec.ExitError) int {
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalCode(status.Signal())
	}
	return exit.ExitCode()
}
