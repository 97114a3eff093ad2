package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Some rows need processes of their own: this program runs itself again, with the
// role in the environment, and the two talk in lines.

const (
	envChild     = "MONGOSTORE_BENCH_CHILD"
	envChildTask = "MONGOSTORE_BENCH_TASK"
)

// task is what a child works on.
type task struct {
	URI, Topology, Database, ID string
}

func (t task) target() (*target, error) { return newTarget(t.Topology, t.URI) }

func runChild(ctx context.Context, role string) error {
	var work task
	if err := json.Unmarshal([]byte(os.Getenv(envChildTask)), &work); err != nil {
		return err
	}
	switch role {
	case "hop":
		return hopChild(ctx, work, os.Stdin, os.Stdout)
	case "drain":
		return drainChild(ctx, work, os.Stdout)
	}
	return fmt.Errorf("no role %q", role)
}

// child is a running process of this program.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(ctx context.Context, role string, work task) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(work)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), envChild+"="+role, envChildTask+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{cmd: cmd, in: in, out: bufio.NewReader(out)}, cmd.Start()
}

// ask sends a line and reads one back.
func (c *child) ask(line string) (string, error) {
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		return "", err
	}
	return c.line()
}

func (c *child) line() (string, error) {
	answer, err := c.out.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// end closes the child's input, which ends it, and waits.
func (c *child) end() error {
	_ = c.in.Close() // it may have ended by itself
	return c.cmd.Wait()
}
