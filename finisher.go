package mongostore

import (
	"context"
	"sync"

	"github.com/execstore/mongostore/internal/runner"
)

// finisher hands over many leases in one command.
type finisher struct {
	runner.Combiner[finishing]
	store *Store

	mu   sync.Mutex
	slow int // leases to go before the classic update is tried again
}

type finishing struct {
	lease    *Lease
	handover handover
	done     func(err error)
}

const (
	finishBatch = 100 // leases in one command
	slowFor     = 200 // leases by pipeline after a classic update that missed
)

func (f *finisher) init(s *Store) { f.store, f.Send, f.Most = s, f.send, finishBatch }

// finish hands l over, and calls done with the error, a *LeaseLostError too.
func (f *finisher) finish(l *Lease, h handover, done func(err error)) {
	f.mu.Lock()
	if h.quick = h.quick && f.slow == 0; f.slow > 0 {
		f.slow--
	}
	f.mu.Unlock()
	f.Add(finishing{l, h, done})
}

func (f *finisher) send(batch []finishing) {
	leases, hs := make([]*Lease, 0, len(batch)), make([]handover, 0, len(batch))
	for _, one := range batch {
		leases, hs = append(leases, one.lease), append(hs, one.handover)
	}
	lost, err := f.store.handOver(context.Background(), leases, hs, f.store.now())
	gone := make(map[*Lease]bool, len(lost))
	for _, l := range lost {
		gone[l] = true
	}
	missed := false
	for i, one := range batch {
		missed = missed || one.handover.quick && !hs[i].quick
		switch {
		case gone[one.lease]:
			one.done(&LeaseLostError{IDs: []string{one.lease.ExecutionID}})
		default:
			one.done(err)
		}
	}
	if missed {
		f.mu.Lock()
		f.slow = slowFor
		f.mu.Unlock()
	}
}
