//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// moment is when, in the life of one command, ctx is cancelled.
type moment int

const (
	beforeSend moment = iota
	held              // by the network, which hands it on after the call has returned
	answered          // by the server, and the reply is lost
	afterReply        // is read
	silence           // from this command on the network swallows all, until the call returns
	moments
)

func (m moment) String() string {
	return [...]string{"before the send", "while it is held", "when it is answered", "after the reply", "and silence"}[m]
}

// returnsWithin is how long a call may go on after its ctx was cancelled: to ask for two
// seconds what became of a write, and a busy machine.
const returnsWithin = 3500 * time.Millisecond

// TestCancelledAtEachCommand cancels ctx at each command of each operation, at each
// moment.
func TestCancelledAtEachCommand(t *testing.T) {
	t.Parallel()
	var sweeps sync.WaitGroup // most of the time is waiting
	for _, topology := range topologies {
		cluster := mongotest.Start(t, topology.opts)
		swept := func(store string, lanes int, ops []operation) {
			r := &row{Fault: "ctx cancelled at each command", Topology: topology.name, Store: store}
			sweeps.Go(func() { sweep(t, cluster, r, lanes, ops) })
		}
		swept("executions", 8, executionOperations())
		if topology.opts.ReplicaSet {
			swept("outbox", 32, outboxOperations)
		}
	}
	sweeps.Wait()
}

// sweep tries all operations, several at a time.
func sweep(t *testing.T, cluster *mongotest.Cluster, r *row, n int, ops []operation) {
	t.Helper()
	todo := make(chan func(s *scene), len(ops)*int(moments))
	for m := moments - 1; m >= 0; m-- { // the slow ones first
		for _, op := range ops {
			todo <- func(s *scene) { (&cancelling{scene: s, op: op, row: r}).all(m) }
		}
	}
	close(todo)
	var lanes sync.WaitGroup
	for i := range n {
		lanes.Go(func() {
			s := newScene(t, cluster, fmt.Sprintf("%s_%d", r.Store, i))
			for do := range todo {
				do(s)
			}
			if r.Store == "outbox" && !s.eventually(15*time.Second, func() bool { return len(s.openTransactions()) == 0 }) {
				t.Errorf("%s: the server has not ended a transaction", s.name)
			}
		})
	}
	lanes.Wait()
	enter(t, r)
}

// cancelling is the sweep of one operation at one moment.
type cancelling struct {
	*scene
	op      operation
	row     *row
	success string // the state after one success
}

func (c *cancelling) all(m moment) {
	commands := c.reference()
	for i := range commands {
		c.one(i, m)
	}
}

// reference does the operation undisturbed, and counts its commands.
func (c *cancelling) reference() (commands int64) {
	do := c.fresh(c.op)
	before := c.proxy.Requests().Passed
	c.must(do(context.Background()))
	commands = int64(c.proxy.Requests().Passed - before)
	c.op.settle(c.scene)
	c.success = c.state(c.op)
	return commands
}

func (c *cancelling) errorf(i int64, m moment, format string, args ...any) {
	c.t.Errorf("%s, command %d, %s: %s", c.op.name, i, m, fmt.Sprintf(format, args...))
}

// one cancels at one command and moment, and calls again.
func (c *cancelling) one(i int64, m moment) {
	do := c.fresh(c.op)
	before := c.state(c.op)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var at atomic.Int64 // when ctx was cancelled
	strike := func() { at.CompareAndSwap(0, time.Now().UnixNano()); cancel() }
	landed := c.arm(i, m, strike)
	err := do(ctx)
	took := time.Since(time.Unix(0, at.Load()))
	landed()
	switch {
	case at.Load() == 0 && i > 0 && err == nil:
		return // a busy machine had needed more commands the time before
	case at.Load() == 0:
		c.errorf(i, m, "not reached: %v", err)
		return
	}
	atomic.AddInt64(&c.row.Injected, 1)
	if took > returnsWithin {
		c.errorf(i, m, "returned %s after the cancellation: %v", took.Round(time.Millisecond), err)
	}
	if !c.eventually(time.Second, func() bool { return c.far.NumberSessionsInProgress() == 0 }) {
		c.errorf(i, m, "%d sessions are left", c.far.NumberSessionsInProgress())
	}
	if len(c.op.collections) > 0 {
		c.transactions(i, m)
	}
	c.judge(i, m, err, before, do)
}

// transactions checks that none is left open that was not aborted. One whose first command
// comes to the server after its abort, by another connection, can only be ended by the
// server; and so can one from which the network has cut off the client.
func (c *cancelling) transactions(i int64, m moment) {
	none := func() bool {
		return !slices.ContainsFunc(c.openTransactions(), func(id string) bool { _, sent := c.aborted.Load(id); return !sent })
	}
	if c.eventually(time.Second, none) {
		return
	}
	if m != silence {
		c.errorf(i, m, "a transaction is left open")
	}
	for _, id := range c.openTransactions() {
		c.aborted.Store(id, true) // told
	}
}

func (s *scene) eventually(within time.Duration, done func() bool) bool {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return done()
}

// judge compares what was told with what is stored, and calls again after an error.
func (c *cancelling) judge(i int64, m moment, err error, before string, do call) {
	unknown := errors.Is(err, mongostore.ErrUnknownOutcome)
	switch {
	case err == nil:
		atomic.AddInt64(&c.row.Acknowledged, 1)
		c.op.settle(c.scene)
		if got := c.state(c.op); got != c.success {
			atomic.AddInt64(&c.row.Lost, 1)
			c.errorf(i, m, "told to have succeeded:\n%s", difference(got, c.success))
		}
		return
	case unknown:
		atomic.AddInt64(&c.row.Unknown, 1)
	case !errors.Is(err, context.Canceled):
		c.errorf(i, m, "is not told by the error: %v", err)
	case c.op.definite && !c.same(before):
		atomic.AddInt64(&c.row.Wrong, 1)
		c.errorf(i, m, "told to have failed by %v:\n%s", err, difference(c.state(c.op), before))
	}
	if unknown && c.op.once {
		atomic.AddInt64(&c.row.Resolved, 1)
		if got := c.state(c.op); got != c.success && got != before {
			atomic.AddInt64(&c.row.Doubled, 1)
			c.errorf(i, m, "neither there nor not:\n%s", difference(got, before))
		}
		return
	}
	again, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := do(again); err != nil {
		c.errorf(i, m, "again: %v", err)
		return
	}
	atomic.AddInt64(&c.row.Acknowledged, 1)
	if unknown {
		atomic.AddInt64(&c.row.Resolved, 1)
	}
	c.op.settle(c.scene)
	if got := c.state(c.op); got != c.success {
		atomic.AddInt64(&c.row.Doubled, 1)
		c.errorf(i, m, "after %v, and again:\n%s", err, difference(got, c.success))
	}
}

func (c *cancelling) same(before string) bool { return c.state(c.op) == before }

// arm lets strike happen at one command and moment. What it returns ends that, and waits
// until a command that was held has come to the server.
func (c *cancelling) arm(i int64, m moment, strike func()) (landed func()) {
	var n atomic.Int64
	hit := func() bool { return n.Add(1) == i+1 }
	release, arrived := make(chan struct{}), make(chan struct{})
	var late atomic.Pointer[mongotest.Message]
	count := func() {
		if hit() {
			strike()
		}
	}
	switch m {
	case beforeSend:
		c.started.Store(&count)
	case afterReply:
		c.ended.Store(&count)
	case answered:
		c.proxy.OnReply(func(*mongotest.Message) mongotest.Action {
			if hit() {
				strike()
				return mongotest.Drop
			}
			return mongotest.Pass
		})
	case held:
		c.proxy.OnRequest(func(msg *mongotest.Message) mongotest.Action {
			if hit() {
				late.Store(msg)
				strike()
				return mongotest.Hold(release)
			}
			return mongotest.Pass
		})
		c.proxy.OnReply(func(msg *mongotest.Message) mongotest.Action {
			if l := late.Load(); l != nil && l.Command == msg.Command && l.N == msg.N {
				close(arrived)
			}
			return mongotest.Pass
		})
	default:
		c.proxy.OnRequest(func(msg *mongotest.Message) mongotest.Action {
			switch now := n.Add(1); {
			case now == i+1:
				strike()
			case now <= i, msg.Command == "abortTransaction":
				return mongotest.Pass
			}
			return mongotest.Drop
		})
	}
	return func() {
		close(release)
		if m == held && late.Load() != nil {
			select {
			case <-arrived:
			case <-time.After(time.Second):
			}
		}
		c.proxy.OnRequest(nil)
		c.proxy.OnReply(nil)
		c.started.Store(nil)
		c.ended.Store(nil)
	}
}

// difference shows the lines that only one of two states has.
func difference(got, want string) string {
	var out []string
	only := func(a, b, mark string) {
		there := map[string]bool{}
		for _, line := range strings.Split(b, "\n") {
			there[line] = true
		}
		for _, line := range strings.Split(a, "\n") {
			if !there[line] {
				out = append(out, mark+line)
			}
		}
	}
	only(got, want, "got  ")
	only(want, got, "want ")
	return strings.Join(out, "\n")
}
