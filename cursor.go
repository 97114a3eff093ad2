package mongostore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
)

// cursor is where a page ended and what it filtered.
type cursor struct {
	After  string `json:"a"`
	Filter []byte `json:"f"`
}

func (o ListOptions) digest() []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %t %d %d", o.DefinitionID, o.ParentID, o.IDPrefix, o.Statuses, o.RootsOnly,
		o.UpdatedBefore.UnixMicro(), o.FinishedBefore.UnixMicro()))
	return sum[:8]
}

func encodeCursor(after string, filter []byte) string {
	text, _ := json.Marshal(cursor{After: after, Filter: filter}) // a string and bytes always encode
	return base64.RawURLEncoding.EncodeToString(text)
}

func decodeCursor(text string, filter []byte) (after string, err error) {
	if text == "" {
		return "", nil
	}
	var c cursor
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	switch {
	case err != nil || c.After == "":
		return "", invalid("ListOptions.Cursor", "is not a cursor that List gave")
	case !slices.Equal(c.Filter, filter):
		return "", invalid("ListOptions.Cursor", "belongs to another filter")
	}
	return c.After, optionalText("ListOptions.Cursor", c.After)
}
