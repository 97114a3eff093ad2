package outbox

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/indexes"
)

// deliveryIndexes are those of the deliveries. Each holds only the deliveries in the
// states that it is for, so that none grows with what waits, or with what is finished,
// but where that is asked for.
var deliveryIndexes = []indexes.Spec{
	{Name: "claim", Keys: indexes.Ascending("handler", "due_at", "_id"), Only: "due_at"},
	{Name: "active", Keys: indexes.Ascending("active_lane"), Only: "active_lane"},
	{Name: "waiting", Keys: indexes.Ascending("waiting_lane", "sequence"), Only: "waiting_lane"},
	{Name: "suspect", Keys: indexes.Ascending("suspect_since", "_id"), Only: "suspect_since"},
	{Name: "finished", Keys: indexes.Ascending("status", "finished_at", "_id"), Only: "finished_at"},
	{Name: "by_key", Keys: indexes.Ascending("key", "sequence", "_id"), Only: "key"},
}

// Setup makes the collections and their indexes. It is idempotent, safe from many
// processes at once, and leaves indexes of others alone. An index with the same keys and
// options under another name serves as well. Call it before the first Append:
// collections that transactions make at the same time conflict.
// Returns ErrNoTransactions, and creates nothing, on a standalone server; ErrInvalid,
// naming collection, index and difference, if an index has the name or the keys of one
// that is needed and is another, if a collection has a collation that does not compare
// ids byte by byte, or if ctx has an open transaction.
func (s *Store) Setup(ctx context.Context) error {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	return wrapErr("set up", s.setup(ctx))
}

func (s *Store) setup(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := s.requireReplicaSet(ctx); err != nil {
		return err
	}
	for _, coll := range []*mongo.Collection{s.events, s.deliveries, s.keys} {
		if err := indexes.CreateCollection(ctx, coll); err != nil {
			return err
		}
	}
	return indexes.Create(ctx, s.deliveries, deliveryIndexes)
}

// requireReplicaSet asks for what only members of a set, and routers, say of themselves.
func (s *Store) requireReplicaSet(ctx context.Context) error {
	hello, err := s.client.Database("admin").RunCommand(ctx, op("hello", 1)).Raw()
	if err != nil {
		return err
	}
	router, _ := hello.Lookup("msg").StringValueOK()
	member, _ := hello.Lookup("isreplicaset").BooleanOK() // of a set that is not initiated, or not read from disk yet
	if hello.Lookup("setName").Type != bson.TypeString && router != "isdbgrid" && !member {
		return ErrNoTransactions
	}
	return nil
}

// sayWhatIsMissing is an error on a server on which nothing can be published, or that does
// not answer, and warns where the indexes are missing that every claim needs.
func (s *Store) sayWhatIsMissing(ctx context.Context) error {
	ctx, cancel := bounded(outside(ctx))
	defer cancel()
	if err := s.requireReplicaSet(ctx); err != nil {
		return err
	}
	if missing := indexes.MissingNames(ctx, s.deliveries, deliveryIndexes); len(missing) > 0 {
		s.cfg.Logger.Warn("outbox: Store.Setup was not called, every claim scans the collection",
			"collection", s.deliveries.Name(), "missing", missing)
	}
	return nil
}
