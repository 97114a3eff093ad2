package mongostore

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// canonical gives bytes that are equal for documents with the same fields in any
// order, at every level.
func canonical(doc bson.Raw) []byte {
	elements, err := doc.Elements()
	if err != nil {
		return doc
	}
	parts := make([][]byte, 0, len(elements))
	for _, e := range elements {
		parts = append(parts, canonicalElement(e))
	}
	slices.SortFunc(parts, slices.Compare)
	return slices.Concat(parts...)
}

func canonicalElement(e bson.RawElement) []byte {
	v := e.Value()
	body := v.Value
	if v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray {
		body = canonical(bson.Raw(v.Value))
	}
	head := fmt.Appendf(nil, "%d %q %d:", v.Type, e.Key(), len(body))
	return append(head, body...)
}
