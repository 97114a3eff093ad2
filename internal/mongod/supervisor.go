package mongod

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed supervisor.sh
var supervisorScript string

// supervisorShell is the shell that runs supervisor.sh. It needs no goroutine
// here: a mongod that is kept until the process ends leaves none behind.
type supervisorShell struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *os.File
	unread string // what it said and nobody asked for yet
}

// kept holds the pipes to the shells that wait for this process to die. One
// that nobody refers to would be closed by the garbage collector, and that
// reads as death.
var kept sync.Map

// start starts the shell, which makes the folder dir and will run command.
func (s *supervisorShell) start(dir string, command []string) error {
	s.cmd = exec.Command("/bin/sh", append([]string{"-c", supervisorScript, "mongostore-mongod", dir}, command...)...)
	detach(s.cmd) // a Ctrl-C is for the owner; the end of the pipe tells the rest
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the shell has its own
	s.cmd.Stdout = out
	if err := s.cmd.Start(); err != nil {
		_ = stdout.Close()
		return err
	}
	s.stdin, s.stdout = stdin, stdout
	kept.Store(stdin, nil)
	return nil
}

// spawn has the command run and returns its pid.
func (s *supervisorShell) spawn() (int, error) {
	if _, err := io.WriteString(s.stdin, "start\n"); err != nil {
		return 0, err
	}
	line, err := s.next(10 * time.Second)
	if err != nil {
		return 0, err
	}
	pid, found := strings.CutPrefix(line, "up ")
	if !found {
		return 0, fmt.Errorf("it said %q", line)
	}
	return strconv.Atoi(pid)
}

// exited says whether the command has ended, or ends within the wait.
func (s *supervisorShell) exited(wait time.Duration) bool {
	line, err := s.next(max(wait, time.Millisecond)) // a deadline that is past reads nothing
	if err != nil {
		return errors.Is(err, io.EOF) // the shell itself has ended
	}
	return strings.HasPrefix(line, "exit ")
}

// next returns the next line that the shell says within the wait.
func (s *supervisorShell) next(wait time.Duration) (string, error) {
	if err := s.stdout.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	for {
		line, rest, found := strings.Cut(s.unread, "\n")
		if found {
			s.unread = rest
			return line, nil
		}
		n, err := s.stdout.Read(buf)
		s.unread += string(buf[:n])
		if err != nil {
			return "", err
		}
	}
}

// end has the shell clean up and returns when it has.
func (s *supervisorShell) end() {
	kept.Delete(s.stdin)
	_ = s.stdin.Close()
	_ = s.cmd.Wait()
	_ = s.stdout.Close()
}
