package outbox

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Stats are numbers of deliveries by their state.
type Stats struct {
	Pending, Waiting, Processing, Completed, Dead int64
	// OldestDue is since when the longest due one that is not finished, of all heads of
	// keys and all without a key, could be claimed, or could be again; it may lie ahead.
	// Zero: there is none.
	OldestDue time.Time
}

// Stats counts. It costs the index keys that it counts.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	var out Stats
	count := func(match bson.D) bson.A {
		return bson.A{op("$match", match), op("$group", bson.D{{Key: "_id", Value: "$status"}, {Key: "n", Value: op("$sum", 1)}, {Key: "oldest", Value: op("$min", "$due_at")}})}
	}
	finished := func(status string) bson.A {
		return bson.A{op("$match", bson.D{{Key: "status", Value: status}, {Key: "finished_at", Value: op("$exists", true)}}), op("$count", "n"), op("$set", op("_id", status))}
	}
	wait := bson.A{op("$match", op("waiting_lane", op("$gte", ""))), op("$count", "n"), op("$set", op("_id", waiting))}
	open := bson.D{{Key: "handler", Value: op("$gte", bson.MinKey{})}, {Key: "due_at", Value: op("$exists", true)}} // by the claim index
	pipeline := count(open)
	for _, part := range []bson.A{wait, finished(completed), finished(dead)} {
		pipeline = append(pipeline, op("$unionWith", bson.D{{Key: "coll", Value: s.deliveries.Name()}, {Key: "pipeline", Value: part}}))
	}
	docs, err := s.aggregate(outside(ctx), s.deliveries, pipeline)
	if err != nil {
		return out, wrapErr("stats", err)
	}
	for _, doc := range docs {
		n, _ := doc.Lookup("n").AsInt64OK()
		switch text(doc.Lookup("_id")) {
		case waiting:
			out.Waiting = n
		case pending:
			out.Pending = n
		case processing:
			out.Processing = n
		case completed:
			out.Completed = n
		case dead:
			out.Dead = n
		}
		if oldest := date(doc.Lookup("oldest")); !oldest.IsZero() && (out.OldestDue.IsZero() || oldest.Before(out.OldestDue)) {
			out.OldestDue = oldest
		}
	}
	return out, nil
}
