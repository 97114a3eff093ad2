package mongostore

import "github.com/execstore/mongostore/internal/cursor"

func (o ListOptions) digest() []byte {
	return cursor.Digest("%q %q %q %q %t %d %d", o.DefinitionID, o.ParentID, o.IDPrefix, o.Statuses, o.RootsOnly,
		o.UpdatedBefore.UnixMicro(), o.FinishedBefore.UnixMicro())
}

// after is the id that the page begins after; empty: the first page.
func (o ListOptions) after() (string, error) {
	after, reason := cursor.Decode(o.Cursor, o.digest())
	if reason != "" {
		return "", invalid("ListOptions.Cursor", reason)
	}
	return after, nil // whatever text it is, it is only compared
}

// next is the cursor of the page after the one that ends with last.
func (o ListOptions) next(last string) string { return cursor.Encode(last, o.digest()) }
