package outbox_test

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/execstore/mongostore/outbox"
)

// The history is what the simulated processes saw, with times of one clock that only
// goes forward: each call has one from before it and one from after it.

// outcome is how a call ended, as far as its process knows.
type outcome int

const (
	unsettled    outcome = iota // not back yet, or nobody knows
	acknowledged                // acknowledged
	refused                     // certainly without effect
)

func (o outcome) String() string { return [...]string{"unsettled", "acknowledged", "refused"}[o] }

// heldClaim is a delivery that a Claim returned.
type heldClaim struct {
	process, id, handler, key, token string

	sequence         int64
	called, returned time.Duration // the Claim
	until            time.Duration
	given            time.Duration // when the first call began that may end it; 0: none has
	extended         []timeSpan
}

type timeSpan struct{ from, to time.Duration }

// finishing is a call that ends a claim, or tries to.
type finishing struct {
	id, token, what string
	began, ended    time.Duration
	outcome         outcome
}

func (f finishing) ends() bool {
	return f.outcome != refused && (f.what == "complete" || f.what == "bury")
}

type requeueing struct {
	id           string
	began, ended time.Duration
	outcome      outcome
}

// publication is one try to publish, from its transaction's begin to its end.
type publication struct {
	messages     []outbox.Message
	again        map[string]bool // ids that were published before
	began, ended time.Duration
	outcome      outcome
}

type propertyHistory struct {
	began time.Time

	mu           sync.Mutex
	holds        []*heldClaim
	finishings   []*finishing
	requeueings  []*requeueing
	publications []*publication
	lastClaim    time.Duration // the latest begin of a Claim that has returned
	violations   []string
	violated     func() // called at each
}

// now is the time of the history.
func (h *propertyHistory) now() time.Duration { return time.Since(h.began) }

// at is a time of the wall clock in that of the history.
func (h *propertyHistory) at(t time.Time) time.Duration { return t.Sub(h.began.Round(0)) }

func (h *propertyHistory) violate(format string, args ...any) {
	h.mu.Lock()
	h.violations = append(h.violations, fmt.Sprintf(format, args...))
	h.mu.Unlock()
	h.violated()
}

// claimed takes down what a Claim returned.
func (h *propertyHistory) claimed(process string, called time.Duration, ds []*outbox.Delivery) []*heldClaim {
	returned := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastClaim = max(h.lastClaim, called)
	holds := make([]*heldClaim, 0, len(ds))
	for _, d := range ds {
		holds = append(holds, &heldClaim{
			process: process, id: d.ID, handler: d.Handler, key: d.Message.Key, token: d.Token,
			sequence: d.Sequence, called: called, returned: returned, until: h.at(d.Until),
		})
	}
	h.holds = append(h.holds, holds...)
	return holds
}

func (h *propertyHistory) latestClaim() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastClaim
}

// finishes takes down that a call begins; what it returns, how it ended.
func (h *propertyHistory) finishes(what string, holds ...*heldClaim) func(outcome, ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	fs := make([]*finishing, 0, len(holds))
	for _, l := range holds {
		if l.given == 0 {
			l.given = now
		}
		fs = append(fs, &finishing{id: l.id, token: l.token, what: what, began: now})
	}
	h.finishings = append(h.finishings, fs...)
	return func(o outcome, lost ...string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, f := range fs {
			f.ended, f.outcome = h.now(), o
			if slices.Contains(lost, f.id) {
				f.outcome = refused
			}
		}
	}
}

func (h *propertyHistory) extended(l *heldClaim, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.extended = append(l.extended, timeSpan{h.now(), h.at(until)})
}

// requeuedSince is whether something of a claim's lane may have been put back near it.
func (h *propertyHistory) requeuedSince(l *heldClaim) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ofLane := make(map[string]bool)
	for _, other := range h.holds {
		ofLane[other.id] = other.lane() == l.lane()
	}
	return slices.ContainsFunc(h.requeueings, func(q *requeueing) bool {
		return ofLane[q.id] && (q.outcome == unsettled || q.outcome == acknowledged && q.ended > l.called-3*time.Second)
	})
}

// end is until when a claim holds.
func (h *propertyHistory) end(l *heldClaim) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := l.until
	for _, s := range l.extended {
		end = max(end, s.to)
	}
	return end
}

func (h *propertyHistory) requeues(id string) func(outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &requeueing{id: id, began: h.now()}
	h.requeueings = append(h.requeueings, r)
	return func(o outcome) {
		h.mu.Lock()
		defer h.mu.Unlock()
		r.ended, r.outcome = h.now(), o
	}
}

func (h *propertyHistory) publishes(msgs []outbox.Message, again map[string]bool) func(outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &publication{messages: msgs, again: again, began: h.now()}
	h.publications = append(h.publications, p)
	return func(o outcome) {
		h.mu.Lock()
		defer h.mu.Unlock()
		p.ended, p.outcome = h.now(), o
	}
}

// recent gives messages whose first publication began not long ago.
func (h *propertyHistory) recent(within time.Duration) (all []outbox.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range slices.Backward(h.publications) {
		if h.now()-p.began > within {
			return all
		}
		for _, m := range p.messages {
			if !p.again[m.ID] {
				all = append(all, m)
			}
		}
	}
	return all
}

// copied is the history as it is now.
func (h *propertyHistory) copied() record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return record{holds: copiesOf(h.holds), finishings: copiesOf(h.finishings), requeueings: copiesOf(h.requeueings), publications: copiesOf(h.publications)}
}

func copiesOf[T any](all []*T) []T {
	out := make([]T, 0, len(all))
	for _, p := range all {
		out = append(out, *p)
	}
	return out
}
