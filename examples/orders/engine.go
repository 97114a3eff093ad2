package main

import (
	"context"
	"fmt"
	"time"

	"github.com/execstore/mongostore"
)

// Engine applies events to executions, each in one commit: the machine's new state,
// what it emits and spawns, its timers, the mark that the event was handled, and a
// step of the timeline. Safe for concurrent use.
type Engine struct {
	Store *mongostore.Store
	Name  string // who it is in timelines
	Stats *Stats
}

// TraceStep is what the timeline keeps of a commit.
type TraceStep struct {
	Index   int64    `bson:"index"` // the store's
	At      int64    `bson:"at"`    // microseconds since 1970, by the clock of Worker
	Worker  string   `bson:"worker"`
	Event   string   `bson:"event"`
	EventID string   `bson:"event_id"`
	Order   string   `bson:"order"`
	Node    string   `bson:"node"` // where it led
	Did     []string `bson:"did"`
}

// Deliver applies ev to execution id unless it has handled eventID before, and
// reports whether this was the first time. Entries of id's own are gone with the same
// commit.
func (e *Engine) Deliver(ctx context.Context, id, eventID string, ev Event, own ...mongostore.Entry) (first bool, err error) {
	return e.update(ctx, id, ev, mongostore.UpdateOptions{EventID: eventID}, own...)
}

// Start is Deliver to an execution that need not exist yet.
func (e *Engine) Start(ctx context.Context, id, eventID string, ev Event) (first bool, err error) {
	return e.update(ctx, id, ev, mongostore.UpdateOptions{EventID: eventID, Create: true})
}

func (e *Engine) update(ctx context.Context, id string, ev Event, opts mongostore.UpdateOptions, own ...mongostore.Entry) (first bool, err error) {
	m, err := newMachine(id)
	if err != nil {
		return false, err
	}
	runs := 0
	res, err := e.Store.Update(ctx, id, m, opts, func(ch *mongostore.Changes) error {
		runs++
		ch.Acks = own
		e.apply(m, opts.EventID, ev, ch)
		return nil
	})
	e.Stats.Reruns.Add(int64(max(0, runs-1)))
	return err == nil && !res.Deduplicated, err
}

// CreateChild makes the child that spawn asks for, with the first event in its
// input applied, and reports whether it was not there yet.
func (e *Engine) CreateChild(ctx context.Context, spawn mongostore.SpawnEntry) (first bool, err error) {
	m, err := newMachine(spawn.ChildID)
	if err != nil {
		return false, err
	}
	var ev Event
	if err := spawn.Decode(&ev); err != nil {
		return false, err
	}
	m.ExecutionHeader().ID = spawn.ChildID
	m.ExecutionHeader().ParentID = spawn.ParentID
	var ch mongostore.Changes
	e.apply(m, spawn.EntryID(), ev, &ch)
	res, err := e.Store.CreateChild(ctx, spawn, m, ch)
	return err == nil && !res.Deduplicated, err
}

// noTransition is the note of an event that came too late to matter, such as a timer
// that fired while it was being cancelled.
const noTransition = "has no transition for it"

// apply runs one event through the machine and fills in its changes. It may run
// again for the same event, on a machine loaded anew.
func (e *Engine) apply(m Machine, eventID string, ev Event, ch *mongostore.Changes) {
	h := m.ExecutionHeader()
	if h.Version == 0 {
		h.DefinitionID, h.Status = kindOf(h.ID), active
	}
	s := &Step{Event: ev, Now: time.Now(), header: h, changes: ch}
	if !m.Handle(s) {
		s.note(noTransition) // handled all the same: it must not come again
	}
	ch.Trace = TraceStep{
		At: s.Now.UnixMicro(), Worker: e.Name, Event: ev.Name, EventID: eventID,
		Order: ev.Order, Node: h.ActivePath, Did: s.did,
	}
}

// decodeEvent names the entry in its error.
func decodeEvent(entry mongostore.OutboxEntry) (Event, error) {
	var ev Event
	if err := entry.Decode(&ev); err != nil {
		return ev, fmt.Errorf("%s: %w", entry.EntryID(), err)
	}
	return ev, nil
}
