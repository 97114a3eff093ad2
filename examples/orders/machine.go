package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/execstore/mongostore"
)

// The statuses. DONE and CANCELLED are among the store's finished ones.
const (
	active    = "ACTIVE"
	done      = "DONE"
	cancelled = "CANCELLED"
)

// Machine is an execution that knows its own transitions.
type Machine interface {
	mongostore.Execution
	// Handle applies s.Event and reports whether the machine had a transition for
	// it where it stands. It changes nothing but the machine and the Step, so it may
	// run again on a conflict, and it does not guard against an event that comes
	// twice: the engine does that.
	Handle(s *Step) bool
}

// The three machines; the word before an id's first colon tells which one it is.
var machines = map[string]func() Machine{
	"order":   func() Machine { return new(Order) },
	"account": func() Machine { return new(Account) },
	"parcel":  func() Machine { return new(Parcel) },
}

func kindOf(id string) string {
	kind, _, _ := strings.Cut(id, ":")
	return kind
}

func newMachine(id string) (Machine, error) {
	make, ok := machines[kindOf(id)]
	if !ok {
		return nil, fmt.Errorf("no machine for execution %q", id)
	}
	return make(), nil
}

// transitions is what a machine of type M does, by the node where it stands and the
// name of the event.
type transitions[M mongostore.Execution] map[string]map[string]func(M, *Step)

func (t transitions[M]) apply(m M, s *Step) bool {
	act, ok := t[m.ExecutionHeader().ActivePath][s.Event.Name]
	if ok {
		act(m, s)
	}
	return ok
}

// Event is what executions send each other. Start events and timers are events too.
type Event struct {
	Name   string        `json:"name"`
	Order  string        `json:"order,omitempty"` // the order that it is about
	From   string        `json:"from,omitempty"`
	Amount int64         `json:"amount,omitempty"` // cents
	Payer  string        `json:"payer,omitempty"`
	Region string        `json:"region,omitempty"`
	Takes  time.Duration `json:"takes,omitempty"`
	Plan   *Plan         `json:"plan,omitempty"`
}

// timeout is the name of the event that the timer of path becomes.
func timeout(path string) string { return "timeout " + path }

// Step is one event being applied: what the machine sees, and what it may do. All
// of it ends up in one commit.
type Step struct {
	Event Event
	Now   time.Time

	header  *mongostore.Header
	changes *mongostore.Changes
	did     []string // for the timeline
}

// Go moves the machine to node.
func (s *Step) Go(node string) {
	s.header.Status, s.header.ActivePath = active, node
}

// Finish ends the machine.
func (s *Step) Finish(status, outcome string) {
	s.header.Status, s.header.Outcome, s.header.ActivePath = status, outcome, ""
	s.note("%s: %s", status, outcome)
}

// Send emits ev for another execution.
func (s *Step) Send(to string, ev Event) {
	ev.From = s.header.ID
	s.changes.Emits = append(s.changes.Emits, mongostore.Emit{TargetID: to, Event: ev})
	s.note("sends %s to %s", ev.Name, to)
}

// Post emits ev for the world outside: no target. The relay books it in the ledger.
func (s *Step) Post(ev Event) {
	ev.From = s.header.ID
	s.changes.Emits = append(s.changes.Emits, mongostore.Emit{Event: ev})
	s.note("posts %s of %s", ev.Name, money(ev.Amount))
}

// Spawn asks for a child that begins with first, at root.
func (s *Step) Spawn(child, root string, first Event) {
	s.changes.Spawns = append(s.changes.Spawns, mongostore.Spawn{ChildID: child, RootPath: root, Input: first})
	s.note("spawns %s", child)
}

// Wake arms the timer of path.
func (s *Step) Wake(path string, after time.Duration) {
	s.changes.Timers = append(s.changes.Timers, mongostore.TimerOp{Path: path, FireAt: s.Now.Add(after)})
	s.note("wakes %s in %v", path, after)
}

// Forget cancels the timer of path.
func (s *Step) Forget(path string) {
	s.changes.Timers = append(s.changes.Timers, mongostore.TimerOp{Path: path, Cancel: true})
}

func (s *Step) note(format string, args ...any) {
	s.did = append(s.did, fmt.Sprintf(format, args...))
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
