package mongostore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// AppendTrace adds one step to the timeline of an execution, outside of a commit,
// and keeps the newest Config.TraceMax. The step is any value that encodes as a
// BSON document; an index field that it has is kept, else it gets the next one. An
// execution that was not committed yet keeps its steps for the first commit, and is
// not found by Load until then. One round trip. A lost reply is not repeated: the
// step may be there or not.
// Returns ErrInvalid if id or step is not valid, or ctx has an open transaction.
// Returns ErrUnknownOutcome if the reply was lost.
// Returns ErrTooLarge if the document would pass 16 MiB.
// Returns ErrDamaged if the stored trace is not an array; it stays as it is.
func (s *Store) AppendTrace(ctx context.Context, id string, step any) error {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	if err := validText("id", id); err != nil {
		return err
	}
	if isNil(step) {
		return invalid("step", "is nil")
	}
	doc, err := planDocument("step", step)
	if err != nil {
		return err
	}
	if given, err := doc.LookupErr("index"); err == nil && !isGivenIndex(given) {
		return invalid("step.index", "is not a whole number from 0 to 2^53-1")
	}
	if err := ctx.Err(); err != nil {
		return wrapErr("append trace to", id, err)
	}
	if len(doc) > maxDocument {
		return tooLarge("append trace to", id, len(doc))
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.appendTrace(ctx, id, doc)
	if mongo.IsDuplicateKeyError(err) { // somebody made the document at the same moment
		res, err = s.appendTrace(ctx, id, doc)
	}
	switch {
	case isOpen(err):
		return &unknownError{id: id, final: true, cause: err}
	case err == nil && res.ModifiedCount+res.UpsertedCount == 0:
		return &DamagedError{ExecutionID: id, Field: "trace", Reason: "is not an array"}
	}
	return wrapErr("append trace to", id, err)
}

func (s *Store) appendTrace(ctx context.Context, id string, step bson.Raw) (*mongo.UpdateResult, error) {
	return s.executions.UpdateOne(ctx, byID(id), tracePipeline(step, s.cfg.TraceMax), options.UpdateOne().SetUpsert(true))
}

// nextTraceIndex is the index of the next step, as the server knows it.
var nextTraceIndex = narrow(bson.D{{Key: "$ifNull", Value: bson.A{
	bson.D{{Key: "$cond", Value: bson.A{isNumber("$trace_next"), "$trace_next", nil}}},
	bson.D{{Key: "$add", Value: bson.A{lastTraceIndex, 1}}},
	0,
}}})

// numberedStep is the step under the index that a stage before has put into trace_next.
func numberedStep(step bson.Raw) bson.D {
	return bson.D{{Key: "$mergeObjects", Value: bson.A{
		bson.D{{Key: "$literal", Value: step}},
		bson.D{{Key: "index", Value: "$trace_next"}},
	}}}
}

// afterNumbered is trace_next behind that step.
var afterNumbered = bson.D{{Key: "$add", Value: bson.A{"$trace_next", 1}}}

// tracePipeline numbers the step on the server, so that one trip is enough.
func tracePipeline(step bson.Raw, keep int) bson.A {
	numbered, after := any(numberedStep(step)), any(afterNumbered)
	if given, err := step.LookupErr("index"); err == nil {
		numbered = bson.D{{Key: "$literal", Value: step}}
		after = "$trace_next"
		if n, ok := wholeNumber(given); ok {
			after = bson.D{{Key: "$max", Value: bson.A{"$trace_next", n + 1}}}
		}
	}
	ring := any(bson.D{{Key: "$concatArrays", Value: bson.A{orEmptyArray("$trace"), bson.A{numbered}}}})
	if keep > 0 {
		ring = bson.D{{Key: "$slice", Value: bson.A{ring, -keep}}}
	}
	set := func(field string, value any) bson.D { // nothing where the trace is of a wrong type
		kept := bson.D{{Key: "$cond", Value: bson.A{traceIsUsable, value, "$" + field}}}
		return bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: kept}}}}
	}
	return bson.A{set("trace_next", nextTraceIndex), set("trace", ring), set("trace_next", narrow(after))}
}

// isGivenIndex: a number must leave room for those that follow it; what is no number
// is kept and counts for nothing.
func isGivenIndex(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		n, ok := wholeNumber(v)
		return ok && n >= 0 && n < 1<<53
	}
	return true
}

// narrow is an int32 where the whole number fits, else an int64, as other drivers write.
func narrow(n any) bson.D {
	return bson.D{{Key: "$convert", Value: bson.D{{Key: "input", Value: n}, {Key: "to", Value: "int"}, {Key: "onError", Value: bson.D{{Key: "$toLong", Value: n}}}}}}
}

// traceIsUsable is whether steps can be appended: to an array, or to nothing.
var traceIsUsable = bson.D{{Key: "$in", Value: bson.A{
	bson.D{{Key: "$type", Value: "$trace"}}, bson.A{"array", "missing", "null", "undefined"},
}}}

// ReadTrace reads the kept steps, oldest first, into steps, a pointer to a slice
// of any type that a BSON document decodes into (by bson tags, else json tags), as
// the driver's Cursor.All does. An unknown execution has none. One round trip.
// Returns ErrInvalid if steps is not a pointer to a slice or id is not valid.
// Returns ErrDamaged if the trace is no array or a step cannot be decoded.
func (s *Store) ReadTrace(ctx context.Context, id string, steps any) error {
	target := reflect.ValueOf(steps)
	if target.Kind() != reflect.Pointer || target.IsNil() || target.Elem().Kind() != reflect.Slice {
		return invalid("steps", fmt.Sprintf("is a %T, not a pointer to a slice", steps))
	}
	if err := validText("id", id); err != nil {
		return err
	}
	ctx, cancel := s.bounded(outside(ctx))
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(id), options.FindOne().SetProjection(bson.D{{Key: "trace", Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		doc, err = emptyDocument, nil
	}
	if err != nil {
		return wrapErr("read trace of", id, err)
	}
	return decodeSteps(id, doc, target.Elem())
}

func decodeSteps(id string, doc bson.Raw, target reflect.Value) error {
	r := &reader{id: id, doc: doc}
	elements := r.elements("trace")
	if err := r.failed(); err != nil {
		return err
	}
	slice := reflect.MakeSlice(target.Type(), len(elements), len(elements))
	for i, e := range elements {
		into := slice.Index(i).Addr().Interface()
		if raw, ok := into.(*bson.Raw); ok {
			*raw = bytes.Clone(e)
			continue
		}
		if err := decodeBSON(e, into); err != nil {
			return &DamagedError{ExecutionID: id, Field: fmt.Sprintf("trace.%d", i), Reason: "cannot be decoded: " + err.Error(), cause: err}
		}
	}
	target.Set(slice)
	return nil
}
