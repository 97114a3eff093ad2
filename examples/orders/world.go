package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/execstore/mongostore"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// World is what a run left behind: every document, read one by one, what the sweeps
// still find, and the ledger.
type World struct {
	Orders   map[string]Seen[*Order]
	Accounts map[string]Seen[*Account]
	Parcels  map[string]Seen[*Parcel]
	Ledger   []Posting
	Swept    Pending
}

// Seen is an execution as it is stored.
type Seen[M Machine] struct {
	Machine M
	Trace   []TraceStep
	Pending Pending
}

// Pending counts work that is owed.
type Pending struct{ Outbox, Spawns, Timers int }

// sweep counts up to limit of each kind by the sweeps; timers that are not due yet
// count too.
func sweep(ctx context.Context, store *mongostore.Store, limit int) (Pending, error) {
	timers, err := store.DueTimers(ctx, time.Now().AddDate(1, 0, 0), limit)
	if err != nil {
		return Pending{}, err
	}
	spawns, err := store.PendingSpawns(ctx, limit)
	if err != nil {
		return Pending{}, err
	}
	outbox, err := store.PendingOutbox(ctx, limit)
	return Pending{Outbox: len(outbox), Spawns: len(spawns), Timers: len(timers)}, err
}

// readWorld reads everything. Nothing should be running any more.
func readWorld(ctx context.Context, store *mongostore.Store, ledger *Ledger) (*World, error) {
	var ids []string
	for row, err := range store.All(ctx, mongostore.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		if row.Err != nil {
			return nil, row.Err
		}
		ids = append(ids, row.ID)
	}
	w := &World{Orders: map[string]Seen[*Order]{}, Accounts: map[string]Seen[*Account]{}, Parcels: map[string]Seen[*Parcel]{}}
	var mu sync.Mutex
	err := parallel(len(ids), func(i int) error {
		in, err := store.Inspect(ctx, ids[i])
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		return w.add(ids[i], in)
	})
	if err != nil {
		return nil, err
	}
	if w.Ledger, err = ledger.Postings(ctx); err != nil {
		return nil, err
	}
	w.Swept, err = sweep(ctx, store, 1000)
	return w, err
}

func (w *World) add(id string, in *mongostore.Inspection) error {
	m, err := newMachine(id)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(in.Data, m); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	trace := make([]TraceStep, len(in.Trace))
	for i, raw := range in.Trace {
		if err := bson.Unmarshal(raw, &trace[i]); err != nil {
			return fmt.Errorf("%s: trace step %d: %w", id, i, err)
		}
	}
	pending := Pending{Outbox: len(in.Outbox), Spawns: len(in.Spawns), Timers: len(in.Timers)}
	switch m := m.(type) {
	case *Order:
		w.Orders[id] = Seen[*Order]{m, trace, pending}
	case *Account:
		w.Accounts[id] = Seen[*Account]{m, trace, pending}
	case *Parcel:
		w.Parcels[id] = Seen[*Parcel]{m, trace, pending}
	}
	return nil
}

// each visits all executions.
func (w *World) each(visit func(h *mongostore.Header, trace []TraceStep, p Pending)) {
	for _, o := range w.Orders {
		visit(&o.Machine.Header, o.Trace, o.Pending)
	}
	for _, a := range w.Accounts {
		visit(&a.Machine.Header, a.Trace, a.Pending)
	}
	for _, p := range w.Parcels {
		visit(&p.Machine.Header, p.Trace, p.Pending)
	}
}
