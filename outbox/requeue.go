package outbox

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Requeue lets dead letters be delivered again, with their attempts counted anew, and
// tells how many: an id that names none, or one that is not dead, counts nothing. Each
// takes its place among those of its key that were not delivered yet; it cannot start
// while a later one of its key is running.
// Returns ErrInvalid if an id is empty, too long or not UTF-8, or ctx has an open transaction;
// ErrUnknownOutcome if the reply was lost: requeue the same ids again, what was requeued
// then counts nothing.
func (s *Store) Requeue(ctx context.Context, deliveryIDs ...string) (int, error) {
	for i, id := range deliveryIDs {
		if err := validDelivery(fmt.Sprintf("deliveryIDs[%d]", i), id); err != nil {
			return 0, err
		}
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil || len(deliveryIDs) == 0 {
		return 0, err
	}
	total := 0
	for some := range slices.Chunk(deliveryIDs, requeueMost) {
		n, err := s.requeue(ctx, some)
		if total += n; err != nil {
			return total, wrapErr("requeue", err)
		}
	}
	return total, nil
}

const requeueMost = 1000 // deliveries in one command

func (s *Store) requeue(ctx context.Context, ids []string) (int, error) {
	now := s.now()
	bounded, cancel := bounded(ctx)
	defer cancel()
	keyed := op("$and", bson.A{ // null would be a lane that nobody looks at
		op("$eq", bson.A{op("$type", "$handler"), "string"}),
		op("$eq", bson.A{op("$type", "$key"), "string"}), op("$gt", bson.A{"$key", ""}),
	})
	only := func(is, v any) bson.D { return op("$cond", bson.A{is, v, "$$REMOVE"}) }
	res, err := s.deliveries.UpdateMany(bounded,
		bson.D{{Key: "_id", Value: op("$in", ids)}, {Key: "status", Value: dead}},
		bson.A{
			op("$set", bson.D{
				{Key: "status", Value: op("$cond", bson.A{keyed, waiting, pending})},
				{Key: "available_at", Value: now}, {Key: "attempts", Value: int64(0)},
				{Key: "requeues", Value: op("$add", bson.A{op("$cond", bson.A{op("$isNumber", "$requeues"), "$requeues", 0}), 1})},
				{Key: "due_at", Value: only(op("$not", keyed), now)},
				{Key: "waiting_lane", Value: only(keyed, op("$concat", bson.A{"$handler", ":", "$key"}))},
				{Key: "suspect_since", Value: only(keyed, now)},
			}),
			op("$unset", bson.A{"finished_at", "token", "runs"}),
		})
	switch {
	case isOpen(err):
		return 0, unknownOutcome("requeue", err, ctx.Err())
	case err != nil:
		return 0, err
	}
	docs, err := s.find(ctx, s.deliveries, op("_id", op("$in", ids)))
	if err != nil {
		return int(res.ModifiedCount), err
	}
	lanes := map[string]bool{}
	handlers := map[string]bool{}
	for _, doc := range docs {
		d := readStored(doc)
		handlers[d.handler] = true
		if lane := laneOf(d.handler, d.key); lane != "" {
			lanes[lane] = true
		}
	}
	err = s.promoteHeads(ctx, keysOf(lanes))
	s.listeners.wake(keysOf(handlers))
	return int(res.ModifiedCount), err
}
