package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/interop"
)

type listing struct {
	Status       []string
	DefinitionID *string `json:"definition_id"`
	RootsOnly    bool    `json:"roots_only"`
	Limit        int
	Cursor       *string
}

// row is harel's ExecutionSummary.
type row struct {
	ID           string       `json:"id"`
	DefinitionID string       `json:"definition_id"`
	Status       string       `json:"status"`
	Outcome      *string      `json:"outcome"`
	ActivePath   *string      `json:"active_path"`
	Version      int64        `json:"version"`
	ParentID     *string      `json:"parent_id"`
	FinishedAt   *json.Number `json:"finished_at"`
}

type page struct {
	Items []row   `json:"items"`
	Next  *string `json:"next"`
}

func (b *bridge) list(ctx context.Context, args listing) (page, error) {
	opts := mongostore.ListOptions{Statuses: args.Status, RootsOnly: args.RootsOnly, Limit: args.Limit}
	if args.DefinitionID != nil {
		opts.DefinitionID = *args.DefinitionID
	}
	if args.Cursor != nil {
		opts.Cursor = *args.Cursor
	}
	found, err := b.store.List(ctx, opts)
	if err != nil {
		return page{}, err
	}
	out := page{Items: []row{}, Next: orNull(found.Next)}
	for _, item := range found.Items {
		r, err := b.row(ctx, item)
		if err != nil {
			return page{}, err
		}
		out.Items = append(out.Items, r)
	}
	return out, nil
}

// row takes finished_at from the snapshot: harel's runner sets it there, while the
// store's own is by the store's clock, and is set for FAILED too.
func (b *bridge) row(ctx context.Context, item mongostore.Summary) (row, error) {
	var exe interop.Execution
	if err := errors.Join(item.Err, b.store.Load(ctx, item.ID, &exe)); err != nil {
		return row{}, err
	}
	return row{
		ID: item.ID, DefinitionID: item.DefinitionID, Status: item.Status, Version: item.Version,
		Outcome: orNull(item.Outcome), ActivePath: orNull(item.ActivePath), ParentID: orNull(item.ParentID),
		FinishedAt: exe.FinishedAt,
	}, nil
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (b *bridge) idsWithPrefix(ctx context.Context, args struct{ Prefix string }) ([]string, error) {
	ids := []string{}
	for item, err := range b.store.All(ctx, mongostore.ListOptions{IDPrefix: args.Prefix}) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, item.ID)
	}
	return ids, nil
}

// purge deletes an execution that still stands at the version. Delete takes what
// its own document holds and its trace counter; the events that others have
// pending for it are for the caller of Delete to judge, so they go here. As harel
// wants it, an execution that is gone already has them removed too.
func (b *bridge) purge(ctx context.Context, args byID) (bool, error) {
	err := b.store.Delete(ctx, args.ID, args.Version)
	if errors.Is(err, mongostore.ErrConflict) && !errors.Is(err, mongostore.ErrNotFound) {
		return false, nil
	}
	if err != nil && !errors.Is(err, mongostore.ErrNotFound) {
		return false, err
	}
	deleted := err == nil
	pending, err := b.store.PendingOutbox(ctx, everything)
	if err != nil {
		return false, err
	}
	var addressed []mongostore.OutboxEntry
	for _, e := range pending {
		if e.TargetID == args.ID {
			addressed = append(addressed, e)
		}
	}
	return deleted, b.store.AckOutbox(ctx, addressed...)
}
