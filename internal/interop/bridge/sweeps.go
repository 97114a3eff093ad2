package main

import (
	"context"
	"encoding/json"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/interop"
)

type nothing struct{}

func (b *bridge) readTrace(ctx context.Context, args byID) ([]json.RawMessage, error) {
	var steps []bson.Raw
	if err := b.store.ReadTrace(ctx, args.ID, &steps); err != nil {
		return nil, err
	}
	out := []json.RawMessage{}
	for _, step := range steps {
		text, err := interop.JSONFromDocument(step)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

func (b *bridge) appendTrace(ctx context.Context, args struct {
	ID   string
	Step json.RawMessage
}) (nothing, error) {
	step, err := interop.DocumentFromJSON(args.Step)
	if err != nil {
		return nothing{}, err
	}
	return nothing{}, b.store.AppendTrace(ctx, args.ID, step)
}

type outboxEntry struct {
	Seq      int64   `json:"seq"`
	TargetID *string `json:"target_id"`
	Event    string  `json:"event"`
}

func (b *bridge) pendingOutbox(ctx context.Context, _ nothing) ([]outboxEntry, error) {
	entries, err := b.store.PendingOutbox(ctx, everything)
	out := []outboxEntry{}
	for _, e := range entries {
		out = append(out, outboxEntry{Seq: e.Seq, TargetID: orNull(e.TargetID), Event: string(e.Event)})
	}
	return out, err
}

type bySeq struct{ Seq int64 }

// ackOutbox looks for the entry first: mongostore acknowledges by execution and
// number, harel by number alone.
func (b *bridge) ackOutbox(ctx context.Context, args bySeq) (nothing, error) {
	entries, err := b.store.PendingOutbox(ctx, everything)
	if err != nil {
		return nothing{}, err
	}
	for _, e := range entries {
		if e.Seq == args.Seq {
			return nothing{}, b.store.AckOutbox(ctx, e)
		}
	}
	return nothing{}, nil
}

type spawnEntry struct {
	Seq      int64           `json:"seq"`
	ParentID string          `json:"parent_id"`
	ChildID  string          `json:"child_id"`
	RootPath string          `json:"root_path"`
	Context  json.RawMessage `json:"context"`
}

func (b *bridge) pendingSpawns(ctx context.Context, _ nothing) ([]spawnEntry, error) {
	entries, err := b.store.PendingSpawns(ctx, everything)
	if err != nil {
		return nil, err
	}
	out := []spawnEntry{}
	for _, e := range entries {
		input, err := interop.JSONFromDocument(e.Input)
		if err != nil {
			return nil, err
		}
		out = append(out, spawnEntry{Seq: e.Seq, ParentID: e.ParentID, ChildID: e.ChildID, RootPath: e.RootPath, Context: input})
	}
	return out, nil
}

func (b *bridge) ackSpawn(ctx context.Context, args bySeq) (nothing, error) {
	entries, err := b.store.PendingSpawns(ctx, everything)
	if err != nil {
		return nothing{}, err
	}
	for _, e := range entries {
		if e.Seq == args.Seq {
			return nothing{}, b.store.AckSpawn(ctx, e)
		}
	}
	return nothing{}, nil
}

func (b *bridge) dueTimers(ctx context.Context, args struct{ Now float64 }) ([][3]any, error) {
	due, err := b.store.DueTimers(ctx, interop.TimeOf(args.Now), everything)
	out := [][3]any{}
	for _, t := range due {
		out = append(out, [3]any{t.ExecutionID, t.Path, fireAt(t)})
	}
	return out, err
}

// fireAt is the stored number as Python writes it: EntryID ends in it.
func fireAt(t mongostore.Timer) json.Number {
	id := t.EntryID()
	return json.Number(id[strings.LastIndexByte(id, ':')+1:])
}

func (b *bridge) deleteTimer(ctx context.Context, args struct {
	ID, Path string
	FireAt   float64 `json:"fire_at"`
}) (nothing, error) {
	return nothing{}, b.store.DeleteTimer(ctx, mongostore.Timer{ExecutionID: args.ID, Path: args.Path, FireAt: interop.TimeOf(args.FireAt)})
}
