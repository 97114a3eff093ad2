// Package fuzzdocs makes documents to begin fuzzing with: a valid one, with each of its
// fields of each wrong type, left out, and with its bytes broken.
package fuzzdocs

import (
	"encoding/binary"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Values has one of each BSON type, and those at the edges of some.
func Values() bson.A {
	return bson.A{
		math.NaN(), math.Inf(1), 1e300, -1.5, 4.0, "", "x", "a.b", "$where", "\xff", strings.Repeat("long", 1000),
		bson.D{}, bson.D{{Key: "$ne", Value: nil}}, bson.D{{Key: "a", Value: bson.D{{Key: "seq", Value: 1}}}}, Nested(90),
		bson.A{}, bson.A{nil, 1, "a", bson.D{}, bson.A{bson.A{}}},
		bson.Binary{Data: []byte{1, 2}}, bson.Binary{Subtype: 2, Data: []byte{1}}, bson.Undefined{}, bson.ObjectID{1, 2, 3}, true,
		bson.DateTime(0), bson.DateTime(math.MaxInt64), bson.DateTime(math.MinInt64), nil, bson.Regex{Pattern: "a", Options: "i"},
		bson.DBPointer{DB: "d", Pointer: bson.ObjectID{1}}, bson.JavaScript("f()"), bson.Symbol("s"),
		bson.CodeWithScope{Code: "f()", Scope: bson.D{}}, int32(-1), bson.Timestamp{T: 1, I: 2}, int64(math.MaxInt64), int64(math.MinInt64),
		bson.NewDecimal128(0x3040000000000000, 7), bson.MinKey{}, bson.MaxKey{},
	}
}

// Nested is a document of so many levels.
func Nested(levels int) bson.D {
	doc := bson.D{}
	for range levels {
		doc = bson.D{{Key: "n", Value: doc}}
	}
	return doc
}

// Variants are doc, and doc with each field at each depth left out, and of each of
// [Values].
func Variants(doc bson.D) []bson.Raw {
	all := []bson.Raw{encode(doc)}
	change(doc, func(changed any) { all = append(all, encode(changed.(bson.D))) })
	return all
}

// Variant is doc with a change of one part: the n-th, counted around, of all that
// [Variants] makes. 0 is doc itself.
func Variant(doc bson.D, n uint16) bson.D {
	var all []bson.D
	change(doc, func(changed any) { all = append(all, changed.(bson.D)) })
	if i := int(n) % (len(all) + 1); i > 0 {
		return all[i-1]
	}
	return doc
}

// Encode gives the bytes of what this package made.
func Encode(doc bson.D) bson.Raw { return encode(doc) }

// change gives a copy of v for each change of a part of it.
func change(v any, give func(any)) {
	switch v := v.(type) {
	case bson.D:
		for i, e := range v {
			with := func(value any) {
				changed := append(bson.D(nil), v...)
				changed[i].Value = value
				give(changed)
			}
			for _, value := range Values() {
				with(value)
			}
			give(append(append(bson.D(nil), v[:i]...), v[i+1:]...))
			change(e.Value, with)
		}
	case bson.A:
		for i, e := range v {
			with := func(value any) {
				changed := append(bson.A(nil), v...)
				changed[i] = value
				give(changed)
			}
			with("x")
			with(nil)
			change(e, with)
		}
	}
}

// Broken are the bytes of doc cut short, and with lengths that are not true.
func Broken(doc bson.D) []bson.Raw {
	raw := encode(doc)
	all := []bson.Raw{nil, {}, raw[:4], raw[:5], raw[:len(raw)/2], raw[:len(raw)-1], append(append(bson.Raw(nil), raw...), 0)}
	for _, length := range []uint32{0, 4, 5, uint32(len(raw)) - 1, uint32(len(raw)) + 1, math.MaxInt32, math.MaxUint32} {
		all = append(all, patched(raw, 0, length))
	}
	for at := 4; at+4 <= len(raw); at += 7 { // some of these are lengths of strings and documents
		all = append(all, patched(raw, at, math.MaxInt32), patched(raw, at, math.MaxUint32))
	}
	return all
}

func patched(raw bson.Raw, at int, value uint32) bson.Raw {
	out := append(bson.Raw(nil), raw...)
	binary.LittleEndian.PutUint32(out[at:], value)
	return out
}

func encode(doc bson.D) bson.Raw {
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic(err) // all of it is made here, of what encodes
	}
	return raw
}
