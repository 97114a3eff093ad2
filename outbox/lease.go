package outbox

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Extend makes a delivery's lease last for the given time from now, and never shortens
// it; d.Until moves along. A lease that has run out and that nobody took is extended too,
// unless its lane was given to another meanwhile.
// Returns ErrLeaseLost if the token does not hold it; ErrInvalid if d has no id or no
// token, by is not positive or above a year, or ctx has an open transaction.
func (s *Store) Extend(ctx context.Context, d *Delivery, by time.Duration) error {
	if err := d.valid(); err != nil {
		return at("Delivery.", err)
	}
	if by <= 0 || by > maxLeaseFor {
		return invalid("by", "is not between 0 and a year")
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	lost, err := s.extend(ctx, []*Delivery{d}, by)
	if err == nil && len(lost) > 0 {
		err = leaseLost(d.ID)
	}
	return wrapErr("extend", err)
}

// extend renews leases and looks at their lanes: while one had run out, another of its
// lane may have been given to somebody else.
func (s *Store) extend(ctx context.Context, ds []*Delivery, by time.Duration) (lost []*Delivery, err error) {
	now := s.now()
	until := now.Add(by).Truncate(time.Millisecond)
	byToken := make(map[string][]string)
	for _, d := range ds {
		byToken[d.Token] = append(byToken[d.Token], d.ID)
	}
	var models []mongo.WriteModel
	for token, ids := range byToken {
		models = append(models, mongo.NewUpdateManyModel().SetFilter(heldBy(ids, token)).
			SetUpdate(op("$max", op("due_at", until))))
	}
	writeErr := s.write(ctx, models...)
	if writeErr != nil && !isOpen(writeErr) {
		return nil, writeErr
	}
	ends, err := s.ends(ctx, ds, writeErr)
	if err != nil {
		return nil, err
	}
	views, _, err := s.look(ctx, doubtful(ds, ends, s.now().Add(by/4)), nil, "")
	if err != nil {
		return nil, err
	}
	var shared []mongo.WriteModel
	for _, d := range ds {
		end, there := ends[d.ID]
		switch v := views[end.lane]; {
		case !there || end.token != d.Token || end.status != processing:
			lost = append(lost, d)
		case end.dueAt.Before(until) && writeErr != nil:
			err = writeErr // held still, but no longer than before
		case end.dueAt.Before(until):
			lost = append(lost, d)
		case end.lane != "" && v != nil && v.heldByOther(end, now):
			lost = append(lost, d)
			shared = append(shared, mongo.NewUpdateOneModel().SetFilter(heldBy([]string{d.ID}, d.Token)).
				SetUpdate(bson.D{{Key: "$set", Value: op("due_at", now)}, {Key: "$unset", Value: op("token", "")}}))
		default:
			d.Until, d.DueAt = end.dueAt, end.dueAt
		}
	}
	if sharedErr := s.write(ctx, shared...); sharedErr != nil {
		err = sharedErr
	}
	return lost, err
}

// ends reads deliveries back after a write.
func (s *Store) ends(ctx context.Context, ds []*Delivery, writeErr error) (map[string]stored, error) {
	ids := make([]string, 0, len(ds))
	for _, d := range ds {
		ids = append(ids, d.ID)
	}
	from, err := s.readBack(ctx, writeErr)
	if err != nil {
		return nil, err
	}
	docs, err := s.find(ctx, from, op("_id", op("$in", ids)))
	ends := make(map[string]stored, len(docs))
	for _, doc := range docs {
		d := readStored(doc)
		ends[d.id] = d
	}
	return ends, err
}

// doubtful are the lanes that may have been given to another: those whose lease could
// have run out, by another's clock, before it was renewed. While it lasts no claim keeps
// another of its lane, though one may be leased for a moment, until it gives way.
func doubtful(ds []*Delivery, ends map[string]stored, soon time.Time) []string {
	lanes := map[string]bool{}
	for _, d := range ds {
		if lane := ends[d.ID].lane; lane != "" && d.Until.Before(soon) {
			lanes[lane] = true
		}
	}
	return keysOf(lanes)
}

// heldByOther is whether another one of the lane is under a live lease that may be kept.
// One after own is given way for certain, unless own was requeued: it has been unfinished
// since before the other came.
func (v *view) heldByOther(own stored, now time.Time) bool {
	for _, d := range v.active {
		if d.id != own.id && d.status == processing && d.dueAt.After(now) && (d.sequence < own.sequence || own.requeues > 0) {
			return true
		}
	}
	return false
}

func heldBy(ids []string, token string) bson.D {
	return bson.D{{Key: "_id", Value: op("$in", ids)}, {Key: "status", Value: processing}, {Key: "token", Value: token}}
}

// Release gives a delivery up as if it had never been claimed: the attempt does not
// count, and it is due as before.
// Returns ErrLeaseLost, and nothing is changed, if its token does not hold it; ErrInvalid
// if it has no id or no token, or ctx has an open transaction.
func (s *Store) Release(ctx context.Context, d *Delivery) error {
	return s.putBack(ctx, "release", d, released())
}

// released makes a delivery as if it had not been claimed.
func released() bson.D {
	return bson.D{
		{Key: "due_at", Value: availableAt()},
		{Key: "attempts", Value: op("$max", bson.A{int64(0), op("$subtract", bson.A{"$attempts", int64(1)})})},
	}
}

// Retry gives a delivery up for a while; later ones of its key wait for it. 0 makes it
// due at once. The attempt counts. cause, which may be nil, stays with it. It is called
// reschedule elsewhere.
// Returns ErrLeaseLost, and nothing is changed, if its token does not hold it; ErrInvalid
// if it has no id or no token, after is negative or above a year, or ctx has an open
// transaction.
func (s *Store) Retry(ctx context.Context, d *Delivery, after time.Duration, cause error) error {
	return s.retry(ctx, d, after, cause)
}

func (s *Store) retry(ctx context.Context, d *Delivery, after time.Duration, cause error, more ...bson.E) error {
	if after < 0 || after > maxLeaseFor {
		return invalid("after", "is not between 0 and a year")
	}
	due := s.now().Add(after).Truncate(time.Millisecond)
	set := append(bson.D{{Key: "available_at", Value: due}, {Key: "due_at", Value: due}}, more...)
	if text := causeText(cause); text != "" {
		set = append(set, bson.E{Key: "last_error", Value: op("$literal", text)})
	}
	return s.putBack(ctx, "retry", d, set)
}

// putBack makes a delivery pending again. Its lane stays behind it. Its token stays too,
// until the next claim: a lost reply is settled by it.
func (s *Store) putBack(ctx context.Context, what string, d *Delivery, set bson.D) error {
	if err := d.valid(); err != nil {
		return at("Delivery.", err)
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	lost, err := s.putBackAll(ctx, []*Delivery{d}, set)
	if err == nil && len(lost) > 0 {
		err = leaseLost(d.ID)
	}
	return wrapErr(what, err)
}

// putBackAll is putBack for many, in one command. It tells which were not held.
func (s *Store) putBackAll(ctx context.Context, ds []*Delivery, set bson.D) (lost []*Delivery, err error) {
	update := bson.A{op("$set", append(bson.D{{Key: "status", Value: pending}}, set...))}
	models := make([]mongo.WriteModel, 0, len(ds))
	for _, d := range ds {
		models = append(models, mongo.NewUpdateOneModel().SetFilter(heldBy([]string{d.ID}, d.Token)).SetUpdate(update))
	}
	matched, err := s.bulk(ctx, models)
	for _, d := range ds {
		s.front.lower(d.Message.NotBefore) // or later
	}
	if err == nil && matched == int64(len(ds)) || err != nil && !isOpen(err) {
		return nil, err
	}
	settling, cancel := patient(ctx, settleFor)
	defer cancel()
	ends, readErr := s.ends(settling, ds, err)
	if readErr != nil {
		return nil, unknownOutcome("give back deliveries", orElse(err, readErr), ctx.Err())
	}
	for _, d := range ds {
		switch end := ends[d.ID]; {
		case end.token == d.Token && end.status == pending: // done, and nobody has claimed it since
		case end.token == d.Token && end.status == processing && err != nil:
			return nil, unknownOutcome("give back deliveries", err, ctx.Err())
		default:
			lost = append(lost, d)
		}
	}
	return lost, nil
}
