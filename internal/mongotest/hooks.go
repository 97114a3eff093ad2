package mongotest

import (
	"slices"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Message is a command on its way to the server, or the reply to one, as a
// [Proxy] shows it to its hooks.
type Message struct {
	Command string   // name of the command; for a reply, of the one it answers
	N       int      // the how manieth of that name through this proxy; first is 1
	Conn    int      // number of the client's connection; first is 1
	Request bson.Raw // the command
	Reply   bson.Raw // the reply; nil in a request hook
}

// Hook decides what becomes of a message. It is called on the connection's own
// goroutine, for several connections at once.
type Hook func(m *Message) Action

// Action is what a [Proxy] does with a message.
type Action struct {
	kind    actionKind
	delay   time.Duration
	release <-chan struct{}
}

type actionKind int

const (
	passed actionKind = iota
	cut
	dropped
	delayed
	held
	stranded
	doubled
)

// Pass hands the message on. It is the zero Action.
var Pass = Action{}

// Cut closes the connection on both sides and does not hand the message on. Cut
// on a reply: the write has landed and the client sees EOF at once. Cut on a
// request: the server never sees it.
var Cut = Action{kind: cut}

// Drop swallows the message and leaves the connection open.
var Drop = Action{kind: dropped}

// Delay hands the message on after d.
func Delay(d time.Duration) Action { return Action{kind: delayed, delay: d} }

// Hold hands the message on when release is closed. A request is handed on
// even if its client has given up meanwhile.
func Hold(release <-chan struct{}) Action { return Action{kind: held, release: release} }

// Strand closes the client's side at once, and hands a request on when release
// is closed: a write that lands after its client has lost the connection. On a
// reply it is Cut.
func Strand(release <-chan struct{}) Action { return Action{kind: stranded, release: release} }

// Twice on a request: the server gets it twice, and the client the answer to the second
// one only, as when what was sent again arrives beside the first. On a reply: it is
// handed on twice. The driver does not compare what a reply answers, and takes the second
// copy for the answer to its next command on the connection.
var Twice = Action{kind: doubled}

// Always applies action to every one of the commands; none named: to all.
func Always(action Action, commands ...string) Hook {
	return EveryNth(1, action, commands...)
}

// EveryNth applies action to every n-th message of the commands, counted
// together from the moment of this call; none named: of all commands.
func EveryNth(n int64, action Action, commands ...string) Hook {
	var seen atomic.Int64
	return func(m *Message) Action {
		if len(commands) > 0 && !slices.Contains(commands, m.Command) {
			return Pass
		}
		if seen.Add(1)%n != 0 {
			return Pass
		}
		return action
	}
}

// Once applies action to the next message of the commands only; none named: to
// the next of all.
func Once(action Action, commands ...string) Hook {
	var done atomic.Bool
	return func(m *Message) Action {
		if len(commands) > 0 && !slices.Contains(commands, m.Command) {
			return Pass
		}
		if done.Swap(true) {
			return Pass
		}
		return action
	}
}

// Counts says how often a [Proxy] applied each action to the messages that its
// hooks saw.
type Counts struct {
	Passed, Cut, Dropped, Delayed, Held, Stranded, Doubled int
}

func (c *Counts) add(kind actionKind) {
	switch kind {
	case passed:
		c.Passed++
	case cut:
		c.Cut++
	case dropped:
		c.Dropped++
	case delayed:
		c.Delayed++
	case held:
		c.Held++
	case stranded:
		c.Stranded++
	case doubled:
		c.Doubled++
	}
}
