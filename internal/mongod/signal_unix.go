//go:build unix

package mongod

import (
	"os/exec"
	"syscall"
)

// Supported says whether this system can run a supervised mongod.
const Supported = true

func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

func kill(pid int) error   { return syscall.Kill(pid, syscall.SIGKILL) }
func pause(pid int) error  { return syscall.Kill(pid, syscall.SIGSTOP) }
func resume(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) }
