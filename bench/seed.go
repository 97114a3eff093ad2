package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// seedStore is the algorithm of harel's MongoStore, the original, line by line in
// Go: its round trips, its updates, its queries, and no index.
type seedStore struct {
	exes     *mongo.Collection
	counters *mongo.Collection
	natural  bool // the collection has indexes that the original lacks: do not use them
}

func newSeed(t *target, db string) *seedStore {
	return &seedStore{exes: t.raw(db, "seed_executions"), counters: t.raw(db, "seed_counters")}
}

const seedTraceMax = 200

type (
	seedEmit struct {
		target string
		event  any
	}
	seedSpawn struct {
		child, rootPath string
		context         any
	}
	seedTimer struct {
		path     string
		schedule bool
		fireAt   float64
	}
	seedChanges struct {
		emits     []seedEmit
		spawns    []seedSpawn
		timers    []seedTimer
		processed string
		trace     bson.D
	}
)

func (s *seedStore) nextSeq(ctx context.Context, name string, count int) (int64, error) {
	var doc struct{ N int64 }
	err := s.counters.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: name}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: count}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&doc)
	return doc.N - int64(count) + 1, err
}

func seedEnc(path string) string { return strings.ReplaceAll(path, ".", "．") }
func seedDec(key string) string  { return strings.ReplaceAll(key, "．", ".") }

// seedEntries are what the seqs were allocated for, step 1.
type seedEntries struct {
	outbox, spawns bson.A
	step           bson.D
}

func (s *seedStore) allocate(ctx context.Context, exe *order, ch seedChanges) (seedEntries, error) {
	e := seedEntries{outbox: bson.A{}, spawns: bson.A{}}
	if len(ch.emits) > 0 {
		base, err := s.nextSeq(ctx, "outbox", len(ch.emits))
		if err != nil {
			return e, err
		}
		for i, emit := range ch.emits {
			event, err := json.Marshal(emit.event)
			if err != nil {
				return e, err
			}
			e.outbox = append(e.outbox, bson.D{{Key: "seq", Value: base + int64(i)}, {Key: "target_id", Value: emit.target}, {Key: "event", Value: string(event)}})
		}
	}
	if len(ch.spawns) > 0 {
		base, err := s.nextSeq(ctx, "spawn", len(ch.spawns))
		if err != nil {
			return e, err
		}
		for i, sp := range ch.spawns {
			e.spawns = append(e.spawns, bson.D{{Key: "seq", Value: base + int64(i)}, {Key: "parent_id", Value: exe.ID},
				{Key: "child_id", Value: sp.child}, {Key: "root_path", Value: sp.rootPath}, {Key: "context", Value: sp.context}})
		}
	}
	if ch.trace != nil {
		index, err := s.nextSeq(ctx, "trace:"+exe.ID, 1)
		if err != nil {
			return e, err
		}
		e.step = append(slices.Clone(ch.trace), bson.E{Key: "index", Value: index - 1})
	}
	return e, nil
}

// commit is the one update by compare-and-swap, or the insert of a new document.
func (s *seedStore) commit(ctx context.Context, exe *order, ch seedChanges) error {
	entries, err := s.allocate(ctx, exe, ch)
	if err != nil {
		return err
	}
	old := exe.Version
	exe.Version = old + 1
	data, err := json.Marshal(exe)
	if err != nil {
		return err
	}
	res, err := s.exes.UpdateOne(ctx, bson.D{{Key: "_id", Value: exe.ID}, {Key: "version", Value: old}}, seedUpdate(exe, data, entries, ch))
	if err != nil {
		return err
	}
	if res.MatchedCount == 1 {
		return nil // CAS won
	}
	existing, err := s.found(ctx, exe.ID)
	if err != nil {
		return err
	}
	if existing == nil && old == 0 {
		_, err := s.exes.InsertOne(ctx, seedDocument(exe, data, entries, ch))
		if !mongo.IsDuplicateKeyError(err) {
			return err
		}
		if existing, err = s.found(ctx, exe.ID); err != nil {
			return err
		}
	}
	exe.Version = old // undo the in-memory bump; the commit did not happen
	return fmt.Errorf("stale write to %s: expected version %d, found %v", exe.ID, old, existing)
}

func (s *seedStore) found(ctx context.Context, id string) (bson.Raw, error) {
	doc, err := s.exes.FindOne(ctx, bson.D{{Key: "_id", Value: id}}, options.FindOne().SetProjection(bson.D{{Key: "version", Value: 1}})).Raw()
	if err == mongo.ErrNoDocuments {
		return nil, nil
	}
	return doc, err
}

func seedUpdate(exe *order, data []byte, e seedEntries, ch seedChanges) bson.D {
	set := bson.D{{Key: "data", Value: string(data)}, {Key: "version", Value: exe.Version}}
	var unset, push bson.D
	for _, op := range ch.timers {
		key := "timers." + seedEnc(op.path)
		if op.schedule {
			set = append(set, bson.E{Key: key, Value: op.fireAt})
		} else {
			unset = append(unset, bson.E{Key: key, Value: ""})
		}
	}
	update := bson.D{{Key: "$set", Value: set}}
	if len(e.outbox) > 0 {
		push = append(push, bson.E{Key: "outbox", Value: bson.D{{Key: "$each", Value: e.outbox}}})
	}
	if len(e.spawns) > 0 {
		push = append(push, bson.E{Key: "spawns", Value: bson.D{{Key: "$each", Value: e.spawns}}})
	}
	if e.step != nil {
		push = append(push, bson.E{Key: "trace", Value: bson.D{{Key: "$each", Value: bson.A{e.step}}, {Key: "$slice", Value: -seedTraceMax}}})
	}
	if push != nil {
		update = append(update, bson.E{Key: "$push", Value: push})
	}
	if ch.processed != "" {
		update = append(update, bson.E{Key: "$addToSet", Value: bson.D{{Key: "processed", Value: ch.processed}}})
	}
	if unset != nil {
		update = append(update, bson.E{Key: "$unset", Value: unset})
	}
	return update
}

func seedDocument(exe *order, data []byte, e seedEntries, ch seedChanges) bson.D {
	trace, processed, timers := bson.A{}, bson.A{}, bson.D{}
	if e.step != nil {
		trace = bson.A{e.step}
	}
	if ch.processed != "" {
		processed = bson.A{ch.processed}
	}
	for _, op := range ch.timers {
		if op.schedule {
			timers = append(timers, bson.E{Key: seedEnc(op.path), Value: op.fireAt})
		}
	}
	return bson.D{
		{Key: "_id", Value: exe.ID}, {Key: "definition_id", Value: exe.DefinitionID}, {Key: "version", Value: exe.Version},
		{Key: "data", Value: string(data)}, {Key: "outbox", Value: e.outbox}, {Key: "spawns", Value: e.spawns},
		{Key: "trace", Value: trace}, {Key: "processed", Value: processed}, {Key: "timers", Value: timers},
	}
}

func (s *seedStore) load(ctx context.Context, id string, exe *order) error {
	var doc struct{ Data string }
	err := s.exes.FindOne(ctx, bson.D{{Key: "_id", Value: id}}, options.FindOne().SetProjection(bson.D{{Key: "data", Value: 1}})).Decode(&doc)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(doc.Data), exe)
}

func (s *seedStore) loadForEvent(ctx context.Context, id, eventID string, exe *order) (bool, error) {
	cursor, err := s.exes.Aggregate(ctx, bson.A{
		bson.D{{Key: "$match", Value: bson.D{{Key: "_id", Value: id}}}},
		bson.D{{Key: "$project", Value: bson.D{{Key: "data", Value: 1}, {Key: "hit", Value: bson.D{{Key: "$in", Value: bson.A{
			eventID, bson.D{{Key: "$ifNull", Value: bson.A{"$processed", bson.A{}}}},
		}}}}}}},
	})
	if err != nil {
		return false, err
	}
	var docs []struct {
		Data string
		Hit  bool
	}
	if err := cursor.All(ctx, &docs); err != nil || len(docs) == 0 {
		return false, err
	}
	return docs[0].Hit, json.Unmarshal([]byte(docs[0].Data), exe)
}

type seedEntry struct {
	Seq      int64
	TargetID string `bson:"target_id"`
	Event    string
	ParentID string `bson:"parent_id"`
	ChildID  string `bson:"child_id"`
	RootPath string `bson:"root_path"`
	Context  bson.Raw
}

// pending is pending_outbox and pending_spawns, by the name of the array.
func (s *seedStore) pending(ctx context.Context, array string) ([]seedEntry, error) {
	cursor, err := s.exes.Find(ctx, bson.D{{Key: array, Value: bson.D{{Key: "$exists", Value: true}, {Key: "$ne", Value: bson.A{}}}}},
		options.Find().SetProjection(bson.D{{Key: array, Value: 1}}))
	if err != nil {
		return nil, err
	}
	var entries []seedEntry
	for cursor.Next(ctx) {
		var doc map[string]bson.RawValue
		if err := cursor.Decode(&doc); err != nil {
			return nil, err
		}
		var some []seedEntry
		if err := doc[array].Unmarshal(&some); err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	slices.SortFunc(entries, func(a, b seedEntry) int { return cmp.Compare(a.Seq, b.Seq) })
	return entries, cursor.Err()
}

func (s *seedStore) ackOutbox(ctx context.Context, seq int64) error {
	opts := options.UpdateOne()
	if s.natural {
		opts.SetHint(bson.D{{Key: "$natural", Value: 1}})
	}
	_, err := s.exes.UpdateOne(ctx, bson.D{{Key: "outbox.seq", Value: seq}},
		bson.D{{Key: "$pull", Value: bson.D{{Key: "outbox", Value: bson.D{{Key: "seq", Value: seq}}}}}}, opts)
	return err
}

type seedDue struct {
	id, path string
	fireAt   float64
}

func (s *seedStore) dueTimers(ctx context.Context, now float64) ([]seedDue, error) {
	cursor, err := s.exes.Find(ctx, bson.D{{Key: "timers", Value: bson.D{{Key: "$exists", Value: true}, {Key: "$ne", Value: bson.D{}}}}},
		options.Find().SetProjection(bson.D{{Key: "timers", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var due []seedDue
	for cursor.Next(ctx) {
		var doc struct {
			ID     string `bson:"_id"`
			Timers map[string]float64
		}
		if err := cursor.Decode(&doc); err != nil {
			return nil, err
		}
		for key, fireAt := range doc.Timers {
			if fireAt <= now {
				due = append(due, seedDue{doc.ID, seedDec(key), fireAt})
			}
		}
	}
	slices.SortFunc(due, func(a, b seedDue) int { return cmp.Compare(a.fireAt, b.fireAt) })
	return due, cursor.Err()
}

// list is list_executions by status, from an offset.
func (s *seedStore) list(ctx context.Context, status string, offset int64, limit int) error {
	cursor, err := s.exes.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "version", Value: 1}, {Key: "data", Value: 1}}).
		SetSort(bson.D{{Key: "_id", Value: 1}}).SetSkip(offset))
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(ctx) }()
	found := 0
	for found < limit && cursor.Next(ctx) {
		var doc struct{ Data string }
		if err := cursor.Decode(&doc); err != nil {
			return err
		}
		var summary struct{ Status string }
		if err := json.Unmarshal([]byte(doc.Data), &summary); err != nil {
			return err
		}
		if status == "" || summary.Status == status {
			found++
		}
	}
	return cursor.Err()
}
