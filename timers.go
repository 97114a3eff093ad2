package mongostore

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// DueTimers returns the timers that fire at now or before, the earliest first, at
// most limit; 0 is 100. It removes nothing: deliver, then DeleteTimer. Documents
// that cannot be read are left out and told to Config.OnDamaged. Timers that harel
// armed are found after Adopt. One round trip in the steady state.
// Returns ErrInvalid if limit is negative.
func (s *Store) DueTimers(ctx context.Context, now time.Time, limit int) ([]Timer, error) {
	limit, err := validLimit("limit", limit)
	if err != nil {
		return nil, err
	}
	ctx = outside(ctx)
	for documents := s.timersPer.documentsFor(limit); ; {
		docs, err := s.dueDocuments(ctx, toSeconds(now), limit, documents)
		if err != nil {
			return nil, wrapErr("read due timers", "", err)
		}
		due, bound, stale, unreadable := s.decodeTimers(docs)
		if len(stale) > 0 {
			if err := s.mendTimerAt(ctx, stale, toSeconds(now)); err != nil {
				return nil, wrapErr("mend timer_at", "", err)
			}
		}
		slices.SortStableFunc(due, func(a, b Timer) int { return a.FireAt.Compare(b.FireAt) })
		complete := len(docs) < documents || len(docs)-unreadable > limit && len(stale) == 0
		if complete || len(due) >= limit && toSeconds(due[limit-1].FireAt) <= bound {
			s.timersPer.saw(len(due), len(docs)-len(stale)-unreadable)
			return due[:min(limit, len(due))], nil
		}
		documents = min(2*documents, limit+1+unreadable)
	}
}

// dueDocuments ships the due timers alone, however many are armed beside them.
func (s *Store) dueDocuments(ctx context.Context, now float64, limit, documents int) ([]bson.Raw, error) {
	return s.find(ctx, bson.D{{Key: "timer_at", Value: bson.D{{Key: "$lte", Value: now}}}},
		options.Find().SetProjection(bson.D{{Key: "timer_at", Value: 1}, {Key: "timers", Value: dueExpression(now, limit)}}).
			SetSort(bson.D{{Key: "timer_at", Value: 1}}).SetLimit(int64(documents)))
}

// dueExpression gives the earliest due timers as an array of {k, v}, and after them
// one that is no time, to be told of; where timers is no document, its type.
func dueExpression(now float64, limit int) bson.D {
	those := func(cond bson.D) bson.D {
		return bson.D{{Key: "$filter", Value: bson.D{{Key: "input", Value: timersArray}, {Key: "cond", Value: cond}}}}
	}
	first := func(n int, array bson.D) bson.D { return bson.D{{Key: "$slice", Value: bson.A{array, n}}} }
	isDue := bson.D{{Key: "$and", Value: bson.A{isTime("$$this.v"), bson.D{{Key: "$lte", Value: bson.A{"$$this.v", now}}}}}}
	sorted := bson.D{{Key: "$sortArray", Value: bson.D{{Key: "input", Value: those(isDue)}, {Key: "sortBy", Value: bson.D{{Key: "v", Value: 1}}}}}}
	wrong := those(bson.D{{Key: "$not", Value: bson.A{isTime("$$this.v")}}})
	kind := bson.D{{Key: "$type", Value: "$timers"}}
	return bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$in", Value: bson.A{kind, bson.A{"object", "missing", "null", "undefined"}}}},
		bson.D{{Key: "$concatArrays", Value: bson.A{first(limit, sorted), first(1, wrong)}}},
		kind,
	}}}
}

// timersArray is the timers as {k, v}, none where they are no document.
var timersArray = bson.D{{Key: "$cond", Value: bson.A{
	bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$timers"}}, "object"}}},
	bson.D{{Key: "$objectToArray", Value: "$timers"}},
	bson.A{},
}}}

// decodeTimers reads the due timers. Bound is a time before which no timer of a
// document further on fires; stale names documents that looked due and are not;
// unreadable counts those that no timer can name.
func (s *Store) decodeTimers(docs []bson.Raw) (due []Timer, bound float64, stale []bson.RawValue, unreadable int) {
	for _, doc := range docs {
		r := newReader(doc)
		at, _ := seconds(doc.Lookup("timer_at"))
		bound = max(bound, at)
		timers := r.dueTimers()
		switch {
		case r.err != nil && r.err.Field == "_id":
			unreadable++
			timers = nil
		case len(timers) == 0 || toSeconds(timers[0].FireAt) > at+nanosecond:
			stale = append(stale, doc.Lookup("_id")) // its place in the order is that of a timer that is gone
		}
		due = append(due, timers...)
		s.reportDamage(r.failed())
	}
	return due, bound, stale, unreadable
}

// dueTimers reads what dueExpression shipped.
func (r *reader) dueTimers() (due []Timer) {
	if kind, ok := r.doc.Lookup("timers").StringValueOK(); ok {
		r.damaged("timers", "is "+kind+", not a document")
		return nil
	}
	for _, e := range r.elements("timers") {
		key, _ := e.Lookup("k").StringValueOK()
		if t, ok := r.timer(key, e.Lookup("v")); ok {
			due = append(due, t)
		}
	}
	return due
}

func (r *reader) timer(key string, v bson.RawValue) (Timer, bool) {
	at, ok := seconds(v)
	if !ok {
		r.damaged("timers."+key, "is not a time in seconds: "+v.String())
		return Timer{}, false
	}
	return Timer{ExecutionID: r.id, Path: decodePath(key), FireAt: fromSeconds(at)}, true
}

// mendTimerAt makes a lower bound true that a cancelled or deleted timer left
// behind, on the server, from what stands there at that moment.
func (s *Store) mendTimerAt(ctx context.Context, ids []bson.RawValue, now float64) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, err := s.executions.UpdateMany(ctx,
		bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}, {Key: "timer_at", Value: bson.D{{Key: "$lte", Value: now}}}},
		bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "timer_at", Value: earliestTimer}}}}})
	return err
}

// earliestTimerOrNull is the earliest armed time; null: none is.
var earliestTimerOrNull = mustEncode(bson.D{{Key: "$min", Value: bson.D{{Key: "$map", Value: bson.D{
	{Key: "input", Value: bson.D{{Key: "$filter", Value: bson.D{
		{Key: "input", Value: timersArray}, {Key: "cond", Value: isTime("$$this.v")},
	}}}},
	{Key: "in", Value: bson.D{{Key: "$toDouble", Value: "$$this.v"}}},
}}}}})

// earliestTimer is the earliest armed time, or no field at all.
var earliestTimer = mustEncode(bson.D{{Key: "$ifNull", Value: bson.A{earliestTimerOrNull, "$$REMOVE"}}})

// DeleteTimer removes a timer that still fires at t.FireAt; one that was armed anew
// for another time, or is gone, is left alone without an error. With a Token it
// needs that lease. Joins an open transaction in ctx.
// Returns ErrLeaseLost if t has a Token and its lease is lost.
// Returns ErrInvalid if t has no execution id, or a time out of range.
func (s *Store) DeleteTimer(ctx context.Context, t Timer) error {
	if err := validText("Timer.ExecutionID", t.ExecutionID); err != nil {
		return err
	}
	if err := optionalText("Timer.Path", t.Path); err != nil {
		return err
	}
	if !fitsTime(t.FireAt) {
		return invalid("Timer.FireAt", "is outside the years 1 to 9999")
	}
	inTransaction, err := joins(ctx)
	if err != nil {
		return err
	}
	err = s.deleteTimer(ctx, t)
	if isOpen(err) && !inTransaction && ctx.Err() == nil {
		err = s.deleteTimer(ctx, t) // to do so again changes nothing
	}
	return wrapErr("delete a timer of", t.ExecutionID, err)
}

func (s *Store) deleteTimer(ctx context.Context, t Timer) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	for _, key := range pathKeys(t.Path) {
		filter := append(byID(t.ExecutionID), bson.E{Key: "timers." + key, Value: stillAt(toSeconds(t.FireAt))})
		if t.Token != "" {
			filter = append(filter, bson.E{Key: "lease.token", Value: t.Token})
		}
		res, err := s.executions.UpdateOne(ctx, filter, bson.D{{Key: "$unset", Value: bson.D{{Key: "timers." + key, Value: ""}}}})
		if err != nil || res.MatchedCount > 0 {
			return err
		}
	}
	if t.Token == "" {
		return nil
	}
	return s.checkToken(ctx, t.ExecutionID, t.Token)
}

// stillAt is the condition that a timer fires at a time.
func stillAt(at float64) bson.D {
	return bson.D{{Key: "$gte", Value: at - nanosecond}, {Key: "$lte", Value: at + nanosecond}}
}

// checkToken tells a lost lease from a timer that is simply gone.
func (s *Store) checkToken(ctx context.Context, id, token string) error {
	n, err := s.executions.CountDocuments(ctx, append(byID(id), bson.E{Key: "lease.token", Value: token}))
	if err == nil && n == 0 {
		return &LeaseLostError{IDs: []string{id}}
	}
	return err
}
