package main

import (
	"context"
	"encoding/json"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The floor: the least that a program must do with the driver to write the same,
// by the same write concern. Everything is encoded beforehand, and the collection
// has no secondary index.

// floor holds documents of its own and what to write into them.
type floor struct {
	coll     *mongo.Collection
	ids      []string
	versions []int64
	data     [2]string // in turn: setting a field to what it holds writes nothing
	entry    bson.Raw  // of the outbox
	spawn    bson.Raw
	step     bson.Raw
}

func newFloor(coll *mongo.Collection, text int) *floor {
	event, err := json.Marshal(anEvent())
	must(err)
	o := newOrder(newID(), text)
	data := [2]string{encoded(o)}
	o.Total++
	data[1] = encoded(o)
	return &floor{
		coll: coll,
		data: data,
		entry: mustBSON(bson.D{{Key: "seq", Value: int32(1)}, {Key: "target_id", Value: "billing-7"},
			{Key: "event", Value: string(event)}}),
		spawn: mustBSON(bson.D{{Key: "seq", Value: int32(1)}, {Key: "parent_id", Value: newID()}, {Key: "child_id", Value: newID()},
			{Key: "root_path", Value: "Fulfil.Ship"}, {Key: "context", Value: aChildInput()}}),
		step: mustBSON(aStep()),
	}
}

// insert makes n documents to write into.
func (f *floor) insert(ctx context.Context, n int) error {
	for range n {
		id := newID()
		if err := f.first(ctx, id); err != nil {
			return err
		}
		f.ids, f.versions = append(f.ids, id), append(f.versions, 1)
	}
	return nil
}

// first is the floor of a first commit.
func (f *floor) first(ctx context.Context, id string) error {
	_, err := f.coll.InsertOne(ctx, bson.D{
		{Key: "_id", Value: id}, {Key: "definition_id", Value: "orders.v1"}, {Key: "version", Value: int32(1)}, {Key: "data", Value: f.data[0]},
		{Key: "outbox", Value: bson.A{}}, {Key: "spawns", Value: bson.A{}}, {Key: "trace", Value: bson.A{}},
		{Key: "processed", Value: bson.A{}}, {Key: "timers", Value: bson.D{}},
	})
	return err
}

// plain is the floor of a commit of the snapshot alone.
func (f *floor) plain(ctx context.Context, i int) error {
	return f.update(ctx, i, bson.D{
		{Key: "$set", Value: bson.D{{Key: "data", Value: f.data[f.versions[i]%2]}, {Key: "version", Value: f.versions[i] + 1}}},
	})
}

// full is the floor of a commit with everything.
func (f *floor) full(ctx context.Context, i int, eventID string) error {
	return f.update(ctx, i, bson.D{
		{Key: "$set", Value: bson.D{
			{Key: "data", Value: f.data[f.versions[i]%2]}, {Key: "version", Value: f.versions[i] + 1}, {Key: "timers.Fulfil．Pay", Value: 4102542245.0},
		}},
		{Key: "$push", Value: bson.D{
			{Key: "outbox", Value: bson.D{{Key: "$each", Value: bson.A{f.entry}}}},
			{Key: "spawns", Value: bson.D{{Key: "$each", Value: bson.A{f.spawn}}}},
			{Key: "trace", Value: bson.D{{Key: "$each", Value: bson.A{f.step}}, {Key: "$slice", Value: -200}}},
			{Key: "processed", Value: bson.D{{Key: "$each", Value: bson.A{eventID}}, {Key: "$slice", Value: -1000}}},
		}},
	})
}

func (f *floor) update(ctx context.Context, i int, update bson.D) error {
	res, err := f.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: f.ids[i]}, {Key: "version", Value: f.versions[i]}}, update)
	if err != nil {
		return err
	}
	if res.MatchedCount != 1 {
		return fmt.Errorf("version %d of %s was not there", f.versions[i], f.ids[i])
	}
	f.versions[i]++
	return nil
}

// load is the floor of a read: the snapshot, not decoded.
func (f *floor) load(ctx context.Context, id string) error {
	doc, err := f.coll.FindOne(ctx, bson.D{{Key: "_id", Value: id}}, options.FindOne().SetProjection(bson.D{{Key: "data", Value: 1}})).Raw()
	if err != nil {
		return err
	}
	_, err = doc.LookupErr("data")
	return err
}

func mustBSON(v any) bson.Raw {
	raw, err := bson.Marshal(v)
	must(err)
	return raw
}

func must(err error) {
	if err != nil {
		panic(err) // constants encode
	}
}
