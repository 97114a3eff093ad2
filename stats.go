package mongostore

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/rawdocs"
)

// Stats counts what executions owe.
type Stats struct {
	// Pending counts executions that owe something, now or later, leased and backing
	// off included.
	Pending int64
	// Due counts those that a claim could take now.
	Due int64
	// Leased counts those that somebody holds now.
	Leased int64
	// Dead counts dead letters, not executions.
	Dead int64
	// OldestDue is since when the longest due execution has been waiting; zero: none.
	OldestDue time.Time
}

// Stats counts, by the clock of the store. It costs what is pending and what is dead,
// not what is stored. Two round trips, so the counts are of almost one moment.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	ctx = outside(ctx)
	var st Stats
	owing, err := s.aggregateOne(ctx, s.owingStages(s.now()))
	if err != nil {
		return st, wrapErr("count what is due", "", err)
	}
	st.Pending, _ = wholeNumber(owing.Lookup("pending"))
	st.Due, _ = wholeNumber(owing.Lookup("due"))
	st.Leased, _ = wholeNumber(owing.Lookup("leased"))
	if oldest, ok := seconds(owing.Lookup("oldest")); ok {
		st.OldestDue = fromSeconds(oldest)
	}
	dead, err := s.aggregateOne(ctx, mongo.Pipeline{
		op("$match", bson.D{{Key: "_id", Value: op("$gt", bson.MinKey{})}, {Key: "dead_at", Value: op("$exists", true)}}), // _id comes first in the index
		op("$group", bson.D{{Key: "_id", Value: nil}, {Key: "dead", Value: op("$sum", cond(op("$isArray", "$dead"), op("$size", "$dead"), 0))}}),
	})
	if err != nil {
		return st, wrapErr("count dead letters", "", err)
	}
	st.Dead, _ = wholeNumber(dead.Lookup("dead"))
	return st, nil
}

func (s *Store) owingStages(now float64) mongo.Pipeline {
	held := op("$ne", bson.A{heldUntil(now), nil})
	leased := op("$and", bson.A{held, op("$eq", bson.A{op("$type", "$lease.token"), "string"})})
	due := op("$and", bson.A{op("$lte", bson.A{"$due_at", now}), op("$not", bson.A{held})})
	one := func(when bson.D) bson.D { return op("$sum", cond(when, 1, 0)) }
	return mongo.Pipeline{
		op("$match", op("due_at", op("$exists", true))),
		op("$group", bson.D{
			{Key: "_id", Value: nil}, {Key: "pending", Value: op("$sum", 1)}, {Key: "due", Value: one(due)}, {Key: "leased", Value: one(leased)},
			{Key: "oldest", Value: op("$min", cond(due, "$due_at", nil))},
		}),
	}
}

// aggregateOne gives the one document of an aggregation, an empty one if there is none.
func (s *Store) aggregateOne(ctx context.Context, stages mongo.Pipeline) (bson.Raw, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	cursor, err := s.executions.Aggregate(ctx, stages)
	if err != nil {
		return nil, err
	}
	docs, err := rawdocs.All(ctx, cursor)
	if err != nil || len(docs) == 0 {
		return emptyDocument, err
	}
	return docs[0], nil
}
