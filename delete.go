package mongostore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/wait"
)

// Delete removes an execution that still stands at version, with all that its
// document holds, and the trace counter that harel may have made for it. Version 0
// removes what AppendTrace made before any commit. What other executions owe to it
// stays. Two commands, one for the counter. Joins an open transaction in ctx.
// Returns ErrConflict if the version has moved, with ErrNotFound if there is none.
// Returns ErrDamaged if there is one whose version cannot be read.
// Returns ErrInvalid if id is not valid or version is negative.
// Returns ErrUnknownOutcome if the reply was lost and the server did not tell in
// time. An execution that is made anew under the id before the store has looked
// cannot be told from the one to delete.
func (s *Store) Delete(ctx context.Context, id string, version int64) error {
	if err := validText("id", id); err != nil {
		return err
	}
	if version < 0 {
		return invalid("version", "is negative")
	}
	if err := ctx.Err(); err != nil {
		return wrapErr("delete", id, err)
	}
	inTransaction, err := joins(ctx)
	if err != nil {
		return err
	}
	deleted, err := s.deleteVersion(ctx, id, version)
	if isOpen(err) && !inTransaction {
		return s.settleDelete(ctx, id, version, err)
	}
	if err != nil {
		return wrapErr("delete", id, err)
	}
	if !deleted {
		return s.deleteConflict(ctx, id, version)
	}
	return s.deleteTraceCounter(ctx, id)
}

func (s *Store) deleteVersion(ctx context.Context, id string, version int64, more ...bson.E) (bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	filter := append(byID(id), bson.E{Key: "version", Value: version})
	if version == 0 {
		stub := bson.D{{Key: "version", Value: nil}, {Key: "data", Value: nil}}
		filter = append(byID(id), bson.E{Key: "$or", Value: bson.A{bson.D{{Key: "version", Value: 0}}, stub}})
	}
	filter = append(filter, more...)
	res, err := s.executions.DeleteOne(ctx, filter)
	return err == nil && res.DeletedCount == 1, err
}

// settleDelete finds out about a delete whose reply was lost: gone is what was asked
// for. What stands at the first look is deleted, and nothing that is made after it.
func (s *Store) settleDelete(ctx context.Context, id string, version int64, cause error) error {
	detached, cancel := s.untilOutcome(ctx)
	defer cancel()
	var first *bson.E
	for {
		slot, err := s.deletable(detached, id, version)
		switch {
		case isGone(err):
			return s.deleteTraceCounter(detached, id)
		case isFinal(err):
			return err
		case err == nil && first == nil:
			first = &slot
		case err == nil && slot != *first:
			return nil // made anew: the one to delete is gone
		}
		if err == nil {
			deleted, failed := s.deleteVersion(detached, id, version, *first)
			if deleted {
				return s.deleteTraceCounter(detached, id)
			}
			err = failed
		}
		cause = cmp.Or(err, cause)
		if !wait.For(detached, 20*time.Millisecond) {
			return &unknownError{id: id, cause: cause, ended: ctx.Err()}
		}
	}
}

// deletable reads whether the execution still stands at version, and gives the
// condition that it is this incarnation.
func (s *Store) deletable(ctx context.Context, id string, version int64) (same bson.E, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(id), options.FindOne().SetProjection(bson.D{{Key: "version", Value: 1}, {Key: "commits", Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return same, &ConflictError{ExecutionID: id, Expected: version}
	}
	if err != nil {
		return same, err
	}
	if actual, _ := wholeNumber(doc.Lookup("version")); actual != version {
		return same, &ConflictError{ExecutionID: id, Expected: version, Actual: actual}
	}
	same = bson.E{Key: "commits." + slotKey(version)}
	if slot := slotOf(doc, version); slot != (commitID{}) {
		same.Value = bson.ObjectID(slot)
	}
	return same, nil
}

// stubProjection tells the version, and what AppendTrace made from what lost it.
var stubProjection = bson.D{{Key: "version", Value: 1}, {Key: "data", Value: bson.D{{Key: "$cond", Value: bson.A{
	bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$data", nil}}}, nil}}}, "$$REMOVE", true,
}}}}}

func (s *Store) deleteConflict(ctx context.Context, id string, version int64) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(id), options.FindOne().SetProjection(stubProjection)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) || err == nil && isStub(doc) {
		return &ConflictError{ExecutionID: id, Expected: version}
	}
	if err != nil {
		return wrapErr("delete", id, err)
	}
	r := &reader{id: id, doc: doc}
	actual := r.version()
	if err := r.failed(); err != nil {
		return err
	}
	return &ConflictError{ExecutionID: id, Expected: version, Actual: actual}
}

// deleteTraceCounter tidies up what only harel makes. The execution is gone by then,
// so a failure is no failure of the delete.
func (s *Store) deleteTraceCounter(ctx context.Context, id string) error {
	inTransaction := mongo.SessionFromContext(ctx) != nil
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, err := s.counters.DeleteOne(ctx, byID("trace:"+id))
	if err == nil || inTransaction {
		return wrapErr("delete the trace counter of", id, err)
	}
	s.cfg.Logger.Warn("mongostore: a trace counter is left behind", "execution", id, "error", err)
	return nil
}
