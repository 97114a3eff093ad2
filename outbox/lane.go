package outbox

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/rawdocs"
)

// A lane is the deliveries of one handler and key. Only its head is in the claim index;
// what comes after it waits outside, until it is promoted.

// laneOf is the name of a lane; of a delivery without a key it is empty.
func laneOf(handler, key string) string {
	if key == "" {
		return ""
	}
	return handler + ":" + key
}

// view is one lane at one time.
type view struct {
	next   string    // the first that waits; empty: none
	number int64     // next's
	due    time.Time // from when next is due
	active []stored  // pending and processing
}

// waitingHead is whether next stands before all that is active: then nobody would ever
// claim it.
func (v *view) waitingHead() bool {
	if v.next == "" {
		return false
	}
	for _, d := range v.active {
		if d.sequence <= v.number {
			return false
		}
	}
	return true
}

// leased is whether the lane has a delivery that a worker holds, or held.
func (v *view) leased() bool {
	for _, d := range v.active {
		if d.status == processing {
			return true
		}
	}
	return false
}

// look reads lanes in one round trip, flat in what waits; everything is decided on it.
// With it come the deliveries without a key, of those ids, that the token holds.
func (s *Store) look(ctx context.Context, lanes, unkeyed []string, token string) (map[string]*view, []stored, error) {
	views := make(map[string]*view, len(lanes))
	for _, lane := range lanes {
		views[lane] = &view{}
	}
	if len(lanes)+len(unkeyed) == 0 {
		return views, nil, nil
	}
	docs, err := s.aggregate(ctx, s.deliveries, s.lookPipeline(lanes, unkeyed, token))
	if err != nil {
		return nil, nil, err
	}
	var loose []stored
	for _, doc := range docs {
		if doc.Lookup("first").Type != 0 {
			v := views[text(doc.Lookup("_id"))]
			v.next, v.due = text(doc.Lookup("first")), date(doc.Lookup("due"))
			var numbered bool
			if v.number, numbered = doc.Lookup("sequence").AsInt64OK(); !numbered {
				v.number = math.MaxInt64 // damaged: it must not hold up what can be read
			}
			continue
		}
		d := readStored(doc)
		if v := views[d.lane]; v != nil && d.lane != "" {
			v.active = append(v.active, d)
		} else {
			loose = append(loose, d)
		}
	}
	return views, loose, nil
}

func (s *Store) lookPipeline(lanes, unkeyed []string, token string) bson.A {
	union := func(match bson.D) bson.D {
		return op("$unionWith", bson.D{{Key: "coll", Value: s.deliveries.Name()}, {Key: "pipeline", Value: bson.A{op("$match", match)}}})
	}
	held := bson.D{{Key: "_id", Value: op("$in", unkeyed)}, {Key: "token", Value: token}}
	if len(lanes) == 0 {
		return bson.A{op("$match", held)}
	}
	pipeline := append(firstOfLanes(op("$in", lanes)), union(op("active_lane", op("$in", lanes))))
	if len(unkeyed) > 0 {
		pipeline = append(pipeline, union(held))
	}
	return pipeline
}

// firstOfLanes finds the first that waits of each lane, by one index key a lane.
func firstOfLanes(lanes bson.D) bson.A {
	return bson.A{
		op("$match", op("waiting_lane", lanes)),
		op("$sort", bson.D{{Key: "waiting_lane", Value: 1}, {Key: "sequence", Value: 1}}),
		op("$group", bson.D{
			{Key: "_id", Value: "$waiting_lane"},
			{Key: "sequence", Value: op("$first", "$sequence")}, {Key: "first", Value: op("$first", "$_id")},
			{Key: "due", Value: op("$first", "$available_at")},
		}),
	}
}

// promoteHeads lets the heads of lanes be claimed where they wait, and wakes who works
// here.
func (s *Store) promoteHeads(ctx context.Context, lanes []string) error {
	if len(lanes) == 0 {
		return nil
	}
	views, _, err := s.look(ctx, lanes, nil, "")
	if err != nil {
		return err
	}
	return s.promoteWaiting(ctx, views)
}

// promoteIdle is promoteHeads for what was just appended: where anything of the lane is
// active, whoever finishes that sees what waits.
func (s *Store) promoteIdle(ctx context.Context, lanes []string) error {
	if len(lanes) == 0 {
		return nil
	}
	busy, err := s.busyLanes(ctx, lanes)
	if err != nil {
		return err
	}
	idle := slices.DeleteFunc(lanes, func(lane string) bool { return busy[lane] })
	return s.promoteHeads(ctx, idle)
}

func (s *Store) promoteWaiting(ctx context.Context, views map[string]*view) error {
	var heads []string
	var first time.Time
	for _, v := range views {
		if !v.waitingHead() {
			continue
		}
		if len(heads) == 0 || v.due.Before(first) {
			first = v.due
		}
		heads = append(heads, v.next)
	}
	if len(heads) == 0 {
		return nil
	}
	err := s.write(ctx, promotion(heads))
	s.front.lower(first)
	if err != nil {
		return err
	}
	handlers := make(map[string]bool)
	for _, id := range heads {
		handler, _, _ := strings.Cut(id, ":")
		handlers[handler] = true
	}
	s.listeners.wake(keysOf(handlers))
	return nil
}

// promotion moves deliveries from waiting into the claim index. One too many does no
// harm, claims look again; one too few would never be claimed.
func promotion(ids []string) mongo.WriteModel {
	return mongo.NewUpdateManyModel().
		SetFilter(bson.D{{Key: "_id", Value: op("$in", ids)}, {Key: "status", Value: waiting}}).
		SetUpdate(bson.A{
			op("$set", bson.D{{Key: "status", Value: pending}, {Key: "due_at", Value: availableAt()}, {Key: "active_lane", Value: "$waiting_lane"}}),
			op("$unset", bson.A{"waiting_lane", "suspect_since"}),
		})
}

// availableAt is the field; where it is damaged, always: without a date nothing is ever due.
func availableAt() bson.D {
	isDate := op("$eq", bson.A{op("$type", "$available_at"), "date"})
	return op("$cond", bson.A{isDate, "$available_at", time.UnixMilli(0)})
}

// write sends updates as one command, in order.
func (s *Store) write(ctx context.Context, models ...mongo.WriteModel) error {
	_, err := s.bulk(ctx, models)
	return err
}

func (s *Store) bulk(ctx context.Context, models []mongo.WriteModel) (matched int64, err error) {
	if len(models) == 0 {
		return 0, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := s.deliveries.BulkWrite(ctx, models)
	if err != nil {
		return 0, err
	}
	return res.MatchedCount, nil
}

// readBack is where to read what became of a write that ended with err. After a lost
// reply the newest state may show what a primary that is cut off will lose again, so it is
// what the majority has, once it has all that was written before: an update of nothing
// waits for that.
func (s *Store) readBack(ctx context.Context, err error) (*mongo.Collection, error) {
	if err == nil {
		return s.deliveries, nil
	}
	nothing := mongo.NewUpdateOneModel().SetFilter(op("_id", "")).SetUpdate(op("$set", op("status", "")))
	return s.durables, s.write(ctx, nothing)
}

func (s *Store) aggregate(ctx context.Context, coll *mongo.Collection, pipeline bson.A) (docs []bson.Raw, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	cur, err := coll.Aggregate(ctx, pipeline)
	if err == nil {
		docs, err = rawdocs.All(ctx, cur)
	}
	return docs, err
}

func (s *Store) find(ctx context.Context, coll *mongo.Collection, filter any, opts ...options.Lister[options.FindOptions]) (docs []bson.Raw, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	cur, err := coll.Find(ctx, filter, opts...)
	if err == nil {
		docs, err = rawdocs.All(ctx, cur)
	}
	return docs, err
}
