package mongostore

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// containersAreSound guards an update by pipeline: unlike a classic update, which
// the server refuses, it would write over whatever stands in a field.
var containersAreSound = func() bson.Raw {
	var all bson.A
	for _, c := range containers {
		all = append(all, bson.D{{Key: "$in", Value: bson.A{
			bson.D{{Key: "$type", Value: "$" + c.field}}, bson.A{c.kind, "missing", "null", "undefined"},
		}}})
	}
	return mustEncode(bson.D{{Key: "$and", Value: all}})
}()

// traceNextIsSound guards a step that the server numbers in the same way.
var traceNextIsSound = mustEncode(bson.D{{Key: "$cond", Value: bson.A{
	bson.D{{Key: "$isNumber", Value: "$trace_next"}},
	bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$gte", Value: bson.A{"$trace_next", 0}}},
		bson.D{{Key: "$lt", Value: bson.A{"$trace_next", float64(1 << 62)}}},
		bson.D{{Key: "$eq", Value: bson.A{"$trace_next", bson.D{{Key: "$trunc", Value: "$trace_next"}}}}},
	}}},
	bson.D{{Key: "$in", Value: bson.A{bson.D{{Key: "$type", Value: "$trace_next"}}, bson.A{"missing", "null", "undefined"}}}},
}}})

// emptyNulls makes containers that are null empty, as mendNulls does.
var emptyNulls = func() (set bson.D) {
	for _, c := range containers {
		isNull := bson.D{{Key: "$in", Value: bson.A{bson.D{{Key: "$type", Value: "$" + c.field}}, bson.A{"null", "undefined"}}}}
		set = append(set, bson.E{Key: c.field, Value: bson.D{{Key: "$cond", Value: bson.A{
			isNull, bson.D{{Key: "$literal", Value: c.empty}}, "$" + c.field,
		}}}})
	}
	return set
}()

// whyStuck explains a commit that keeps missing a document at the expected version:
// a damaged field that the filter relies on, else writers that were faster.
func (s *Store) whyStuck(ctx context.Context, a *attempt) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	slot := "commits." + slotKey(a.old)
	projection := append(containerTypes[:len(containerTypes):len(containerTypes)],
		bson.E{Key: "trace_next", Value: 1}, bson.E{Key: "slot", Value: "$" + slot},
		bson.E{Key: "outbox_hi", Value: "$seq_hi.outbox"}, bson.E{Key: "spawn_hi", Value: "$seq_hi.spawn"})
	stuck := &ConflictError{ExecutionID: a.plan.id, Expected: a.old, Actual: a.old}
	doc, err := s.executions.FindOne(ctx, byID(a.plan.id), options.FindOne().SetProjection(projection)).Raw()
	if err != nil {
		return stuck
	}
	r := &reader{id: a.plan.id, doc: doc}
	for _, c := range containers {
		switch found, _ := text(doc.Lookup(c.field)); found {
		case c.kind, "missing", "null", "undefined":
		default:
			r.damaged(c.field, "is "+found+", not "+c.kind)
		}
	}
	r.needs("trace_next", "trace_next", isIndex)
	r.needs("slot", slot, func(v bson.RawValue) bool { return v.Type == bson.TypeObjectID })
	r.needs("outbox_hi", "seq_hi.outbox", isIndex)
	r.needs("spawn_hi", "seq_hi.spawn", isIndex)
	if err := r.failed(); err != nil {
		return err
	}
	if a.old == 0 {
		return &opError{op: "commit", id: a.plan.id, cause: errors.New("the document keeps changing under a first commit")}
	}
	return stuck
}

// nameDamage gives the damaged field that made the server refuse an update, else
// the server's own error. In a transaction null is damage too: the refusal has ended
// the transaction, so nothing can be mended in it.
func (s *Store) nameDamage(ctx context.Context, a *attempt, cause error) error {
	if !mongoerr.HasCode(cause, mongoerr.BadValue, mongoerr.TypeMismatch, mongoerr.PathNotViable) {
		return cause
	}
	ctx, cancel := s.bounded(outside(ctx))
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(a.plan.id), options.FindOne().SetProjection(containerTypes)).Raw()
	if err != nil {
		return cause
	}
	for _, c := range containers {
		if found, _ := text(doc.Lookup(c.field)); found != c.kind && found != "missing" {
			return &DamagedError{ExecutionID: a.plan.id, Field: c.field, Reason: "is " + found + ", not " + c.kind, cause: cause}
		}
	}
	return cause
}

// needs names the field that was projected as key, unless it is missing or sound.
func (r *reader) needs(key, field string, sound func(bson.RawValue) bool) {
	if v := r.doc.Lookup(key); !missing(v) && !sound(v) {
		r.damaged(field, "is "+typeName(v)+" "+v.String())
	}
}

func isIndex(v bson.RawValue) bool {
	n, ok := wholeNumber(v)
	return ok && n >= 0
}
