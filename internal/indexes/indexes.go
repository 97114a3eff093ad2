// Package indexes makes collections and their indexes: idempotent, safe from many
// processes at once, and without touching what others made. Nothing needs an index
// to be right, only to be cheap.
package indexes

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// Spec is an index that is needed.
type Spec struct {
	// Name is its name, which must not be empty. An index with the same keys and
	// options under another name serves as well.
	Name string
	// Keys are its fields, each with a number as its direction.
	Keys bson.D
	// Sparse leaves out documents that have none of the fields.
	Sparse bool
	// Only is the field that a document must have to be in a partial index; empty: the
	// index is none.
	Only string
}

// Mismatch says that what is there is not what is needed, and is left as it is.
type Mismatch struct {
	// Name is the collection, or the index as collection.index.
	Name string
	// Reason says what is different, worded to follow Name.
	Reason string

	cause error
}

// Error tells name and reason.
func (m *Mismatch) Error() string { return m.Name + " " + m.Reason }

// Unwrap gives the server's error, nil if there was none.
func (m *Mismatch) Unwrap() error { return m.cause }

// Ascending are keys that all rise; without fields it is nil.
func Ascending(fields ...string) (keys bson.D) {
	for _, f := range fields {
		keys = append(keys, bson.E{Key: f, Value: int32(1)})
	}
	return keys
}

// CreateCollection makes coll if it is not there. One that is there must compare ids
// byte by byte: returns a *Mismatch if it has a collation, else the driver's error.
func CreateCollection(ctx context.Context, coll *mongo.Collection) error {
	db := coll.Database()
	err := db.CreateCollection(ctx, coll.Name())
	if err == nil || !mongoerr.HasCode(err, mongoerr.NamespaceExists) {
		return err
	}
	found, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: coll.Name()}})
	if err != nil || len(found) == 0 {
		return err
	}
	if collation, err := found[0].Options.LookupErr("collation"); err == nil {
		return &Mismatch{Name: coll.Name(), Reason: "has the collation " + collation.String() + ", ids must compare byte by byte"}
	}
	return nil
}

// Create makes those of specs that coll does not have, in one command. Returns a *Mismatch if an index has the name or the keys
// of one that is needed and is another, else the driver's error.
func Create(ctx context.Context, coll *mongo.Collection, specs []Spec) error {
	missing, err := Missing(ctx, coll, specs)
	if err != nil || len(missing) == 0 {
		return err
	}
	models := make([]mongo.IndexModel, 0, len(missing))
	for _, want := range missing {
		models = append(models, want.model())
	}
	_, err = coll.Indexes().CreateMany(ctx, models)
	if mongoerr.HasCode(err, mongoerr.IndexConflict, mongoerr.IndexKeyClash) { // another process was faster
		return &Mismatch{Name: coll.Name(), Reason: "an index was made differently meanwhile: " + err.Error(), cause: err}
	}
	return err
}

// Missing gives those of specs that coll does not have, in their order; nil: it has
// all. Returns a *Mismatch if Create would, but for a race, else the driver's error.
func Missing(ctx context.Context, coll *mongo.Collection, specs []Spec) ([]Spec, error) {
	cursor, err := coll.Indexes().List(ctx)
	if err != nil {
		return nil, err
	}
	var have []bson.Raw
	if err := cursor.All(ctx, &have); err != nil {
		return nil, err
	}
	var missing []Spec
	for _, want := range specs {
		found, err := want.find(coll.Name(), have)
		if err != nil {
			return nil, err
		}
		if !found {
			missing = append(missing, want)
		}
	}
	return missing, nil
}

func (want Spec) model() mongo.IndexModel {
	opts := options.Index().SetName(want.Name)
	if want.Sparse {
		opts.SetSparse(true)
	}
	if want.Only != "" {
		opts.SetPartialFilterExpression(want.partial())
	}
	return mongo.IndexModel{Keys: want.Keys, Options: opts}
}

// partial is the filter of a partial index; nil: it is none.
func (want Spec) partial() bson.Raw {
	if want.Only == "" {
		return nil
	}
	return mustEncode(bson.D{{Key: want.Only, Value: bson.D{{Key: "$exists", Value: true}}}})
}

// find looks for an index that serves. One in the way is an error only if none does.
func (want Spec) find(coll string, have []bson.Raw) (bool, error) {
	var problem error
	for _, index := range have {
		name, _ := index.Lookup("name").StringValueOK()
		keys, _ := index.Lookup("key").DocumentOK()
		sameKeys := equalKeys(keys, mustEncode(want.Keys))
		if name != want.Name && !sameKeys {
			continue
		}
		difference := want.difference(index, sameKeys)
		if difference == "" {
			return true, nil
		}
		if name == want.Name || isPartial(index) == (want.Only != "") {
			problem = &Mismatch{Name: coll + "." + name, Reason: difference}
		}
	}
	return false, problem
}

// difference says in what an index is not the wanted one; empty: in nothing.
func (want Spec) difference(index bson.Raw, sameKeys bool) string {
	sparse, _ := index.Lookup("sparse").BooleanOK()
	switch {
	case !sameKeys:
		return fmt.Sprintf("has the keys %s, needed are %v", index.Lookup("key"), mustEncode(want.Keys))
	case sparse != want.Sparse:
		return fmt.Sprintf("has sparse %t, needed is %t", sparse, want.Sparse)
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
func equalKeys(have, want bson.Raw) bool {
	a, err := have.Elements()
	if err != nil {
		return false
	}
	b, _ := want.Elements() // our own
	return slices.EqualFunc(a, b, func(a, b bson.RawElement) bool {
		return a.Key() == b.Key() && direction(a.Value()) == direction(b.Value())
	})
}

// direction is NaN for a kind of index that has none, which then equals no other.
func direction(v bson.RawValue) float64 {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		return v.AsFloat64()
	}
	return math.NaN()
}

// mustEncode encodes what the program itself made.
func mustEncode(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// MissingNames are the names of those of specs that are not there; none if that cannot
// be told.
func MissingNames(ctx context.Context, coll *mongo.Collection, specs []Spec) []string {
	missing, err := Missing(ctx, coll, specs)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(missing))
	for _, spec := range missing {
		names = append(names, spec.Name)
	}
	return names
}
