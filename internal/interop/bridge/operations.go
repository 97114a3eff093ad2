package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/interop"
)

// bridge does what harel asks of a store with mongostore's public calls.
type bridge struct{ store *mongostore.Store }

// everything is the limit where harel knows none.
const everything = 1 << 20

var operations = map[string]func(*bridge, context.Context, json.RawMessage) (any, error){
	"load":            operation((*bridge).load),
	"load_for_event":  operation((*bridge).loadForEvent),
	"commit":          operation((*bridge).commit),
	"is_processed":    operation((*bridge).isProcessed),
	"list":            operation((*bridge).list),
	"ids_with_prefix": operation((*bridge).idsWithPrefix),
	"purge":           operation((*bridge).purge),
	"read_trace":      operation((*bridge).readTrace),
	"append_trace":    operation((*bridge).appendTrace),
	"pending_outbox":  operation((*bridge).pendingOutbox),
	"ack_outbox":      operation((*bridge).ackOutbox),
	"pending_spawns":  operation((*bridge).pendingSpawns),
	"ack_spawn":       operation((*bridge).ackSpawn),
	"due_timers":      operation((*bridge).dueTimers),
	"delete_timer":    operation((*bridge).deleteTimer),
}

// operation decodes the arguments of one.
func operation[A, R any](do func(*bridge, context.Context, A) (R, error)) func(*bridge, context.Context, json.RawMessage) (any, error) {
	return func(b *bridge, ctx context.Context, raw json.RawMessage) (any, error) {
		var args A
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &args); err != nil {
				return nil, err
			}
		}
		return do(b, ctx, args)
	}
}

type byID struct {
	ID      string
	EventID string `json:"event_id"`
	Version int64
}

// encode gives the snapshot as harel reads it.
func encode(exe *interop.Execution) (*string, error) {
	data, err := json.Marshal(exe)
	text := string(data)
	return &text, err
}

func (b *bridge) load(ctx context.Context, args byID) (*string, error) {
	var exe interop.Execution
	err := b.store.Load(ctx, args.ID, &exe)
	if errors.Is(err, mongostore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return encode(&exe)
}

type loaded struct {
	Data *string `json:"data"`
	Seen bool    `json:"seen"`
}

func (b *bridge) loadForEvent(ctx context.Context, args byID) (loaded, error) {
	var exe interop.Execution
	seen, err := b.store.LoadForEvent(ctx, args.ID, args.EventID, &exe)
	if errors.Is(err, mongostore.ErrNotFound) {
		return loaded{}, nil
	}
	if err != nil {
		return loaded{}, err
	}
	data, err := encode(&exe)
	return loaded{Data: data, Seen: seen}, err
}

func (b *bridge) isProcessed(ctx context.Context, args byID) (bool, error) {
	return b.store.IsProcessed(ctx, args.ID, args.EventID)
}

type commit struct {
	Data      string
	Emits     [][2]*string
	Processed *string
	Timers    []struct {
		Action, Path string
		FireAt       float64 `json:"fire_at"`
	}
	Spawns [][3]json.RawMessage
	Trace  json.RawMessage
}

type committed struct {
	Version int64   `json:"version"`
	Seqs    []int64 `json:"seqs"`
}

func (b *bridge) commit(ctx context.Context, args commit) (committed, error) {
	var exe interop.Execution
	if err := json.Unmarshal([]byte(args.Data), &exe); err != nil {
		return committed{}, err
	}
	ch, err := args.changes()
	if err != nil {
		return committed{}, err
	}
	res, err := b.store.Commit(ctx, &exe, ch)
	if res.OutboxSeqs == nil {
		res.OutboxSeqs = []int64{} // harel wants an empty list, not null
	}
	return committed{Version: res.Version, Seqs: res.OutboxSeqs}, err
}

func (c commit) changes() (ch mongostore.Changes, err error) {
	for _, e := range c.Emits {
		emit := mongostore.Emit{Event: json.RawMessage(*e[1])}
		if e[0] != nil {
			emit.TargetID = *e[0]
		}
		ch.Emits = append(ch.Emits, emit)
	}
	for _, t := range c.Timers {
		ch.Timers = append(ch.Timers, mongostore.TimerOp{Path: t.Path, FireAt: interop.TimeOf(t.FireAt), Cancel: t.Action != "schedule"})
	}
	for _, raw := range c.Spawns {
		var spawn mongostore.Spawn
		err = errors.Join(err, json.Unmarshal(raw[0], &spawn.ChildID), json.Unmarshal(raw[1], &spawn.RootPath))
		input, inputErr := interop.DocumentFromJSON(raw[2])
		spawn.Input = input
		ch.Spawns, err = append(ch.Spawns, spawn), errors.Join(err, inputErr)
	}
	if c.Processed != nil {
		ch.Processed = *c.Processed
	}
	if len(c.Trace) > 0 && string(c.Trace) != "null" {
		step, traceErr := interop.DocumentFromJSON(c.Trace)
		ch.Trace, err = step, errors.Join(err, traceErr)
	}
	return ch, err
}
