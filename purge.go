package mongostore

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// PurgeOptions say what to purge.
type PurgeOptions struct {
	// FinishedBefore leaves what finished at that time or later. Zero is refused: it
	// would mean everything.
	FinishedBefore time.Time
	// Batch is how many executions are looked at in one round trip. 0 is 500; negative
	// is refused.
	Batch int
}

const defaultPurge = 500

// Purge deletes executions that finished before a time, with the trace counters that
// harel may have made for them, and returns how many. What still owes something stays:
// entries, timers, dead letters, or a lease that somebody holds. It goes on past these
// in batches of three round trips, is safe while workers run, and may be called again
// after an error.
// Returns ErrInvalid if opts make no sense or ctx has an open transaction.
func (s *Store) Purge(ctx context.Context, opts PurgeOptions) (int64, error) {
	switch {
	case opts.FinishedBefore.IsZero():
		return 0, invalid("PurgeOptions.FinishedBefore", "is zero, which would be everything that is finished")
	case !fitsTime(opts.FinishedBefore):
		return 0, invalid("PurgeOptions.FinishedBefore", "is outside the years 1 to 9999")
	case opts.Batch < 0:
		return 0, invalid("PurgeOptions.Batch", "is negative")
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return 0, err
	}
	before, batch := toSeconds(opts.FinishedBefore), min(orElse(opts.Batch, defaultPurge), maxLimit)
	var purged int64
	for after := (bson.Raw)(nil); ; {
		docs, err := s.purgeable(ctx, before, after, batch)
		if err != nil {
			return purged, wrapErr("purge", "", err)
		}
		n, err := s.purge(ctx, docs, before)
		purged += n
		if err != nil {
			return purged, wrapErr("purge", "", err)
		}
		if len(docs) < batch {
			return purged, nil
		}
		after = docs[len(docs)-1]
	}
}

// owesAnything is whether an execution must stay though it is finished.
func (s *Store) owesAnything() bson.D {
	return op("$or", bson.A{
		holdsEntries("outbox"), holdsEntries("spawns"), holdsEntries("dead"), timersAreDamaged, op("$ne", bson.A{timersArray, bson.A{}}),
		op("$ne", bson.A{heldUntil(s.now()), nil}),
	})
}

// purgeable reads finished executions in the order of (finished_at, _id).
func (s *Store) purgeable(ctx context.Context, before float64, after bson.Raw, batch int) ([]bson.Raw, error) {
	isText := bson.E{Key: "_id", Value: op("$type", "string")} // another is no execution, and would break the order
	filter := bson.D{{Key: "finished_at", Value: op("$lt", before)}, isText}
	if after != nil {
		at, id := after.Lookup("finished_at"), after.Lookup("_id")
		filter = bson.D{isText, {Key: "$or", Value: bson.A{
			bson.D{{Key: "finished_at", Value: at}, {Key: "_id", Value: op("$gt", id)}},
			bson.D{{Key: "finished_at", Value: bson.D{{Key: "$gt", Value: at}, {Key: "$lt", Value: before}}}},
		}}}
	}
	return s.find(ctx, filter, options.Find().
		SetProjection(bson.D{{Key: "finished_at", Value: 1}, {Key: "version", Value: 1}, {Key: "owes", Value: s.owesAnything()}}).
		SetSort(bson.D{{Key: "finished_at", Value: 1}, {Key: "_id", Value: 1}}).SetLimit(int64(batch)))
}

// sameVersion finds a document while its version is as it was read, or as absent.
func sameVersion(doc bson.Raw) bson.E {
	if v := doc.Lookup("version"); v.Type != 0 {
		return bson.E{Key: "version", Value: v}
	}
	return bson.E{Key: "version", Value: op("$exists", false)}
}

// purge deletes those that owe nothing, each only while it is as it was read.
func (s *Store) purge(ctx context.Context, docs []bson.Raw, before float64) (int64, error) {
	var writes []mongo.WriteModel
	var counters bson.A
	for _, doc := range docs {
		if owes, _ := doc.Lookup("owes").BooleanOK(); owes {
			continue
		}
		writes = append(writes, mongo.NewDeleteOneModel().SetFilter(bson.D{
			{Key: "_id", Value: doc.Lookup("_id")}, sameVersion(doc), {Key: "finished_at", Value: op("$lt", before)},
			{Key: "$expr", Value: op("$not", bson.A{s.owesAnything()})},
		}))
		if id, ok := doc.Lookup("_id").StringValueOK(); ok {
			counters = append(counters, "trace:"+id)
		}
	}
	if len(writes) == 0 {
		return 0, nil
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.executions.BulkWrite(bounded, writes, options.BulkWrite().SetOrdered(false))
	if err != nil {
		if res != nil {
			return res.DeletedCount, err
		}
		return 0, err
	}
	if res.DeletedCount < int64(len(writes)) {
		return res.DeletedCount, nil // whose counter goes is not known: harel's own, and small
	}
	_, err = s.counters.DeleteMany(bounded, bson.D{{Key: "_id", Value: op("$in", counters)}})
	return res.DeletedCount, err
}
