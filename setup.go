package mongostore

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/indexes"
)

// executionIndexes are those of the executions collection. The sparse and partial
// ones hold only documents that owe something, or are finished, so a running
// execution that owes nothing costs them nothing. With _id in it an index cannot be
// sparse: every document has one, hence partial.
var executionIndexes = []indexes.Spec{
	{Name: "status_id", Keys: indexes.Ascending("status", "_id")},
	{Name: "definition_id", Keys: indexes.Ascending("definition_id", "_id")},
	{Name: "definition_status_id", Keys: indexes.Ascending("definition_id", "status", "_id")},
	{Name: "parent_id", Keys: indexes.Ascending("parent_id", "_id")},
	{Name: "outbox_seq", Keys: indexes.Ascending("outbox.seq"), Sparse: true},
	{Name: "spawns_seq", Keys: indexes.Ascending("spawns.seq"), Sparse: true},
	{Name: "timer_at", Keys: indexes.Ascending("timer_at"), Sparse: true},
	{Name: "due_at", Keys: indexes.Ascending("due_at"), Sparse: true},
	{Name: "finished_at_id", Keys: indexes.Ascending("finished_at", "_id"), Only: "finished_at"},
	{Name: "id_dead_at", Keys: indexes.Ascending("_id", "dead_at"), Only: "dead_at"},
}

// Setup makes the collections and their indexes. It is idempotent, safe from many
// processes at once, and leaves indexes of others alone. An index with the same
// keys and options under another name serves as well. Without Setup everything
// works, slower.
// Returns ErrInvalid, naming collection, index and difference, if an index has the
// name or the keys of one that is needed and is another; or if a collection has a
// collation that does not compare ids byte by byte.
func (s *Store) Setup(ctx context.Context) error {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	for _, coll := range []*mongo.Collection{s.executions, s.counters} {
		if err := s.createCollection(ctx, coll); err != nil {
			return setupErr(coll, err)
		}
	}
	return setupErr(s.executions, s.createIndexes(ctx))
}

// setupErr makes a mismatch of the store's kind of error.
func setupErr(coll *mongo.Collection, err error) error {
	var m *indexes.Mismatch
	if errors.As(err, &m) {
		return &ValidationError{Field: m.Name, Reason: m.Reason, cause: m.Unwrap()}
	}
	return wrapErr("set up", coll.Name(), err)
}

func (s *Store) createCollection(ctx context.Context, coll *mongo.Collection) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return indexes.CreateCollection(ctx, coll)
}

func (s *Store) createIndexes(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return indexes.Create(ctx, s.executions, executionIndexes)
}
