package mongostore

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// index is one that Setup makes. Nothing needs them to be right, only to be cheap.
type indexSpec struct {
	name   string
	keys   bson.D
	sparse bool
	only   string // the field that a document must have to be in a partial index
}

// indexes are those of the executions collection. The sparse and partial ones hold
// only documents that owe something, or are finished, so a running execution that
// owes nothing costs them nothing. With _id in it an index cannot be sparse: every
// document has one, hence partial.
var indexes = []indexSpec{
	{name: "status_id", keys: ascending("status", "_id")},
	{name: "definition_id", keys: ascending("definition_id", "_id")},
	{name: "definition_status_id", keys: ascending("definition_id", "status", "_id")},
	{name: "parent_id", keys: ascending("parent_id", "_id")},
	{name: "outbox_seq", keys: ascending("outbox.seq"), sparse: true},
	{name: "spawns_seq", keys: ascending("spawns.seq"), sparse: true},
	{name: "timer_at", keys: ascending("timer_at"), sparse: true},
	{name: "due_at", keys: ascending("due_at"), sparse: true},
	{name: "finished_at_id", keys: ascending("finished_at", "_id"), only: "finished_at"},
	{name: "id_dead_at", keys: ascending("_id", "dead_at"), only: "dead_at"},
}

// partial is the filter of a partial index; nil: it is none.
func (want indexSpec) partial() bson.Raw {
	if want.only == "" {
		return nil
	}
	return mustEncode(bson.D{{Key: want.only, Value: bson.D{{Key: "$exists", Value: true}}}})
}

func ascending(fields ...string) (keys bson.D) {
	for _, f := range fields {
		keys = append(keys, bson.E{Key: f, Value: int32(1)})
	}
	return keys
}

// Setup makes the collections and their indexes. It is idempotent, safe from many
// processes at once, and leaves indexes of others alone. An index with the same
// keys and options under another name serves as well. Without Setup everything
// works, slower.
// Returns ErrInvalid, naming collection, index and difference, if an index has the
// name or the keys of one that is needed and is another; or if a collection has a
// collation that does not compare ids byte by byte.
func (s *Store) Setup(ctx context.Context) error {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	for _, coll := range []*mongo.Collection{s.executions, s.counters} {
		if err := s.createCollection(ctx, coll); err != nil {
			return wrapErr("set up", coll.Name(), err)
		}
	}
	return wrapErr("set up", s.executions.Name(), s.createIndexes(ctx))
}

func (s *Store) createCollection(ctx context.Context, coll *mongo.Collection) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	db := s.executions.Database()
	err := db.CreateCollection(ctx, coll.Name())
	if err == nil || !hasCode(err, codeNamespaceExists) {
		return err
	}
	specs, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: coll.Name()}})
	if err != nil || len(specs) == 0 {
		return err
	}
	if collation, err := specs[0].Options.LookupErr("collation"); err == nil {
		return invalid(coll.Name(), "has the collation "+collation.String()+", ids must compare byte by byte")
	}
	return nil
}

func (s *Store) createIndexes(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	missing, err := s.missingIndexes(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	models := make([]mongo.IndexModel, 0, len(missing))
	for _, want := range missing {
		opts := options.Index().SetName(want.name)
		if want.sparse {
			opts.SetSparse(true)
		}
		if want.only != "" {
			opts.SetPartialFilterExpression(want.partial())
		}
		models = append(models, mongo.IndexModel{Keys: want.keys, Options: opts})
	}
	_, err = s.executions.Indexes().CreateMany(ctx, models)
	if hasCode(err, codeIndexConflict, codeIndexKeyClash) {
		return &ValidationError{Field: s.executions.Name(), Reason: "an index was made differently meanwhile: " + err.Error(), cause: err}
	}
	return err
}

// missingIndexes compares what is there with what is needed.
func (s *Store) missingIndexes(ctx context.Context) ([]indexSpec, error) {
	cursor, err := s.executions.Indexes().List(ctx)
	if err != nil {
		return nil, err
	}
	var have []bson.Raw
	if err := cursor.All(ctx, &have); err != nil {
		return nil, err
	}
	var missing []indexSpec
	for _, want := range indexes {
		found, err := s.findIndex(want, have)
		if err != nil {
			return nil, err
		}
		if !found {
			missing = append(missing, want)
		}
	}
	return missing, nil
}

func (s *Store) findIndex(want indexSpec, have []bson.Raw) (bool, error) {
	var problem error
	for _, index := range have {
		name, _ := index.Lookup("name").StringValueOK()
		keys, _ := index.Lookup("key").DocumentOK()
		sameKeys := equalKeys(keys, want.keys)
		if name != want.name && !sameKeys {
			continue
		}
		difference := want.difference(index, sameKeys)
		if difference == "" {
			return true, nil
		}
		if name == want.name || isPartial(index) == (want.only != "") {
			problem = invalid(s.executions.Name()+"."+name, difference)
		}
	}
	return false, problem
}

// difference says in what an index is not the wanted one; empty: in nothing.
func (want indexSpec) difference(index bson.Raw, sameKeys bool) string {
	sparse, _ := index.Lookup("sparse").BooleanOK()
	switch {
	case !sameKeys:
		return fmt.Sprintf("has the keys %s, needed are %v", index.Lookup("key"), mustEncode(want.keys))
	case sparse != want.sparse:
		return fmt.Sprintf("has sparse %t, needed is %t", sparse, want.sparse)
	}
	if have, _ := index.Lookup("partialFilterExpression").DocumentOK(); !bytes.Equal(have, want.partial()) {
		return fmt.Sprintf("has the partial filter %v, needed is %v", have, want.partial())
	}
	for _, option := range []string{"unique", "hidden", "collation", "expireAfterSeconds"} {
		v := index.Lookup(option)
		if on, isBool := v.BooleanOK(); v.Type != 0 && (!isBool || on) {
			return fmt.Sprintf("has %s %s, needed is none", option, v)
		}
	}
	return ""
}

func isPartial(index bson.Raw) bool { return index.Lookup("partialFilterExpression").Type != 0 }

// equalKeys compares key patterns; a direction may be a number of any width.
func equalKeys(have bson.Raw, want bson.D) bool {
	elements, err := have.Elements()
	if err != nil || len(elements) != len(want) {
		return false
	}
	for i, e := range elements {
		direction, ok := wholeNumber(e.Value())
		if e.Key() != want[i].Key || !ok || direction != 1 {
			return false
		}
	}
	return true
}
