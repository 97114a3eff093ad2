//go:build unix

package mongod

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Supported says whether this system can run a supervised mongod.
const Supported = true

func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

func kill(pid int) error   { return syscall.Kill(pid, syscall.SIGKILL) }
func resume(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) }

// pause returns when all threads have stopped: the signal alone leaves them a
// moment, enough for one more command.
func pause(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stopped, err := isStopped(pid)
		if stopped || err != nil {
			return err
		}
	}
	return errors.New("it does not stop")
}

// isStopped asks /proc about each thread or, where there is none, ps about the
// process.
func isStopped(pid int) (bool, error) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			continue // the thread has ended meanwhile
		}
		state := stat[bytes.LastIndexByte(stat, ')')+1:] // the name before it may hold anything
		if !bytes.HasPrefix(state, []byte(" T")) {
			return false, nil
		}
	}
	if threads != nil {
		return true, nil
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return bytes.HasPrefix(bytes.TrimSpace(out), []byte("T")), err
}
