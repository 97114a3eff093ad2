package mongostore

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// adoptBatch is how many documents Adopt reads and writes at a time.
const adoptBatch = 200

// Adopt gives the documents that harel wrote, or wrote last, the fields of the
// store: those that List filters by, from the snapshot, and the times by which
// timers and a relay find them. It repairs these fields where they are damaged, and
// tells Config.OnDamaged of every document that cannot be read. It returns how many
// documents it changed. It walks the whole collection in batches, is safe while
// writers run, and may be called again at any time: once after the last harel writer
// has stopped, from time to time while there is one.
// Returns ErrInvalid if ctx has an open transaction.
func (s *Store) Adopt(ctx context.Context) (int64, error) {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return 0, err
	}
	var changed int64
	for after := ""; ; {
		docs, err := s.adoptees(ctx, after)
		if err != nil {
			return changed, wrapErr("adopt", "", err)
		}
		if len(docs) == 0 {
			return changed, nil
		}
		n, err := s.adopt(ctx, docs)
		changed += n
		if err != nil {
			return changed, wrapErr("adopt", "", err)
		}
		after, _ = docs[len(docs)-1].Lookup("_id").StringValueOK()
	}
}

// adoptees ships the snapshot only of documents that the store did not write last, or
// that somebody damaged since.
func (s *Store) adoptees(ctx context.Context, after string) ([]bson.Raw, error) {
	filter := ListOptions{}.idRange(after)
	return s.find(ctx, bson.D{{Key: "_id", Value: filter}}, options.Find().
		SetProjection(adoptProjection).SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(adoptBatch))
}

// adoptProjection ships what tells whether a document is readable and true.
var adoptProjection = bson.D{
	{Key: "version", Value: 1}, {Key: "commits", Value: 1}, {Key: "outbox", Value: 1}, {Key: "spawns", Value: 1}, {Key: "timers", Value: 1},
	{Key: "definition_id", Value: 1}, {Key: "parent_id", Value: 1}, {Key: "status", Value: 1}, {Key: "outcome", Value: 1},
	{Key: "active_path", Value: 1}, {Key: "updated_at", Value: 1}, {Key: "finished_at", Value: 1},
	{Key: "due_at", Value: 1}, {Key: "timer_at", Value: 1},
	{Key: "data", Value: bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$and", Value: bson.A{ownCommit, promotedAreSound}}}, "$$REMOVE", bson.D{{Key: "$ifNull", Value: bson.A{"$data", nil}}},
	}}}},
}

// promotedAreSound is whether the snapshot and the fields beside it have their types.
var promotedAreSound = func() bson.D {
	isA := func(field string, types ...string) bson.D {
		return bson.D{{Key: "$in", Value: bson.A{bson.D{{Key: "$type", Value: field}}, types}}}
	}
	return bson.D{{Key: "$and", Value: bson.A{
		isA("$definition_id", "string"), isA("$status", "string"), isA("$outcome", "string"), isA("$active_path", "string"),
		isA("$parent_id", "string", "null"), isA("$data", "string", "binData"), isTime("$updated_at"),
		bson.D{{Key: "$or", Value: bson.A{isA("$finished_at", "missing"), isTime("$finished_at")}}},
	}}}
}()

// ownCommit is whether the commit to the document's version was the store's own:
// an id among its slots begins with that version.
var ownCommit = func() bson.D {
	slots := bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$commits"}}, "object"}}},
		bson.D{{Key: "$objectToArray", Value: "$commits"}},
		bson.A{},
	}}}
	// The first four bytes of an ObjectID read as seconds.
	made := bson.D{{Key: "$divide", Value: bson.A{bson.D{{Key: "$toLong", Value: bson.D{{Key: "$toDate", Value: "$$this.v"}}}}, 1000}}}
	return bson.D{{Key: "$anyElementTrue", Value: bson.D{{Key: "$map", Value: bson.D{
		{Key: "input", Value: slots},
		{Key: "in", Value: bson.D{{Key: "$and", Value: bson.A{
			bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$$this.v"}}, "objectId"}}},
			bson.D{{Key: "$eq", Value: bson.A{made, "$version"}}},
		}}}},
	}}}}}
}()

// adopt writes what is missing or untrue, one update for each document.
func (s *Store) adopt(ctx context.Context, docs []bson.Raw) (changed int64, err error) {
	var writes []mongo.WriteModel
	for _, doc := range docs {
		if isStub(doc) && doc.Lookup("outbox").Type == 0 {
			continue
		}
		s.reportUnreadable(doc)
		filter, stages := s.adoption(doc)
		writes = append(writes, mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(stages))
	}
	if len(writes) == 0 {
		return 0, nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.executions.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	if res != nil {
		changed = res.ModifiedCount
	}
	return changed, err
}

// adoption is the update for one document. The times come from what stands there
// when the update runs; the promoted fields from the snapshot of one version, so
// they are written only while it is that version.
func (s *Store) adoption(doc bson.Raw) (filter bson.D, stages bson.A) {
	id := doc.Lookup("_id")
	filter = bson.D{{Key: "_id", Value: id}}
	set := s.dueFields()
	if snap, ok := foreignSnapshot(doc); ok && isIndex(doc.Lookup("version")) {
		filter = append(filter, bson.E{Key: "version", Value: doc.Lookup("version")})
		set = append(set, s.promote(snap)...)
	}
	return filter, bson.A{bson.D{{Key: "$set", Value: set}}}
}

// foreignSnapshot reads the snapshot of a document that needs its fields from it.
func foreignSnapshot(doc bson.Raw) (snapshot, bool) {
	text, ok := doc.Lookup("data").StringValueOK()
	if !ok {
		return snapshot{}, false
	}
	snap, err := readSnapshot([]byte(text))
	return snap, err == nil
}

// promote makes the header fields of the document those of the snapshot.
func (s *Store) promote(snap snapshot) bson.D {
	parent := any(nil)
	if snap.ParentID != "" {
		parent = snap.ParentID
	}
	set := bson.D{
		{Key: "definition_id", Value: literalText(snap.DefinitionID)}, {Key: "parent_id", Value: bson.D{{Key: "$literal", Value: parent}}},
		{Key: "status", Value: literalText(snap.Status)}, {Key: "outcome", Value: literalText(snap.Outcome)}, {Key: "active_path", Value: literalText(snap.ActivePath)},
	}
	updated := any(bson.D{{Key: "$cond", Value: bson.A{isTime("$updated_at"), "$updated_at", s.now()}}})
	if !snap.time(snap.UpdatedAt).IsZero() {
		updated = *snap.UpdatedAt
	}
	finished := any("$$REMOVE")
	switch {
	case s.finished[snap.Status] && !snap.time(snap.FinishedAt).IsZero():
		finished = *snap.FinishedAt
	case s.finished[snap.Status]:
		finished = bson.D{{Key: "$cond", Value: bson.A{isTime("$finished_at"), "$finished_at", s.now()}}}
	}
	return append(set, bson.E{Key: "updated_at", Value: updated}, bson.E{Key: "finished_at", Value: finished})
}

func literalText(s string) bson.D { return bson.D{{Key: "$literal", Value: s}} }

// reportUnreadable tells of a document that a sweep or a listing goes past.
func (s *Store) reportUnreadable(doc bson.Raw) {
	r := newReader(doc)
	r.version()
	for _, raw := range r.elements("outbox") {
		s.readOutboxEntry(r, raw)
	}
	for _, raw := range r.elements("spawns") {
		readSpawnEntry(r, raw)
	}
	r.timers()
	if data := doc.Lookup("data"); data.Type != 0 {
		r.data()
		if _, isText := data.StringValueOK(); isText {
			if _, ok := foreignSnapshot(doc); !ok {
				r.damaged("data", "is not JSON of an execution")
			}
		}
	}
	s.reportDamage(r.failed())
}
