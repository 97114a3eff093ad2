package mongostore

import (
	"encoding/binary"
	"iter"
	"math"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Small additions to the driver's append functions.

// end closes the document that began at start.
func end(dst []byte, start int32) bson.Raw {
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails only on a start that is not one
	return dst
}

func appendDocument(dst []byte, key string, body func([]byte) []byte) []byte {
	start, dst := bsoncore.AppendDocumentElementStart(dst, key)
	return end(body(dst), start)
}

func appendArray(dst []byte, key string, body func([]byte) []byte) []byte {
	start, dst := bsoncore.AppendArrayElementStart(dst, key)
	return end(body(dst), start)
}

func appendEmptyArray(dst []byte, key string) []byte {
	return appendArray(dst, key, func(dst []byte) []byte { return dst })
}

// appendSection is appendDocument that leaves out an empty one.
func appendSection(dst []byte, key string, body func([]byte) []byte) []byte {
	before := len(dst)
	start, dst := bsoncore.AppendDocumentElementStart(dst, key)
	empty := len(dst)
	dst = body(dst)
	if len(dst) == empty {
		return dst[:before]
	}
	return end(dst, start)
}

// appendEach is {key: {$each: [...], $slice: -keep}}; keep 0 or negative keeps all.
func appendEach(dst []byte, key string, keep int, items func([]byte) []byte) []byte {
	return appendDocument(dst, key, func(dst []byte) []byte {
		dst = appendArray(dst, "$each", items)
		if keep > 0 {
			dst = appendWhole(dst, "$slice", -int64(keep))
		}
		return dst
	})
}

// appendPullSeqs is {key: {seq: {$in: seqs}}}, nothing without seqs.
func appendPullSeqs(dst []byte, key string, seqs []int64) []byte {
	if len(seqs) == 0 {
		return dst
	}
	return appendDocument(dst, key, func(dst []byte) []byte {
		return appendDocument(dst, "seq", func(dst []byte) []byte {
			return appendArray(dst, "$in", func(dst []byte) []byte {
				for i, seq := range seqs {
					dst = appendWhole(dst, index(i), seq)
				}
				return dst
			})
		})
	})
}

// appendWhole writes an int32 where it fits, else an int64, as other drivers do.
func appendWhole(dst []byte, key string, n int64) []byte {
	if n >= math.MinInt32 && n <= math.MaxInt32 {
		return bsoncore.AppendInt32Element(dst, key, int32(n))
	}
	return bsoncore.AppendInt64Element(dst, key, n)
}

// appendText is AppendStringElement without a copy of the text on the way.
func appendText(dst []byte, key string, text []byte) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeString, key)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text)+1))
	return append(append(dst, text...), 0)
}

func appendTextOrNull(dst []byte, key, s string) []byte {
	if s == "" {
		return bsoncore.AppendNullElement(dst, key)
	}
	return bsoncore.AppendStringElement(dst, key, s)
}

// appendSlot writes a commit id; the zero one is null, which also matches absent.
func appendSlot(dst []byte, key string, id commitID) []byte {
	if id == (commitID{}) {
		return bsoncore.AppendNullElement(dst, key)
	}
	return bsoncore.AppendObjectIDElement(dst, key, bson.ObjectID(id))
}

// appendFieldsBut copies the fields of doc except one.
func appendFieldsBut(dst []byte, doc bson.Raw, but string) []byte {
	for e := range elementsOf(doc) {
		if e.Key() != but {
			dst = append(dst, e...)
		}
	}
	return dst
}

// elementsOf walks a valid document without making a list of its elements.
func elementsOf(doc bson.Raw) iter.Seq[bson.RawElement] {
	return func(yield func(bson.RawElement) bool) {
		rest := doc[4 : len(doc)-1]
		for len(rest) > 0 {
			e, after, ok := bsoncore.ReadElement(rest)
			if !ok || !yield(bson.RawElement(e)) {
				return
			}
			rest = after
		}
	}
}

func index(i int) string { return strconv.Itoa(i) }
