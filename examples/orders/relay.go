package main

import (
	"context"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/execstore/mongostore"
)

// Relay does the work that executions owe: it creates the children that they asked
// for, delivers their events and fires their timers. A delivery is committed first
// and acked after, so a worker that is killed in between leaves the entry, and the
// next one delivers it again; the entry's id makes that a no-op.
//
// Workers divide the work by a hash of the execution that owes it: slot i of n.
// Entries of one execution thus stay in one worker and in order, and a worker that
// died is replaced by one with its slot. Leases, which are planned, will do
// away with the slots: any worker may then take any execution, and takes over what
// a dead one held.
type Relay struct {
	Engine *Engine
	Ledger *Ledger
	Slot   int
	Slots  int
	Log    *slog.Logger
}

const (
	sweepLimit = 400 // entries of all slots in one look
	atOnce     = 8   // executions that a worker serves side by side
)

// Pass sweeps each kind of work once and reports how much it did. Children go
// first: they must exist before the events for them.
func (r *Relay) Pass(ctx context.Context) (int, error) {
	children, err := r.spawns(ctx)
	if err != nil {
		return 0, err
	}
	events, err := r.outbox(ctx)
	if err != nil {
		return 0, err
	}
	timers, err := r.timers(ctx)
	return children + events + timers, err
}

func (r *Relay) spawns(ctx context.Context) (int, error) {
	entries, err := ours(r, func(limit int) ([]mongostore.SpawnEntry, error) {
		return r.Engine.Store.PendingSpawns(ctx, limit)
	})
	if err != nil {
		return 0, err
	}
	handled := deliver(ctx, r, entries, r.Engine.CreateChild)
	return len(handled), r.Engine.Store.AckSpawn(ctx, handled...)
}

func (r *Relay) outbox(ctx context.Context) (int, error) {
	entries, err := ours(r, func(limit int) ([]mongostore.OutboxEntry, error) {
		return r.Engine.Store.PendingOutbox(ctx, limit)
	})
	if err != nil {
		return 0, err
	}
	handled := deliver(ctx, r, entries, r.event)
	return len(handled), r.Engine.Store.AckOutbox(ctx, handled...)
}

func (r *Relay) event(ctx context.Context, e mongostore.OutboxEntry) (first bool, err error) {
	ev, err := decodeEvent(e)
	if err != nil {
		return false, err
	}
	if e.TargetID == "" {
		return r.Ledger.Book(ctx, e.EntryID(), ev)
	}
	return r.Engine.Deliver(ctx, e.TargetID, e.EntryID(), ev)
}

func (r *Relay) timers(ctx context.Context) (int, error) {
	due, err := ours(r, func(limit int) ([]mongostore.Timer, error) {
		return r.Engine.Store.DueTimers(ctx, time.Now(), limit)
	})
	if err != nil {
		return 0, err
	}
	return len(deliver(ctx, r, due, r.fire)), nil
}

func (r *Relay) fire(ctx context.Context, t mongostore.Timer) (first bool, err error) {
	first, err = r.Engine.Deliver(ctx, t.ExecutionID, t.EntryID(), Event{Name: timeout(t.Path)})
	if err != nil {
		return false, err
	}
	return first, r.Engine.Store.DeleteTimer(ctx, t)
}

// owner is the execution that owes the work.
func owner(e mongostore.Entry) string {
	switch e := e.(type) {
	case mongostore.OutboxEntry:
		return e.ExecutionID
	case mongostore.SpawnEntry:
		return e.ParentID
	case mongostore.Timer:
		return e.ExecutionID
	}
	return ""
}

func (r *Relay) isOurs(e mongostore.Entry) bool {
	h := fnv.New32a()
	h.Write([]byte(owner(e)))
	return int(h.Sum32()%uint32(r.Slots)) == r.Slot
}

// ours keeps the entries of this slot. Where other slots fill all of the window,
// because their worker is down, it looks further.
func ours[E mongostore.Entry](r *Relay, sweep func(limit int) ([]E, error)) ([]E, error) {
	for limit := sweepLimit; ; limit *= 4 {
		all, err := sweep(limit)
		var mine []E
		for _, e := range all {
			if r.isOurs(e) {
				mine = append(mine, e)
			}
		}
		if err != nil || len(mine) > 0 || len(all) < limit {
			return mine, err
		}
	}
}

// deliver does each entry, those of one execution in order and executions side by
// side, and returns the ones that may be acked. A failed one holds back the rest of
// its execution until the next pass.
func deliver[E mongostore.Entry](ctx context.Context, r *Relay, entries []E, do func(context.Context, E) (first bool, err error)) []E {
	queues := make(map[string][]E)
	for _, e := range entries {
		queues[owner(e)] = append(queues[owner(e)], e)
	}
	var (
		handled []E
		mu      sync.Mutex
		wg      sync.WaitGroup
		free    = make(chan struct{}, atOnce)
	)
	for _, queue := range queues {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			for _, e := range queue {
				first, err := do(ctx, e)
				if err != nil {
					r.failed(ctx, e, err)
					return
				}
				r.Engine.Stats.delivered(first)
				mu.Lock()
				handled = append(handled, e)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return handled
}

func (r *Relay) failed(ctx context.Context, e mongostore.Entry, err error) {
	if ctx.Err() != nil {
		return // the worker is being stopped
	}
	r.Engine.Stats.Failures.Add(1)
	r.Log.Warn("delivery failed, it will be tried again", "entry", e.EntryID(), "error", err)
}
