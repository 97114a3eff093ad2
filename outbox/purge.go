package outbox

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// PurgeOptions say what to delete. At least one time must be set.
type PurgeOptions struct {
	// CompletedBefore deletes deliveries completed before it. Zero: none.
	CompletedBefore time.Time
	// DeadBefore deletes dead letters buried before it. Zero: none.
	DeadBefore time.Time
	// Batch is how many deliveries one transaction deletes. 0 is 500; negative, and more
	// than 10,000, is refused.
	Batch int
}

const (
	defaultPurge = 500
	mostPurged   = 10_000
	purgeNames   = 4 << 20 // bytes of ids and keys that one transaction names
)

// Purge deletes finished deliveries, and events of which none is left, and tells how many
// deliveries. Each batch is a transaction: there is never an event without deliveries nor
// the reverse. The numbers of keys of which nothing is left begin anew. It is safe beside
// Append, Requeue and other purges: what they need conflicts, and is read again.
// Returns ErrInvalid if both times are zero, Batch makes no sense, or ctx has an open
// transaction.
func (s *Store) Purge(ctx context.Context, opts PurgeOptions) (int64, error) {
	switch {
	case opts.CompletedBefore.IsZero() && opts.DeadBefore.IsZero():
		return 0, invalid("PurgeOptions.CompletedBefore", "and DeadBefore are zero: that would purge nothing")
	case opts.Batch < 0:
		return 0, invalid("PurgeOptions.Batch", "is negative")
	case opts.Batch > mostPurged:
		return 0, invalid("PurgeOptions.Batch", fmt.Sprintf("is above %d", mostPurged))
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, part := range []struct {
		status string
		before time.Time
	}{{completed, opts.CompletedBefore}, {dead, opts.DeadBefore}} {
		if part.before.IsZero() {
			continue
		}
		n, err := s.purge(ctx, part.status, part.before, orElse(opts.Batch, defaultPurge))
		total += n
		if err != nil {
			return total, wrapErr("purge", err)
		}
	}
	return total, nil
}

// purge deletes batch after batch of one state, the longest finished first.
func (s *Store) purge(ctx context.Context, status string, before time.Time, batch int) (total int64, err error) {
	finished := bson.D{{Key: "status", Value: status}, {Key: "finished_at", Value: op("$lt", before)}}
	for {
		docs, err := s.find(ctx, s.deliveries, finished, options.Find().SetLimit(int64(batch)).
			SetSort(bson.D{{Key: "finished_at", Value: 1}, {Key: "_id", Value: 1}}).
			SetProjection(bson.D{{Key: "event_id", Value: 1}, {Key: "key", Value: 1}}))
		if err != nil || len(docs) == 0 {
			return total, err
		}
		var ids bson.A
		events, keys := map[string]bool{}, map[string]bool{}
		for bytes, i := 0, 0; i < len(docs) && bytes < purgeNames; i++ {
			doc := docs[i]
			bytes += len(doc)
			ids = append(ids, doc.Lookup("_id"))
			events[text(doc.Lookup("event_id"))] = true
			if key := text(doc.Lookup("key")); key != "" {
				keys[key] = true
			}
		}
		var n int64
		err = s.Transaction(ctx, func(ctx context.Context) (err error) {
			n, err = s.purgeBatch(ctx, append(op("_id", op("$in", ids)), finished...), keysOf(events))
			return err
		})
		total += n
		if err != nil {
			return total, err
		}
		s.cleanCounters(ctx, keysOf(keys))
		if len(ids) < batch && len(ids) == len(docs) {
			return total, nil
		}
	}
}

// purgeBatch deletes deliveries, then the events that have none left. An event that
// keeps some is written: of two purges that each take a part of them, one has to see
// what the other did.
func (s *Store) purgeBatch(ctx context.Context, deliveries bson.D, events []string) (int64, error) {
	res, err := s.deliveries.DeleteMany(ctx, deliveries)
	if err != nil {
		return 0, err
	}
	docs, err := s.find(ctx, s.events, op("_id", op("$in", events)), options.Find().SetProjection(op("handlers", 1)))
	if err != nil {
		return 0, err
	}
	possible, keeps := []string{}, make(map[string]bool)
	for _, doc := range docs {
		id, handlers := text(doc.Lookup("_id")), texts(doc.Lookup("handlers"))
		if len(handlers) == 0 {
			keeps[id] = true // damaged: nobody knows whom it is for
		}
		for _, h := range handlers {
			possible = append(possible, h+":"+id)
		}
	}
	left, err := s.find(ctx, s.deliveries, op("_id", op("$in", possible)), options.Find().SetProjection(op("event_id", 1)))
	if err != nil {
		return 0, err
	}
	for _, doc := range left {
		keeps[text(doc.Lookup("event_id"))] = true
	}
	var gone []string
	for _, id := range events {
		if !keeps[id] {
			gone = append(gone, id)
		}
	}
	if len(keeps) > 0 {
		if _, err := s.events.UpdateMany(ctx, op("_id", op("$in", keysOf(keeps))), op("$inc", op("purges", 1))); err != nil {
			return 0, err
		}
	}
	if len(gone) > 0 {
		if _, err := s.events.DeleteMany(ctx, op("_id", op("$in", gone))); err != nil {
			return 0, err
		}
	}
	return res.DeletedCount, nil
}

// cleanCounters deletes the counters of keys that have no delivery left. It is tried
// once: a conflict means that the key lives.
func (s *Store) cleanCounters(ctx context.Context, keys []string) {
	if len(keys) == 0 {
		return
	}
	err := s.once(ctx, func(ctx context.Context) error {
		living, err := s.aggregate(ctx, s.deliveries, livingKeys(keys))
		if err != nil {
			return err
		}
		lives := make(map[string]bool, len(living))
		for _, doc := range living {
			lives[text(doc.Lookup("_id"))] = true
		}
		var gone []string
		for _, key := range keys {
			if !lives[key] {
				gone = append(gone, key)
			}
		}
		if len(gone) == 0 {
			return nil
		}
		_, err = s.keys.DeleteMany(ctx, op("_id", op("$in", gone)))
		return err
	})
	if err != nil && !isTransient(err) {
		s.cfg.Logger.Warn("outbox: counters of keys could not be cleaned", "error", err)
	}
}

// livingKeys finds which keys have a delivery, by one index key each.
func livingKeys(keys []string) bson.A {
	return bson.A{
		op("$match", op("key", op("$in", keys))),
		op("$sort", bson.D{{Key: "key", Value: 1}, {Key: "sequence", Value: 1}}),
		op("$group", bson.D{{Key: "_id", Value: "$key"}, {Key: "first", Value: op("$first", "$sequence")}}),
	}
}

// once is a transaction that is not tried again.
func (s *Store) once(ctx context.Context, fn func(ctx context.Context) error) error {
	sess, err := s.client.StartSession()
	if err != nil {
		return err
	}
	defer sess.EndSession(context.WithoutCancel(ctx))
	ctx, cancel := lingering(ctx)
	defer cancel()
	return (&state{store: s, session: sess}).attempt(ctx, fn)
}
