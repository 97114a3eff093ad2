//go:build !unix

package mongod

import (
	"errors"
	"os/exec"
)

// Supported says whether this system can run a supervised mongod.
const Supported = false

var errUnsupported = errors.New("mongod processes are run on unix systems only")

func detach(*exec.Cmd) {}

func kill(int) error   { return errUnsupported }
func pause(int) error  { return errUnsupported }
func resume(int) error { return errUnsupported }
