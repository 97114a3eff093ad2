package mongostore

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A commit that both acks from and emits into one array cannot be a classic
// update: the server refuses $pull and $push on one path (error 40). Such a commit
// is the same update as a pipeline, at about twice the cost. So is one that cuts an
// array which another writer let grow: a classic $slice is quadratic in what it cuts
// (60,000 ids took longer than any timeout). And so is one whose trace step keeps
// losing its number to AppendTrace: there the server gives it.

func (a *attempt) needsPipeline() bool {
	cuts := a.mode == update && !a.base.current && (a.processed != "" && !a.alreadyProcessed || a.trace != nil)
	return cuts || a.serverTrace || len(a.acks.outbox) > 0 && len(a.emits) > 0 || len(a.acks.spawns) > 0 && len(a.spawns) > 0
}

// soundness is what a pipeline must find, because it would write over anything.
func (a *attempt) soundness() bson.Raw {
	if !a.serverTrace {
		return containersAreSound
	}
	return mustEncode(bson.D{{Key: "$and", Value: bson.A{containersAreSound, traceNextIsSound}}})
}

func (s *Store) pipeline(a *attempt) any {
	stages := bson.A{bson.D{{Key: "$set", Value: emptyNulls}}}
	if a.serverTrace {
		stages = append(stages, bson.D{{Key: "$set", Value: bson.D{{Key: "trace_next", Value: nextTraceIndex}}}})
	}
	stages = append(stages, bson.D{{Key: "$set", Value: s.pipelineSet(a)}})
	gone, dollars := s.pipelineUnset(a)
	if len(gone) > 0 {
		stages = append(stages, bson.D{{Key: "$unset", Value: gone}})
	}
	if len(dollars) > 0 {
		stages = append(stages, unsetDollarTimers(dollars))
	}
	return stages
}

// pipelineSet puts every value behind $literal: text that starts with a dollar is text.
func (s *Store) pipelineSet(a *attempt) bson.D {
	start, plain := int32(0), []byte{0, 0, 0, 0}
	var set bson.D
	elements, _ := end(s.appendSet(plain, a), start).Elements()
	for _, e := range elements {
		if key := e.Key(); key != "outbox" && key != "spawns" && !(a.serverTrace && key == "trace_next") { // made below
			set = append(set, bson.E{Key: key, Value: literal(e.Value())})
		}
	}
	set = append(set, pipelineArray("outbox", a.acks.outbox, literal(array(a.appendOutbox)), 0))
	set = append(set, pipelineArray("spawns", a.acks.spawns, literal(array(a.appendSpawns)), 0))
	switch {
	case a.serverTrace:
		set = append(set, pipelineArray("trace", nil, bson.A{numberedStep(a.trace)}, s.cfg.TraceMax))
		set = append(set, bson.E{Key: "trace_next", Value: narrow(afterNumbered)})
	case a.trace != nil:
		set = append(set, pipelineArray("trace", nil, literal(array(a.appendTrace)), s.cfg.TraceMax))
	}
	if a.processed != "" && !a.alreadyProcessed {
		set = append(set, pipelineArray("processed", nil, literal(array(a.appendProcessed)), s.cfg.ProcessedMax))
	}
	elements, _ = end(s.appendMin([]byte{0, 0, 0, 0}, a), start).Elements()
	for _, e := range elements {
		set = append(set, bson.E{Key: e.Key(), Value: bson.D{{Key: "$min", Value: bson.A{"$" + e.Key(), e.Value()}}}})
	}
	return set
}

// pipelineArray is the array without the acked numbers, with the new items at its
// end, and only the newest keep of them.
func pipelineArray(field string, acked []int64, items any, keep int) bson.E {
	kept := any(orEmptyArray("$" + field))
	if len(acked) > 0 {
		kept = bson.D{{Key: "$filter", Value: bson.D{
			{Key: "input", Value: kept},
			{Key: "cond", Value: bson.D{{Key: "$not", Value: bson.A{bson.D{{Key: "$in", Value: bson.A{"$$this.seq", acked}}}}}}},
		}}}
	}
	whole := any(bson.D{{Key: "$concatArrays", Value: bson.A{kept, items}}})
	if keep > 0 {
		whole = bson.D{{Key: "$slice", Value: bson.A{whole, -keep}}}
	}
	return bson.E{Key: field, Value: whole}
}

// pipelineUnset names the fields to remove, and apart from them the timers whose
// key starts with a dollar, as harel writes such a path: $unset refuses these.
func (s *Store) pipelineUnset(a *attempt) (gone, dollars []string) {
	elements, _ := end(s.appendUnset([]byte{0, 0, 0, 0}, a), 0).Elements()
	for _, e := range elements {
		if key, found := strings.CutPrefix(e.Key(), "timers.$"); found {
			dollars = append(dollars, "$"+key)
			continue
		}
		gone = append(gone, e.Key())
	}
	return gone, dollars
}

func unsetDollarTimers(keys []string) bson.D {
	rest := any("$timers")
	for _, key := range keys {
		rest = bson.D{{Key: "$unsetField", Value: bson.D{
			{Key: "field", Value: bson.D{{Key: "$literal", Value: key}}}, {Key: "input", Value: rest},
		}}}
	}
	isDocument := bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$timers"}}, "object"}}}
	return bson.D{{Key: "$set", Value: bson.D{{Key: "timers", Value: bson.D{{Key: "$cond", Value: bson.A{isDocument, rest, "$timers"}}}}}}}
}

func literal(v bson.RawValue) bson.D { return bson.D{{Key: "$literal", Value: v}} }

// orEmptyArray is the array at path, or an empty one where there is none.
func orEmptyArray(path string) bson.D {
	return bson.D{{Key: "$cond", Value: bson.A{bson.D{{Key: "$isArray", Value: path}}, path, bson.A{}}}}
}

func array(items func([]byte) []byte) bson.RawValue {
	return bson.RawValue{Type: bson.TypeArray, Value: end(items([]byte{0, 0, 0, 0}), 0)}
}
