package stage

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// uriVariable hands the connection string to the processes: arguments are for all to
// read, and it may hold a password.
const uriVariable = "MONGOSTORE_EXAMPLE_URI"

// Counts are what a process did, as it reports it. A killed one's last moments are not
// in them.
type Counts[C any] interface{ Plus(C) C }

// Fleet is the processes of a run: this program again, one a slot.
type Fleet[C Counts[C]] struct {
	uri    string
	args   []string
	slots  []*process
	broken chan error // a process that ended without being told to

	mu       sync.Mutex
	finished C         // of those that are gone
	last     map[int]C // by pid
}

type process struct {
	cmd   *exec.Cmd
	stdin io.Closer     // closing it ends the process
	told  chan struct{} // closed when the process is meant to end
	done  chan struct{} // closed when it has
}

// NewFleet is n processes with these arguments, and each with its slot as -worker.
func NewFleet[C Counts[C]](n int, uri string, args ...string) *Fleet[C] {
	return &Fleet[C]{uri: uri, args: args, slots: make([]*process, n), broken: make(chan error, 1), last: map[int]C{}}
}

// Start starts all of them.
func (f *Fleet[C]) Start() error {
	for slot := range f.slots {
		if err := f.start(slot); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet[C]) start(slot int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, append(f.args[:len(f.args):len(f.args)], "-worker", strconv.Itoa(slot))...)
	cmd.Env = append(os.Environ(), uriVariable+"="+f.uri)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start process %d: %w", slot, err)
	}
	p := &process{cmd: cmd, stdin: stdin, told: make(chan struct{}), done: make(chan struct{})}
	f.slots[slot] = p
	go f.follow(slot, p, stdout)
	return nil
}

// follow reads a process's reports until it ends.
func (f *Fleet[C]) follow(slot int, p *process, reports io.Reader) {
	defer close(p.done)
	pid := p.cmd.Process.Pid
	for in := json.NewDecoder(reports); ; {
		var c C
		if in.Decode(&c) != nil {
			break // the end, or cut off in the middle by a kill
		}
		f.mu.Lock()
		f.last[pid] = c
		f.mu.Unlock()
	}
	err := p.cmd.Wait()
	f.mu.Lock()
	f.finished = f.finished.Plus(f.last[pid])
	delete(f.last, pid)
	f.mu.Unlock()
	select {
	case <-p.told:
	default:
		select {
		case f.broken <- fmt.Errorf("process %d (pid %d) ended by itself: %w", slot, pid, err):
		default: // one is enough to report
		}
	}
}

// Broken tells of a process that ended by itself.
func (f *Fleet[C]) Broken() <-chan error { return f.broken }

// Kill ends a process with SIGKILL, wherever it is, and starts another in its slot.
func (f *Fleet[C]) Kill(slot int) (pid int, err error) {
	p := f.slots[slot]
	f.slots[slot] = nil
	close(p.told)
	if err := p.cmd.Process.Kill(); err != nil {
		return 0, fmt.Errorf("kill process %d: %w", slot, err) // it had ended by itself
	}
	<-p.done
	return p.cmd.Process.Pid, f.start(slot)
}

// Pid is that of the process in a slot.
func (f *Fleet[C]) Pid(slot int) int { return f.slots[slot].cmd.Process.Pid }

// Stop ends all processes and waits until they are gone.
func (f *Fleet[C]) Stop() {
	for _, p := range f.slots {
		if p != nil {
			close(p.told)
			_ = p.stdin.Close()
		}
	}
	late := time.After(5 * time.Second)
	for _, p := range f.slots {
		if p == nil {
			continue
		}
		select {
		case <-p.done:
		case <-late:
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	f.slots = nil
}

// Counts sums up what all processes have reported.
func (f *Fleet[C]) Counts() C {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.finished
	for _, c := range f.last {
		sum = sum.Plus(c)
	}
	return sum
}
