//go:build faults

package faulttest_test

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/execstore/mongostore"
)

// leaseHistory is what relays were told about leases, for the rules of the model:
//
//   - one holder at a time: a lease that was claimed is nobody else's until it ends;
//   - fenced: once somebody else holds it, an earlier holder is told that it lost it;
//   - a completion that was acknowledged stays: its entries are never claimed again;
//   - in order: the first time that entries are claimed is in the order of their numbers.
type leaseHistory struct {
	mu     sync.Mutex
	holds  []*hold
	events map[string][]int64 // numbers of acknowledged emits, by execution
	row    *row
}

// hold is one lease as its claimer knew it.
type hold struct {
	*mongostore.Lease
	claimed, got time.Time // call and return of the claim
	until        []promise // by the claim, then by extensions
	ending       time.Time // call of what ended it; zero: nothing did
	ended        time.Time // its return
	completed    bool      // acknowledged
}

// promise is an end of a lease that was acknowledged at a time.
type promise struct{ told, until time.Time }

func (h *hold) seqs() (all []int64) {
	for _, e := range h.Outbox {
		all = append(all, e.Seq)
	}
	return all
}

// heldAt is whether the lease was surely held from its claim until at.
func (h *hold) heldAt(at time.Time) bool {
	if !h.ending.IsZero() && !h.ending.After(at) {
		return false
	}
	for _, p := range h.until {
		if !p.told.After(at) && p.until.After(at) {
			return true
		}
	}
	return h.got.After(at) && h.until[0].until.After(at) // told later, but not to be ended by then
}

func (l *leaseHistory) claims(claimed time.Time, leases []*mongostore.Lease) (holds []*hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, lease := range leases {
		h := &hold{Lease: lease, claimed: claimed, got: now, until: []promise{{now, lease.Until}}}
		holds = append(holds, h)
		l.holds = append(l.holds, h)
	}
	return holds
}

func (l *leaseHistory) emitted(execution string, seqs []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events[execution] = append(l.events[execution], seqs...)
	l.row.Acknowledged++
}

// change notes something about h.
func (l *leaseHistory) change(note func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	note()
}

// violations holds the history to the rules.
func (l *leaseHistory) violations() (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	by := map[string][]*hold{}
	for _, h := range l.holds {
		by[h.ExecutionID] = append(by[h.ExecutionID], h)
	}
	violate := func(count *int64, format string, args ...any) {
		*count++
		found = append(found, fmt.Sprintf(format, args...))
	}
	for id, holds := range by {
		slices.SortStableFunc(holds, func(a, b *hold) int { return a.got.Compare(b.got) })
		highest, seen := int64(0), map[int64]bool{}
		done := map[int64]time.Time{} // when the completion was acknowledged
		for i, h := range holds {
			for _, seq := range h.seqs() {
				if at, ok := done[seq]; ok && at.Before(h.claimed) {
					violate(&l.row.Lost, "%s: %d was claimed %s after its completion had been acknowledged", id, seq, h.claimed.Sub(at))
				}
				if !seen[seq] && seq < highest {
					violate(&l.row.Reordered, "%s: %d was claimed for the first time after %d", id, seq, highest)
				}
				seen[seq], highest = true, max(seq, highest)
				if h.completed && (done[seq].IsZero() || h.ended.Before(done[seq])) {
					done[seq] = h.ended
				}
			}
			for _, other := range holds[i+1:] {
				if h.heldAt(other.got) && other.heldAt(h.got) {
					violate(&l.row.Doubled, "%s: claimed at %s and %s, while both leases last", id, h.got, other.got)
				}
				if h.completed && other.claimed.After(h.got) && h.ending.After(other.got) && other.heldAt(h.ended) {
					violate(&l.row.Wrong, "%s: its lease was completed by a holder that had lost it", id)
				}
			}
		}
		for _, seq := range l.events[id] {
			if !seen[seq] {
				violate(&l.row.Lost, "%s: %d was never claimed", id, seq)
			}
		}
	}
	return found
}
