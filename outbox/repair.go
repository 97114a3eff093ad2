package outbox

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A crash between two commands, and a session of the caller's own, can leave a lane
// whose head waits. The mark suspect_since is written together with whatever can do
// that, and a repair follows it up.

const (
	repairEvery = time.Second
	repairPage  = 1000
	sweepEvery  = 5 * time.Minute // for what was edited by hand, and left no mark
)

// repairs is when the Store has looked last; real time, because it is only a pace.
type repairs struct {
	mu      sync.Mutex
	last    time.Time
	swept   time.Time
	sweepAt string // the lane where the slow sweep goes on; empty: it rests
}

// repairIfDue repairs once a second. The caller's own work goes on if it cannot.
func (s *Store) repairIfDue(ctx context.Context) {
	if !s.repairs.mu.TryLock() {
		return // another call does
	}
	defer s.repairs.mu.Unlock()
	now := time.Now()
	if now.Sub(s.repairs.last) < repairEvery {
		return
	}
	s.repairs.last = now
	err := s.repair(ctx)
	if err == nil {
		err = s.sweep(ctx, now)
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("outbox: lanes could not be repaired, the next claims try again", "error", err)
	}
}

// repair looks at the lanes of all suspects, promotes heads that wait, and clears the
// marks where the lane lives by itself: its head can be claimed, and nobody holds one of
// it who could finish without having seen the suspect.
func (s *Store) repair(ctx context.Context) error {
	var after bson.D
	for {
		docs, err := s.find(ctx, s.deliveries, suspectsAfter(after), options.Find().SetLimit(repairPage).
			SetSort(bson.D{{Key: "suspect_since", Value: 1}, {Key: "_id", Value: 1}}).
			SetProjection(bson.D{{Key: "waiting_lane", Value: 1}, {Key: "suspect_since", Value: 1}}))
		if err != nil || len(docs) == 0 {
			return err
		}
		if err := s.repairLanes(ctx, docs); err != nil || len(docs) < repairPage {
			return err
		}
		last := docs[len(docs)-1]
		after = bson.D{{Key: "since", Value: last.Lookup("suspect_since")}, {Key: "id", Value: last.Lookup("_id")}}
	}
}

func suspectsAfter(after bson.D) bson.D {
	if after == nil {
		return op("suspect_since", op("$exists", true))
	}
	since, id := after[0].Value, after[1].Value
	return bson.D{
		{Key: "suspect_since", Value: op("$gte", since)},
		{Key: "$or", Value: bson.A{
			op("suspect_since", op("$gt", since)),
			bson.D{{Key: "suspect_since", Value: since}, {Key: "_id", Value: op("$gt", id)}},
		}},
	}
}

func (s *Store) repairLanes(ctx context.Context, suspects []bson.Raw) error {
	set := make(map[string]bool, len(suspects))
	for _, doc := range suspects {
		if lane := text(doc.Lookup("waiting_lane")); lane != "" {
			set[lane] = true
		}
	}
	views, _, err := s.look(ctx, keysOf(set), nil, "")
	if err != nil {
		return err
	}
	if err := s.promoteWaiting(ctx, views); err != nil {
		return err
	}
	return s.write(ctx, clearing(suspects, views)...)
}

// clearing takes away the marks of suspects whose lanes live. Only the mark that was
// read: one that was made meanwhile is new evidence.
func clearing(suspects []bson.Raw, views map[string]*view) (models []mongo.WriteModel) {
	var marks []bson.RawValue
	ids := make(map[string]bson.A) // by mark
	for _, doc := range suspects {
		v := views[text(doc.Lookup("waiting_lane"))]
		if v != nil && (v.waitingHead() || v.leased()) {
			continue
		}
		mark := doc.Lookup("suspect_since")
		if len(ids[string(mark.Value)]) == 0 {
			marks = append(marks, mark)
		}
		ids[string(mark.Value)] = append(ids[string(mark.Value)], doc.Lookup("_id"))
	}
	for _, mark := range marks {
		models = append(models, mongo.NewUpdateManyModel().
			SetFilter(bson.D{{Key: "_id", Value: op("$in", ids[string(mark.Value)])}, {Key: "suspect_since", Value: mark}}).
			SetUpdate(op("$unset", op("suspect_since", ""))))
	}
	return models
}

// sweep walks all lanes where something waits, a page in each repair, and then rests for
// five minutes.
func (s *Store) sweep(ctx context.Context, now time.Time) error {
	r := &s.repairs
	if r.sweepAt == "" && now.Sub(r.swept) < sweepEvery {
		return nil
	}
	r.swept = now
	docs, err := s.aggregate(ctx, s.deliveries, append(firstOfLanes(op("$gt", r.sweepAt)), op("$limit", repairPage)))
	if err != nil {
		return err
	}
	lanes := make([]string, 0, len(docs))
	for _, doc := range docs {
		lanes = append(lanes, text(doc.Lookup("_id")))
	}
	if err := s.promoteHeads(ctx, lanes); err != nil {
		return err
	}
	if r.sweepAt = ""; len(lanes) == repairPage {
		r.sweepAt = lanes[len(lanes)-1]
	}
	return nil
}
