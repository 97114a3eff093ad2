package mongostore

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Documents may be written by other languages, or by hand: whole numbers of any
// width are read alike, null reads as missing, and everything else that is not of
// its type is a *DamagedError.

// wholeNumber reads an int32, int64 or whole double.
func wholeNumber(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32:
		n, ok := v.Int32OK()
		return int64(n), ok
	case bson.TypeInt64:
		return v.Int64OK()
	case bson.TypeDouble:
		f, ok := v.DoubleOK()
		if !ok || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
			return 0, false
		}
		return int64(f), true
	}
	return 0, false
}

// seconds reads a finite number as a time.
func seconds(v bson.RawValue) (float64, bool) {
	if v.Type == bson.TypeDouble {
		f, ok := v.DoubleOK()
		return f, ok && fitsSeconds(f)
	}
	n, ok := wholeNumber(v)
	return float64(n), ok && fitsSeconds(float64(n))
}

func missing(v bson.RawValue) bool {
	return v.Type == 0 || v.Type == bson.TypeNull || v.Type == bson.TypeUndefined
}

// within reads a field of a document in a field. Lookup of both names would panic where
// that is cut short.
func within(doc bson.Raw, field, name string) bson.RawValue {
	inner, _ := doc.Lookup(field).DocumentOK()
	return inner.Lookup(name)
}

// text reads a string; missing is "".
func text(v bson.RawValue) (string, bool) {
	if missing(v) {
		return "", true
	}
	return v.StringValueOK()
}

// reader reads fields of one document and keeps the first damage it meets.
type reader struct {
	id  string
	doc bson.Raw
	err *DamagedError
}

// newReader reads a document that was found by something else than its id.
func newReader(doc bson.Raw) *reader {
	r := &reader{doc: doc}
	var ok bool
	switch r.id, ok = doc.Lookup("_id").StringValueOK(); {
	case !ok:
		r.id = doc.Lookup("_id").String()
		r.damaged("_id", "is "+typeName(doc.Lookup("_id"))+", not a string")
	case r.id == "":
		r.damaged("_id", "is empty")
	}
	return r
}

func (r *reader) damaged(field, reason string) {
	if r.err == nil {
		r.err = &DamagedError{ExecutionID: r.id, Field: field, Reason: reason}
	}
}

// failed gives the damage as an error, a nil interface if there is none.
func (r *reader) failed() error {
	if r.err == nil {
		return nil
	}
	return r.err
}

func (r *reader) text(field string) string {
	s, ok := text(r.doc.Lookup(field))
	if !ok {
		r.damaged(field, "is "+r.doc.Lookup(field).Type.String()+", not a string")
	}
	return s
}

func (r *reader) whole(field string) int64 {
	v := r.doc.Lookup(field)
	n, ok := wholeNumber(v)
	if !ok && !missing(v) {
		r.damaged(field, "is "+v.Type.String()+", not a whole number")
	}
	return n
}

// seconds reads a time; missing is false.
func (r *reader) seconds(field string) (float64, bool) {
	v := r.doc.Lookup(field)
	if missing(v) {
		return 0, false
	}
	s, ok := seconds(v)
	if !ok {
		r.damaged(field, "is not a time in seconds: "+v.String())
	}
	return s, ok
}

// elements gives the documents of an array, past what is none; missing is none.
func (r *reader) elements(field string) []bson.Raw {
	v := r.doc.Lookup(field)
	if missing(v) {
		return nil
	}
	arr, ok := v.ArrayOK()
	if !ok {
		r.damaged(field, "is "+v.Type.String()+", not an array")
		return nil
	}
	values, err := arr.Values()
	if err != nil {
		r.damaged(field, err.Error())
		return nil
	}
	docs := make([]bson.Raw, 0, len(values))
	for i, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			r.damaged(fmt.Sprintf("%s.%d", field, i), "is "+v.Type.String()+", not a document")
			continue
		}
		docs = append(docs, doc)
	}
	return docs
}

// encodeBSON encodes a user's value as a document, by bson tags, else json tags.
func encodeBSON(v any) (bson.Raw, error) {
	if isNil(v) {
		return emptyDocument, nil
	}
	if raw, ok := v.(bson.Raw); ok {
		return bytes.Clone(raw), raw.Validate()
	}
	if !isDocument(v) {
		return nil, fmt.Errorf("%T is no document; give a struct, a map or a bson.D", v)
	}
	w := bsonWriters.Get().(*bsonWriter)
	if err := w.enc.Encode(v); err != nil {
		return nil, err // and the writer stays away: it may be in the middle of a document
	}
	defer w.free()
	return bytes.Clone(w.buf.Bytes()), nil
}

// isDocument is whether v can be a document at all: text, numbers and lists cannot.
func isDocument(v any) bool {
	switch v.(type) {
	case bson.D, bson.Marshaler, bson.ValueMarshaler:
		return true
	}
	t := reflect.TypeOf(v)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t == reflect.TypeFor[bson.D]() || t == reflect.TypeFor[bson.Raw]()
}

// bsonWriter is an encoder with its buffer, kept for the next document.
type bsonWriter struct {
	buf bytes.Buffer
	enc *bson.Encoder
}

var bsonWriters = sync.Pool{New: func() any {
	w := new(bsonWriter)
	w.enc = bson.NewEncoder(bson.NewDocumentWriter(&w.buf))
	w.enc.SetRegistry(ownRegistry)
	w.enc.UseJSONStructTags()
	return w
}}

func (w *bsonWriter) free() {
	if w.buf.Cap() > keptBuffer {
		return
	}
	w.buf.Reset()
	bsonWriters.Put(w)
}

// decodeBSON reads a document that encodeBSON wrote.
func decodeBSON(doc bson.Raw, v any) error {
	if doc == nil {
		doc = emptyDocument
	}
	dec := bson.NewDecoder(bson.NewDocumentReader(bytes.NewReader(doc)))
	dec.SetRegistry(ownRegistry)
	dec.UseJSONStructTags()
	dec.DefaultDocumentMap()
	return dec.Decode(v)
}

var (
	ownRegistry   = bson.NewRegistry()
	emptyDocument = bson.Raw{5, 0, 0, 0, 0}
)

func isNil(v any) bool {
	if v == nil {
		return true
	}
	switch rv := reflect.ValueOf(v); rv.Kind() {
	case reflect.Map, reflect.Pointer, reflect.Slice:
		return rv.IsNil()
	}
	return false
}
