package main

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

// uriVariable hands the connection string to the workers: arguments are for all to
// read, and it may hold a password.
const uriVariable = "SHOP_URI"

// fleet is the processes of the shop: this program again, one a slot.
type fleet struct {
	cfg    config
	slots  []*process
	broken chan error // a worker that ended without being told to

	mu       sync.Mutex
	finished Counts         // of those that are gone
	last     map[int]Counts // by pid
}

type process struct {
	cmd   *exec.Cmd
	stdin io.Closer     // closing it ends the worker
	told  chan struct{} // closed when the worker is meant to end
	done  chan struct{} // closed when it has
}

func newFleet(cfg config) *fleet {
	return &fleet{
		cfg:    cfg,
		slots:  make([]*process, cfg.workers),
		broken: make(chan error, 1),
		last:   map[int]Counts{},
	}
}

func (f *fleet) startAll() error {
	for slot := range f.slots {
		if err := f.start(slot); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) start(slot int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, append(f.cfg.args(), "-worker", strconv.Itoa(slot))...)
	cmd.Env = append(os.Environ(), uriVariable+"="+f.cfg.uri)
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

// follow reads a worker's reports until it ends.
func (f *fleet) follow(slot int, p *process, reports io.Reader) {
	defer close(p.done)
	pid := p.cmd.Process.Pid
	for in := json.NewDecoder(reports); ; {
		var c Counts
		if in.Decode(&c) != nil {
			break // the end, or cut off in the middle by a kill
		}
		f.mu.Lock()
		f.last[pid] = c
		f.mu.Unlock()
	}
	err := p.cmd.Wait()
	f.mu.Lock()
	f.finished.add(f.last[pid])
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

// kill ends a worker with SIGKILL, wherever it is, and starts another in its slot.
func (f *fleet) kill(slot int) (pid int, err error) {
	p := f.slots[slot]
	f.slots[slot] = nil
	close(p.told)
	if err := p.cmd.Process.Kill(); err != nil {
		return 0, fmt.Errorf("kill process %d: %w", slot, err) // it had ended by itself
	}
	<-p.done
	return p.cmd.Process.Pid, f.start(slot)
}

// stop ends all workers and waits until they are gone.
func (f *fleet) stop() {
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

// counts sums up what all workers have reported.
func (f *fleet) counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.finished
	for _, c := range f.last {
		sum.add(c)
	}
	return sum
}
