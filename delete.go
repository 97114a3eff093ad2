package mongostore

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Delete removes an execution that still stands at version, with all that its
// document holds, and the trace counter that harel may have made for it. Version 0
// removes what AppendTrace made before any commit. What other executions owe to it
// stays. Joins an open transaction in ctx.
// Returns ErrConflict if the version has moved, with ErrNotFound if there is none.
// Returns ErrDamaged if there is one whose version cannot be read.
// Returns ErrInvalid if id is not valid or version is negative.
// Returns ErrUnknownOutcome if the reply was lost and the server did not tell in time.
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

func (s *Store) deleteVersion(ctx context.Context, id string, version int64) (bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	filter := append(byID(id), bson.E{Key: "version", Value: version})
	if version == 0 {
		stub := bson.D{{Key: "version", Value: nil}, {Key: "data", Value: nil}}
		filter = append(byID(id), bson.E{Key: "$or", Value: bson.A{bson.D{{Key: "version", Value: 0}}, stub}})
	}
	res, err := s.executions.DeleteOne(ctx, filter)
	return err == nil && res.DeletedCount == 1, err
}

// settleDelete repeats a delete whose reply was lost: gone is what was asked for.
func (s *Store) settleDelete(ctx context.Context, id string, version int64, cause error) error {
	detached, cancel := s.untilOutcome(ctx)
	defer cancel()
	for isOpen(cause) {
		if !pause(detached, 20*time.Millisecond) {
			return &unknownError{id: id, cause: cause, ended: ctx.Err()}
		}
		var deleted bool
		deleted, cause = s.deleteVersion(detached, id, version)
		if cause == nil && !deleted {
			cause = s.deleteConflict(detached, id, version)
			if isGone(cause) {
				cause = nil
			}
		}
	}
	if cause != nil {
		return wrapErr("delete", id, cause)
	}
	return s.deleteTraceCounter(detached, id)
}

// stubProjection tells the version, and what AppendTrace made from what lost it.
var stubProjection = bson.D{{Key: "version", Value: 1}, {Key: "data", Value: bson.D{{Key: "$cond", Value: bson.A{
	bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$data", nil}}}, nil}}}, "$$REMOVE", true,
}}}}}

func (s *Store) deleteConflict(ctx context.Context, id string, version int64) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(id), options.FindOne().SetProjection(stubProjection)).Raw()
	if err == mongo.ErrNoDocuments || err == nil && isStub(doc) {
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

func (s *Store) deleteTraceCounter(ctx context.Context, id string) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, err := s.counters.DeleteOne(ctx, byID("trace:"+id))
	return wrapErr("delete the trace counter of", id, err)
}
