//go:build faults

package faulttest_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// register is an execution as the model sees it: the version, and the content that made
// it. Every commit writes a content of its own, so a content says all that was before.
type register struct {
	version int64
	content string
}

// question is what a client asked of one execution.
type question struct {
	what      string // load, seen or commit
	execution string
	content   string   // seen: the event asked for; commit: what it writes
	expects   register // commit: what its value was loaded or committed as
}

// answer is what it was told.
type answer struct {
	outcome string   // of a commit: landed, conflict or unknown
	found   register // by a load; by a conflict the version alone
	seen    bool
	vague   bool // the version that a conflict tells may be stale
}

const (
	toldLanded   = "landed"
	toldConflict = "conflict"
	toldUnknown  = "unknown"
)

// history is what many clients asked, when, and what they were told. An outcome that
// was never learnt is an open operation: it may take effect until the end.
type history struct {
	began time.Time

	mu      sync.Mutex
	ops     []porcupine.Operation
	parents map[string]string // content: the one that it was committed on
	refused map[string]bool   // contents whose commits were told not to have landed
	windows [][2]int64        // in which a set may answer with what was so before
	kills   [][2]int64        // when the only server was killed

	commits map[string]porcupine.Operation // by content, for check
}

func newHistory() *history {
	return &history{began: time.Now(), parents: map[string]string{}, refused: map[string]bool{}}
}

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// writes notes what a commit will write, and on what, before anybody can see it.
func (h *history) writes(content string, on register) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parents[content] = on.content
}

// changes opens a window of stale answers; the returned function closes it a while from
// then, when a new primary knows what is committed.
func (h *history) changes() (done func()) {
	const aWhile = 2 * time.Second
	from := h.now()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.windows = append(h.windows, [2]int64{from, h.now() + int64(aWhile)})
	}
}

// killing notes the time in which it kills the only server.
func (h *history) killing(kill func()) {
	from := h.now()
	kill()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kills = append(h.kills, [2]int64{from, h.now()})
}

// mayBeUnwritten is whether a load may have shown what the journal of a server did not
// have yet when it was killed: nobody had been told by then that the commit landed.
func (h *history) mayBeUnwritten(load porcupine.Operation) bool {
	commit, known := h.commits[load.Output.(answer).found.content]
	return known && slices.ContainsFunc(h.kills, func(k [2]int64) bool {
		return load.Call <= k[1] && commit.Call <= k[1] && k[0] < commit.Return
	})
}

func (h *history) refuses(content string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused[content] = true
}

// add notes an operation that was called at a time and has just returned.
func (h *history) add(client int, called int64, q question, a answer) {
	returned := h.now()
	if a.outcome == toldUnknown {
		returned = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.outcome == toldConflict {
		h.refused[q.content] = true
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: q, Output: a, Call: called, Return: returned})
}

// handled is whether the event is in the state: was its content committed before.
func (h *history) handled(event string, in register) bool {
	content := in.content
	for range in.version {
		if content == event {
			return true
		}
		content = h.parents[content]
	}
	return false
}

// mayBeStale is whether an operation touches a time in which the set changed its primary.
func (h *history) mayBeStale(op porcupine.Operation) bool {
	return slices.ContainsFunc(h.windows, func(w [2]int64) bool { return op.Call <= w[1] && op.Return >= w[0] })
}

// step is the sequential store: one compare-and-set register an execution.
func (h *history) step(state, input, output any) (bool, any) {
	s, q, a := state.(register), input.(question), output.(answer)
	switch {
	case q.what == "load":
		return a.found == s, s
	case q.what == "seen":
		return a.found == s && a.seen == h.handled(q.content, s), s
	case a.outcome == toldConflict:
		return s != q.expects && (a.vague || s.version == a.found.version), s
	}
	return s == q.expects, register{q.expects.version + 1, q.content}
}

func (h *history) model() porcupine.Model {
	return porcupine.Model{
		Partition: func(ops []porcupine.Operation) (parts [][]porcupine.Operation) {
			index := map[string]int{}
			for _, op := range ops {
				id := op.Input.(question).execution
				if _, known := index[id]; !known {
					index[id] = len(parts)
					parts = append(parts, nil)
				}
				parts[index[id]] = append(parts[index[id]], op)
			}
			return parts
		},
		Init: func() any { return register{} },
		Step: h.step,
		DescribeOperation: func(input, output any) string {
			q, a := input.(question), output.(answer)
			if q.what == "commit" {
				return fmt.Sprintf("commit of %s on %d %q: %s, %d", q.content, q.expects.version, q.expects.content, a.outcome, a.found.version)
			}
			return fmt.Sprintf("%s %s: %d %q %t", q.what, q.content, a.found.version, a.found.content, a.seen)
		},
	}
}

// settled leaves open operations in the history only if their contents are stored or
// were seen: one that left no trace may be thought of as never done.
func (h *history) settled(stored map[string][]string) (ops []porcupine.Operation, open int) {
	there := map[string]bool{}
	for _, contents := range stored {
		for _, content := range contents {
			there[content] = true
		}
	}
	for _, op := range h.ops {
		if op.Input.(question).what != "commit" && !h.mayBeUnwritten(op) {
			there[op.Output.(answer).found.content] = true
		}
	}
	for _, op := range h.ops {
		if op.Output.(answer).outcome == toldUnknown {
			open++
			if !there[op.Input.(question).content] {
				continue
			}
		}
		ops = append(ops, op)
	}
	return ops, open
}

// checked is a line of the report: a history, and what the checker made of it.
type checked struct {
	History    string `json:"history"` // the fault
	Topology   string `json:"topology"`
	Loads      int64  `json:"loads"`
	Commits    int64  `json:"commits"`
	Open       int64  `json:"open"`       // commits that were left with an unknown outcome
	Stale      int64  `json:"stale"`      // loads that showed less than was acknowledged before
	Unwritten  int64  `json:"unwritten"`  // loads that showed what was lost with a standalone's journal, acknowledged to nobody
	Violations int64  `json:"violations"` // executions whose history no order explains
}

// check looks for an order of the operations that explains all answers, one execution at
// a time. Loads that may be stale need no place in it, but what any load shows has to be
// stored in the end as that version.
func (h *history) check(t *testing.T, stored map[string][]string, c *checked) {
	t.Helper()
	h.commits = map[string]porcupine.Operation{}
	for _, op := range h.ops {
		if q := op.Input.(question); q.what == "commit" {
			h.commits[q.content] = op
		}
	}
	ops, open := h.settled(stored)
	c.Open = int64(open)
	var order []porcupine.Operation
	for _, op := range ops {
		q, a := op.Input.(question), op.Output.(answer)
		if q.what == "commit" {
			c.Commits++
			a.vague = h.mayBeStale(op) || len(h.kills) > 0
			op.Output = a
			order = append(order, op)
			continue
		}
		c.Loads++
		if a.seen && !slices.Contains(stored[q.execution], q.content) {
			c.Violations++
			t.Errorf("%s: %s was told to be handled, and is lost", q.execution, q.content)
		}
		unwritten := h.mayBeUnwritten(op)
		if !isStored(stored[q.execution], a.found) {
			if unwritten {
				c.Unwritten++
				continue
			}
			c.Violations++
			t.Errorf("%s: a load showed %+v, which is not what became of it", q.execution, a.found)
		}
		if !unwritten && !h.mayBeStale(op) {
			order = append(order, op)
		}
	}
	model := h.model()
	for _, part := range model.Partition(ops) {
		c.Stale += staleLoads(part)
	}
	for _, part := range model.Partition(order) {
		result, info := porcupine.CheckOperationsVerbose(model, part, patience)
		if result == porcupine.Ok {
			continue
		}
		if c.Violations++; c.Violations <= 3 {
			t.Errorf("%s: no order explains its history (%s): %s", part[0].Input.(question).execution, result, h.explain(model, part, info))
		}
	}
	t.Logf("history under %s, %s: %d loads, %d of them stale, %d of what was not written, %d commits, %d left open, in %d executions",
		c.History, c.Topology, c.Loads, c.Stale, c.Unwritten, c.Commits, c.Open, len(stored))
	if err := report(os.Getenv(envReport), c); err != nil {
		t.Errorf("the report: %v", err)
	}
}

// isStored is whether a register is a state that the execution had, in the end.
func isStored(contents []string, r register) bool {
	if r == (register{}) {
		return true
	}
	return r.version >= 1 && r.version <= int64(len(contents)) && contents[r.version-1] == r.content
}

// staleLoads counts the loads of one execution that showed less than somebody had been
// told before.
func staleLoads(ops []porcupine.Operation) (n int64) {
	for _, load := range ops {
		q, a := load.Input.(question), load.Output.(answer)
		if q.what == "commit" {
			continue
		}
		for _, op := range ops {
			of, told := op.Input.(question), op.Output.(answer)
			if told.outcome == toldLanded && op.Return < load.Call && of.expects.version+1 > a.found.version {
				n++
				break
			}
		}
	}
	return n
}

// explain shows where the longest order that works comes to an end.
func (h *history) explain(model porcupine.Model, part []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, orders := range info.PartialLinearizationsOperations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	placed := map[string]bool{}
	describe := func(op porcupine.Operation) string {
		return fmt.Sprintf("client %d, %d to %d ms: %s", op.ClientId, op.Call/1e6, op.Return/1e6, model.DescribeOperation(op.Input, op.Output))
	}
	key := func(op porcupine.Operation) string { return fmt.Sprint(op.ClientId, op.Call, op.Input) }
	text := fmt.Sprintf("%d of %d operations have a place, the last are", len(longest), len(part))
	for i, op := range longest {
		placed[key(op)] = true
		if i >= len(longest)-3 {
			text += "\n  " + describe(op)
		}
	}
	text += "\nand there is none for"
	left := 0
	for _, op := range part {
		if !placed[key(op)] && left < 5 {
			left++
			text += "\n  " + describe(op)
		}
	}
	return text
}
