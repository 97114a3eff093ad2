// Package cursor makes the cursors of listings: text that says after which id the
// next page begins, and that is refused by a listing with another filter.
package cursor

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// position is where a page ended and what it filtered.
type position struct {
	After  string `json:"a"`
	Bytes  []byte `json:"b,omitempty"` // in place of After, where it is not UTF-8
	Filter []byte `json:"f"`
}

// Encode makes the cursor of the page after the id after, which must not be empty, in a
// listing with that filter. The text is safe in a URL.
func Encode(after string, filter []byte) string {
	p := position{After: after, Filter: filter}
	if !utf8.ValidString(after) { // somebody else stored it, and JSON would change it
		p.After, p.Bytes = "", []byte(after)
	}
	text, _ := json.Marshal(p) // a string and bytes always encode
	return base64.RawURLEncoding.EncodeToString(text)
}

// Decode gives the id that the page begins after; empty text is the first page and
// gives "". Reason says why text is refused, empty: it is not. The id is as whoever
// sent the text wants it: check it like any other input.
func Decode(text string, filter []byte) (after, reason string) {
	if text == "" {
		return "", ""
	}
	var p position
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if len(p.Bytes) > 0 {
		p.After = string(p.Bytes)
	}
	switch {
	case err != nil || p.After == "":
		return "", "is not a cursor that a listing gave"
	case !bytes.Equal(p.Filter, filter):
		return "", "belongs to another filter"
	}
	return p.After, ""
}

// Digest is a filter in the 8 bytes that Encode and Decode take. Format with %q what
// is text: filters that print alike have the same digest.
func Digest(format string, args ...any) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, format, args...))
	return sum[:8]
}
