//go:build !unix

package main

import (
	"os"
	"os/exec"
)

var stopSignals = []os.Signal{os.Interrupt}

type group struct{ release func() }

func startGroup(cmd *exec.Cmd) (*group, error) {
	return &group{release: func() {}}, cmd.Start()
}

// signal does nothing: the console tells the command of a Ctrl-C too.
func (g *group) signal(os.Signal) {}

func signalCode(os.Signal) int { return 1 }

func statusCode(exit *exec.ExitError) int { return exit.ExitCode() }
