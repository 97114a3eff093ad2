//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestEveryOperationWhileRepliesAreLost does all operations of both stores, chosen at
// random, while about every fifth message is lost, cut, late or doubled; each is repeated
// until it succeeds, and has to leave exactly what one success leaves.
func TestEveryOperationWhileRepliesAreLost(t *testing.T) {
	t.Parallel()
	from := seed(t)
	clusters := make([]*mongotest.Cluster, 0, len(topologies))
	for _, topology := range topologies {
		clusters = append(clusters, mongotest.Start(t, topology.opts))
	}
	ctx, stop := context.WithTimeout(t.Context(), duration(t))
	defer stop()
	var lanes sync.WaitGroup
	var rows []*row
	var scenes [][]*scene
	for k, topology := range topologies {
		cluster := clusters[k]
		storms := func(store string, ops []operation) {
			r := &row{Fault: "every operation: replies and requests lost, cut, late, twice", Topology: topology.name, Store: store}
			var mine []*scene
			for i := range 8 {
				s := newScene(t, cluster, fmt.Sprintf("%s_%d", store, i), options.Client().SetRetryWrites(i%2 == 0).SetRetryReads(i%4 < 2))
				mine = append(mine, s)
				rnd := rand.New(rand.NewPCG(from, uint64(len(rows)*100+i)))
				lanes.Go(func() {
					successes := map[string]string{}
					for first := true; first || ctx.Err() == nil && !t.Failed(); first = false {
						(&storm{scene: s, op: ops[rnd.IntN(len(ops))], row: r, rnd: rnd, successes: successes}).run()
					}
				})
			}
			rows, scenes = append(rows, r), append(scenes, mine)
		}
		storms("executions", executionOperations())
		if topology.opts.ReplicaSet {
			storms("outbox", outboxOperations)
		}
	}
	lanes.Wait()
	for i, r := range rows {
		for _, s := range scenes[i] {
			r.Injected += struck(s.proxy)
		}
		enter(t, r)
	}
}

// storm is one operation under faults.
type storm struct {
	*scene
	op  operation
	row *row

	successes map[string]string // states, by operation

	mu  sync.Mutex
	rnd *rand.Rand
	out map[string]bool // commands that are on their way, whatever became of their clients
}

func (s *storm) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

// blow lets the network do what it likes.
func (s *storm) blow() {
	s.out = map[string]bool{}
	name := func(m *mongotest.Message) string { return fmt.Sprintf("%s %d", m.Command, m.N) }
	late := func(m *mongotest.Message, action mongotest.Action) mongotest.Action {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.out[name(m)] = true
		return action
	}
	s.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
		switch n := s.roll(1000); {
		case n < 40:
			return mongotest.Cut
		case n < 80:
			release := make(chan struct{})
			time.AfterFunc(time.Duration(s.roll(300))*time.Millisecond, func() { close(release) })
			return late(m, mongotest.Strand(release))
		case n < 90:
			return mongotest.Drop
		case n < 120:
			return late(m, mongotest.Delay(time.Duration(s.roll(50))*time.Millisecond))
		case n < 170 && !inTransaction(m) && !s.op.plain:
			return mongotest.Twice
		}
		return mongotest.Pass
	})
	s.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
		s.mu.Lock()
		delete(s.out, name(m))
		s.mu.Unlock()
		switch n := s.roll(1000); {
		case n < 80:
			return mongotest.Cut
		case n < 90:
			return mongotest.Drop
		case n < 120:
			return mongotest.Delay(time.Duration(s.roll(50)) * time.Millisecond)
		}
		return mongotest.Pass
	})
}

// landed waits until nothing is on its way any more.
func (s *storm) landed() {
	s.eventually(time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.out) == 0
	})
}

func (s *storm) errorf(format string, args ...any) {
	s.t.Errorf("%s: %s", s.op.name, fmt.Sprintf(format, args...))
}

// success is the state that one undisturbed call leaves.
func (s *storm) success() string {
	if state, there := s.successes[s.op.name]; there {
		return state
	}
	s.must(s.fresh(s.op)(context.Background()))
	s.op.settle(s.scene)
	s.successes[s.op.name] = s.state(s.op)
	return s.successes[s.op.name]
}

// run does the operation until it has succeeded, and compares.
func (s *storm) run() {
	success := s.success()
	do := s.fresh(s.op)
	before := s.state(s.op)
	s.blow()
	defer func() { s.proxy.OnRequest(nil); s.proxy.OnReply(nil) }()
	var told []error
	unknown := false
	for try := 0; ; try++ {
		if try == 8 {
			s.proxy.OnRequest(nil)
			s.proxy.OnReply(nil)
			s.landed()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if try >= 8 {
			ctx, cancel = context.WithTimeout(context.Background(), 30*time.Second)
		}
		err := do(ctx)
		cancel()
		if err == nil {
			break
		}
		told = append(told, err)
		switch {
		case errors.Is(err, mongostore.ErrUnknownOutcome):
			if !unknown {
				atomic.AddInt64(&s.row.Unknown, 1)
			}
			unknown = true
		case s.op.definite && !unknown:
			s.landed()
			if got := s.state(s.op); got != before {
				atomic.AddInt64(&s.row.Wrong, 1)
				s.errorf("told to have failed by %v:\n%s", err, difference(got, before))
				return
			}
		}
		if unknown && s.op.once {
			break
		}
		if try > 8 {
			s.errorf("does not succeed: %v", errors.Join(told...))
			return
		}
	}
	atomic.AddInt64(&s.row.Acknowledged, 1)
	if unknown {
		atomic.AddInt64(&s.row.Resolved, 1)
	}
	s.landed()
	s.op.settle(s.scene)
	got := s.state(s.op)
	if got == success || unknown && s.op.once && got == before {
		return
	}
	if len(told) == 0 {
		atomic.AddInt64(&s.row.Lost, 1)
	} else {
		atomic.AddInt64(&s.row.Doubled, 1)
	}
	s.errorf("after %v:\n%s", errors.Join(told...), difference(got, success))
}
