package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/execstore/mongostore"
)

const (
	atOnce     = 8                      // executions that a worker serves side by side
	leaseFor   = 2 * time.Second        // what a killed worker held is taken over after it
	pollEvery  = 100 * time.Millisecond // the workers see each other's commits so late at most
	stopWithin = 5 * time.Second
)

// newRelay does the work that executions owe: it creates the children that they asked
// for, delivers their events and fires their timers. Any worker may take any
// execution; the lease keeps the others away from it, and what a killed worker held is
// taken over when its lease ends. An entry may then be delivered again: its id makes
// that a no-op. A failed delivery is never given up here, because nothing may get lost.
func newRelay(e *Engine, ledger *Ledger, log *slog.Logger) (*mongostore.Relay, error) {
	d := &delivery{engine: e, ledger: ledger}
	return e.Store.NewRelay(mongostore.Handlers{Outbox: d.event, Spawn: d.spawn, Timer: d.timer}, mongostore.RelayConfig{
		Workers: atOnce, LeaseFor: leaseFor, PollEvery: pollEvery, StopTimeout: stopWithin, MaxAttempts: -1,
		Backoff: func(int) time.Duration { return pollEvery },
		Observe: func(ev mongostore.RelayEvent) {
			switch ev.What {
			case "retried":
				e.Stats.Failures.Add(1)
				log.Warn("delivery failed, it will be tried again", "entry", ev.ID, "error", ev.Err)
			case "lease_lost":
				e.Stats.LostLeases.Add(1)
			}
		},
	})
}

// delivery are the handlers.
type delivery struct {
	engine *Engine
	ledger *Ledger
}

func (d *delivery) spawn(ctx context.Context, s mongostore.SpawnEntry) error {
	first, err := d.engine.CreateChild(ctx, s)
	return d.count(first, err)
}

func (d *delivery) event(ctx context.Context, e mongostore.OutboxEntry) error {
	ev, err := decodeEvent(e)
	if err != nil {
		return mongostore.Permanent(err)
	}
	var first bool
	if e.TargetID == "" {
		first, err = d.ledger.Book(ctx, e.EntryID(), ev)
	} else {
		first, err = d.engine.Deliver(ctx, e.TargetID, e.EntryID(), ev)
	}
	return d.count(first, err)
}

// timer tells the execution itself, so the commit that handles it also removes it: one
// write, and one that a worker whose lease has passed on cannot make any more.
func (d *delivery) timer(ctx context.Context, t mongostore.Timer) error {
	first, err := d.engine.Deliver(ctx, t.ExecutionID, t.EntryID(), Event{Name: timeout(t.Path)}, t)
	return d.count(first, err)
}

func (d *delivery) count(first bool, err error) error {
	if err == nil {
		d.engine.Stats.delivered(first)
	}
	return err
}
