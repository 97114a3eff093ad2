package mongostore

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// CreateChild is the first commit of the child that e asks for: it sets ID and
// ParentID in child's Header and commits; what ch holds must not depend on their
// being set before. A child of the same parent that is already there is success with
// Deduplicated, untouched, however far it has come; so a relay that died before
// AckSpawn may simply do it again. Load the child where its state is needed then.
// Returns ErrExists if an execution of another parent has the id.
// Returns ErrInvalid if e has no ids or child has been committed before. Everything
// else is as in Commit.
func (s *Store) CreateChild(ctx context.Context, e SpawnEntry, child Execution, ch Changes) (CommitResult, error) {
	h, err := headerOf(child)
	if err != nil {
		return CommitResult{}, err
	}
	if err := validText("SpawnEntry.ParentID", e.ParentID); err != nil {
		return CommitResult{}, err
	}
	if err := validText("SpawnEntry.ChildID", e.ChildID); err != nil {
		return CommitResult{}, err
	}
	if h.Version != 0 {
		return CommitResult{}, invalid("child", "has been committed before, a child starts at Version 0")
	}
	h.ID, h.ParentID = e.ChildID, e.ParentID
	res, err := s.Commit(ctx, child, ch)
	if !errors.Is(err, ErrConflict) { // also an earlier try of our own, with other contents
		return res, err
	}
	parent, version, readErr := s.parentOf(ctx, e.ChildID)
	if readErr != nil {
		return CommitResult{}, readErr
	}
	if parent != e.ParentID {
		return CommitResult{}, err
	}
	return CommitResult{Version: version, Deduplicated: true}, nil
}

// parentOf reads who the parent is, from the snapshot where harel wrote it.
func (s *Store) parentOf(ctx context.Context, id string) (parent string, version int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(id), options.FindOne().SetProjection(rowProjection)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return "", 0, &ConflictError{ExecutionID: id}
	}
	if err != nil {
		return "", 0, wrapErr("read the parent of", id, err)
	}
	row := summarize(doc)
	return row.ParentID, row.Version, row.Err
}
