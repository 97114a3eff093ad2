package mongostore

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/wait"
)

// UpdateOptions say how Update finds its execution.
type UpdateOptions struct {
	// EventID is the event that fn handles: if the execution has handled it, fn does
	// not run; else it is recorded as Changes.Processed. Empty: no deduplication.
	EventID string
	// Create makes an execution that is not there: fn gets a zero exe with its ID set.
	Create bool
}

// Update loads id into exe, runs fn, and commits exe with the changes that fn
// filled in; on a conflict it starts over, after a random 1 to 100 ms, until ctx
// ends. fn may run more than once: it must set exe and ch from what it finds in
// exe, and touch nothing else that counts. An error of fn ends Update and is
// returned as it is. A commit whose outcome is unknown is committed again with the
// same contents, and fn does not run for it again unless opts.EventID protects it.
//
// With an open transaction in ctx it tries once and returns the conflict.
//
// Returns ErrNotFound if there is no such execution and opts.Create is not set.
// Returns ErrInvalid if fn is nil or changes the ID or the Version.
// Returns ErrUnknownOutcome if ctx ended before the server told, or it cannot tell
// any more. Everything else is as in Load and Commit.
func (s *Store) Update(ctx context.Context, id string, exe Execution, opts UpdateOptions, fn func(ch *Changes) error) (CommitResult, error) {
	if fn == nil {
		return CommitResult{}, invalid("fn", "is nil")
	}
	if err := optionalText("UpdateOptions.EventID", opts.EventID); err != nil {
		return CommitResult{}, err
	}
	once := mongo.SessionFromContext(ctx) != nil
	for {
		res, err := s.updateOnce(ctx, id, exe, opts, fn)
		again := errors.Is(err, ErrConflict) || errors.Is(err, ErrUnknownOutcome) && opts.EventID != "" && s.stillKnows(err)
		if !again || once || ctx.Err() != nil || isGone(err) && !opts.Create {
			return res, err
		}
		if !wait.For(ctx, jitter()) {
			return CommitResult{}, err
		}
	}
}

func (s *Store) updateOnce(ctx context.Context, id string, exe Execution, opts UpdateOptions, fn func(ch *Changes) error) (CommitResult, error) {
	seen, err := s.loadOrCreate(ctx, id, exe, opts)
	if err != nil {
		return CommitResult{}, err
	}
	if seen {
		return CommitResult{Version: exe.ExecutionHeader().Version, Deduplicated: true}, nil
	}
	var ch Changes
	h := exe.ExecutionHeader()
	version := h.Version
	if err := fn(&ch); err != nil {
		return CommitResult{}, err
	}
	if h.ID != id || h.Version != version {
		return CommitResult{}, invalid("fn", "changed the ID or the Version in the Header, which are not its own to change")
	}
	if opts.EventID != "" {
		ch.Processed = opts.EventID
	}
	res, err := s.Commit(ctx, exe, ch)
	for errors.Is(err, ErrUnknownOutcome) && canSettle(err) && ctx.Err() == nil {
		if !wait.For(ctx, jitter()) {
			break
		}
		res, err = s.Commit(ctx, exe, ch)
	}
	return res, err
}

func (s *Store) loadOrCreate(ctx context.Context, id string, exe Execution, opts UpdateOptions) (seen bool, err error) {
	if opts.EventID == "" {
		err = s.Load(ctx, id, exe)
	} else {
		seen, err = s.LoadForEvent(ctx, id, opts.EventID, exe)
	}
	if opts.Create && errors.Is(err, ErrNotFound) {
		return false, zero(exe, id)
	}
	return seen, err
}

// zero makes exe the value of an execution that was never committed.
func zero(exe Execution, id string) error {
	h, err := headerOf(exe)
	if err != nil {
		return err
	}
	reflect.ValueOf(exe).Elem().SetZero()
	h.ID = id
	return nil
}

// canSettle reports whether committing the same contents again can still tell.
func canSettle(err error) bool {
	var unknown *unknownError
	return errors.As(err, &unknown) && !unknown.final
}

// stillKnows reports whether fn may run again: the dedupe window would show the event
// if its commit had landed. After a final unknown more commits than slots are on top,
// so a window of few events may have forgotten it.
func (s *Store) stillKnows(err error) bool {
	return canSettle(err) || s.cfg.ProcessedMax < 0 || s.cfg.ProcessedMax > 100
}

// isGone: deleted between load and commit.
func isGone(err error) bool { return errors.Is(err, ErrNotFound) }

func jitter() time.Duration { return time.Duration(1+rand.IntN(100)) * time.Millisecond }
