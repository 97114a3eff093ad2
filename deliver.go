package mongostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/execstore/mongostore/internal/runner"
)

// How a relay works one lease: entry by entry, head of line.

// Permanent marks an error of a handler as one that no retry can mend: the entry is
// buried at once. ErrExists from a Spawn handler, as CreateChild gives it, is permanent
// by itself. Permanent(nil) is nil.
func Permanent(err error) error { return runner.Permanent(err) }

// RetryAfter says when a handler wants the entry again, in place of the backoff; the
// attempt counts. d of 0 or less is at once. RetryAfter(d, nil) is an error too.
func RetryAfter(d time.Duration, err error) error { return runner.RetryAfter(d, err) }

var errExhausted = errors.New("attempts exhausted")

// work delivers what l carries and hands it over: done, to be retried, or released. A
// lease whose head was tried before acks one entry after the other: where an entry
// kills the process, those before it must not pay for it.
func (r *Relay) work(ctx context.Context, l *Lease, done func()) {
	entries := l.entries()
	if len(entries) > 0 && r.exhausted(l.Attempt-1) {
		if !r.bury(ctx, l, oneLess(entries[0]), errExhausted, 0) { // it was not tried this time
			done()
			return
		}
		entries = entries[1:]
	}
	var handled []Entry
	for i, e := range entries {
		if context.Cause(ctx) != nil {
			r.breakOff(ctx, l, handled, done)
			return
		}
		start := time.Now()
		err := r.deliver(ctx, e)
		took := time.Since(start)
		switch {
		case err == nil:
			r.counted.Add(1)
			r.observe("delivered", e, took, nil)
			handled = append(handled, e)
			if l.Attempt > 1 && i < len(entries)-1 {
				if !r.ackEarly(ctx, l, e) {
					done()
					return
				}
				handled = nil
			}
		case lost(l, err) || context.Cause(ctx) != nil:
			r.breakOff(ctx, l, handled, done)
			return
		case isPermanent(e, err) || r.exhausted(attemptOf(e)):
			if !r.bury(ctx, l, e, err, took) {
				done()
				return
			}
		default:
			r.retry(l, e, handled, err, took, done)
			return
		}
	}
	whole := len(handled) == len(l.Outbox)+len(l.Spawns)
	r.finish(l, handover{acked: handled, lease: free, quick: whole && r.store.canBeQuick(l)}, done, func() {
		if l.more {
			r.runner.Wake(l.ExecutionID)
		}
	})
}

func (r *Relay) exhausted(attempts int) bool {
	return r.cfg.MaxAttempts > 0 && attempts >= r.cfg.MaxAttempts
}

// deliver runs the handler.
func (r *Relay) deliver(ctx context.Context, e Entry) error {
	return runner.Handle(r.store.cfg.Logger, e.EntryID(), func() error { return r.handle(ctx, e) })
}

func (r *Relay) handle(ctx context.Context, e Entry) error {
	switch e := e.(type) {
	case SpawnEntry:
		return r.handlers.Spawn(ctx, e)
	case OutboxEntry:
		return r.handlers.Outbox(ctx, e)
	case Timer:
		return r.handlers.Timer(ctx, e)
	}
	return Permanent(fmt.Errorf("no handler for a %T", e))
}

func isPermanent(e Entry, err error) bool {
	_, spawns := e.(SpawnEntry)
	return runner.IsPermanent(err) || spawns && errors.Is(err, ErrExists) && !runner.WantsPause(err)
}

// lost is whether err says that l is lost, and not another lease.
func lost(l *Lease, err error) bool {
	var e *LeaseLostError
	return errors.As(err, &e) && slices.Contains(e.IDs, l.ExecutionID)
}

// emit tells Observe, which is the user's code.
func (r *Relay) emit(event RelayEvent) {
	runner.Guarded(r.store.cfg.Logger, "RelayConfig.Observe", func() { r.cfg.Observe(event) })
}

// ackEarly acks one entry and keeps the lease.
func (r *Relay) ackEarly(ctx context.Context, l *Lease, e Entry) bool {
	var err error
	ctx = context.WithoutCancel(ctx)
	switch e := e.(type) {
	case SpawnEntry:
		err = r.store.AckSpawn(ctx, e)
	case OutboxEntry:
		err = r.store.AckOutbox(ctx, e)
	case Timer:
		err = r.store.DeleteTimer(ctx, e)
	}
	if err != nil {
		r.gaveUp(l, err)
	}
	return err == nil
}

// bury gives up one entry and keeps the lease.
func (r *Relay) bury(ctx context.Context, l *Lease, e Entry, cause error, took time.Duration) bool {
	if err := r.store.Bury(context.WithoutCancel(ctx), e, cause); err != nil {
		r.gaveUp(l, err)
		return false
	}
	r.store.cfg.Logger.Warn("mongostore: an entry is buried", "entry", e.EntryID(), "attempt", attemptOf(e), "error", cause)
	r.observe("buried", e, took, cause)
	return true
}

func (r *Relay) retry(l *Lease, e Entry, handled []Entry, err error, took time.Duration, done func()) {
	after := runner.Pause(r.store.cfg.Logger, r.cfg.Backoff, attemptOf(e), err)
	h := handover{acked: handled, lease: r.store.retried(r.store.now(), after, err)}
	r.finish(l, h, done, func() {
		r.store.cfg.Logger.Info("mongostore: a delivery failed", "entry", e.EntryID(), "attempt", attemptOf(e), "again_in", after, "error", err)
		r.observe("retried", e, took, err)
	})
}

// breakOff ends the work on a lease that cannot be trusted any more, or that has to
// stop. What was handled is acked and the rest is as if never claimed, if the token
// still holds: a lease that was only distrusted need not run out.
func (r *Relay) breakOff(ctx context.Context, l *Lease, handled []Entry, done func()) {
	if !errors.Is(context.Cause(ctx), runner.ErrStopped) {
		r.gaveUp(l, ErrLeaseLost)
	}
	h := handover{acked: handled, lease: r.store.released(r.store.now())}
	r.finisher.finish(l, h, func(error) { done() })
}

// finish hands l over in the background, and then calls handedOver if it went well, and
// done in any case.
func (r *Relay) finish(l *Lease, h handover, done, handedOver func()) {
	r.finisher.finish(l, h, func(err error) {
		defer done()
		switch {
		case err != nil:
			r.gaveUp(l, err)
		case handedOver != nil:
			handedOver()
		}
	})
}

// gaveUp is the end of a lease that could not be handed over: it runs out by itself.
func (r *Relay) gaveUp(l *Lease, err error) {
	r.store.cfg.Logger.Warn("mongostore: a lease is given up", "execution", l.ExecutionID, "error", err)
	r.emit(RelayEvent{What: "lease_lost", Key: l.ExecutionID, Attempt: l.Attempt, Err: err})
}

func (r *Relay) claimed(l *Lease) {
	for _, e := range l.entries() {
		r.observe("claimed", e, 0, nil)
	}
}

func (r *Relay) observe(what string, e Entry, took time.Duration, err error) {
	key, _ := keyOf(e) // it was read from a document
	r.emit(RelayEvent{What: what, ID: e.EntryID(), Handler: key.kind, Key: key.execution, Attempt: key.attempt, Duration: took, Err: err})
}

// oneLess is e before the attempt that is counted and not made.
func oneLess(e Entry) Entry {
	switch e := e.(type) {
	case SpawnEntry:
		e.Attempt--
		return e
	case OutboxEntry:
		e.Attempt--
		return e
	case Timer:
		e.Attempt--
		return e
	}
	return e
}

func attemptOf(e Entry) int {
	key, _ := keyOf(e)
	return key.attempt
}
