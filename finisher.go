package mongostore

import (
	"context"
	"sync"
)

// finisher hands over many leases in one command: what is finished while a command is
// on its way goes into the next one, and nobody waits for it.
type finisher struct {
	store *Store

	mu      sync.Mutex
	waiting []finishing
	flying  bool
	slow    int // leases to go before the classic update is tried again
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

// finish hands l over, and calls done with the error, a *LeaseLostError too.
func (f *finisher) finish(l *Lease, h handover, done func(err error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.quick = h.quick && f.slow == 0; f.slow > 0 {
		f.slow--
	}
	f.waiting = append(f.waiting, finishing{l, h, done})
	if !f.flying {
		f.flying = true
		go f.fly()
	}
}

// fly sends until nobody waits.
func (f *finisher) fly() {
	for batch := f.take(); len(batch) > 0; batch = f.take() {
		f.send(batch)
	}
}

func (f *finisher) take() []finishing {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(f.waiting), finishBatch)
	batch := f.waiting[:n:n]
	f.waiting = f.waiting[n:]
	f.flying = n > 0
	return batch
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
