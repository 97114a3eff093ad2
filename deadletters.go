package mongostore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// DeadLetterOptions say which dead letters to list.
type DeadLetterOptions struct {
	// ExecutionID lists those of one execution; empty: of all.
	ExecutionID string
	// Limit is the most items on a page. 0 is 100; negative is refused.
	Limit int
	// Cursor is the Next of the page before; empty: the first page.
	Cursor string
}

// DeadLetterPage is one page of dead letters, in the order of execution ids and
// within one execution of burial.
type DeadLetterPage struct {
	Items []DeadLetter
	// Next is the cursor of the next page; empty: this is the last.
	Next string
}

// DeadLetters gives one page of what was given up. Every letter that is there
// throughout appears exactly once over the pages. Costs what it returns, and the dead
// letters of the executions on the page.
// Returns ErrInvalid if opts make no sense or the cursor is not from here.
func (s *Store) DeadLetters(ctx context.Context, opts DeadLetterOptions) (*DeadLetterPage, error) {
	limit, err := validLimit("DeadLetterOptions.Limit", opts.Limit)
	if err != nil {
		return nil, err
	}
	if err := optionalText("DeadLetterOptions.ExecutionID", opts.ExecutionID); err != nil {
		return nil, err
	}
	after, err := decodeDeadCursor(opts)
	if err != nil {
		return nil, err
	}
	page := &DeadLetterPage{}
	last := after
	for batch := min(limit+1, 100); ; {
		docs, err := s.deadDocuments(outside(ctx), opts.ExecutionID, last, batch)
		if err != nil {
			return nil, wrapErr("read dead letters", "", err)
		}
		for _, doc := range docs {
			for _, l := range s.lettersOf(doc) {
				if l.cursor.ID == after.ID && !l.cursor.beyond(after) {
					continue
				}
				if len(page.Items) == limit {
					page.Next = last.encode(opts)
					return page, nil
				}
				page.Items, last = append(page.Items, l.letter), l.cursor
			}
			id, _ := doc.Lookup("_id").StringValueOK()
			last = deadCursor{ID: id, At: last.At, Key: last.Key, Done: true}
		}
		if len(docs) < batch {
			return page, nil
		}
	}
}

func (s *Store) deadDocuments(ctx context.Context, id string, after deadCursor, limit int) ([]bson.Raw, error) {
	from := "$gte"
	if after.Done {
		from = "$gt"
	}
	where := append(op(from, after.ID), noSymbols)
	if id != "" {
		where = append(where, bson.E{Key: "$eq", Value: id})
	}
	return s.find(ctx, bson.D{{Key: "dead_at", Value: op("$exists", true)}, {Key: "_id", Value: where}},
		options.Find().SetProjection(bson.D{{Key: "dead", Value: 1}}).SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit)))
}

// deadCursor is the last letter of a page: its execution, and its place in there.
type deadCursor struct {
	ID   string  `json:"i"`
	Raw  []byte  `json:"r,omitempty"` // in place of ID, where it is not UTF-8: JSON would change it
	At   float64 `json:"t"`
	Key  string  `json:"k"`
	Only string  `json:"o"` // the filter
	Done bool    `json:"d"` // nothing more in this execution
}

func (c deadCursor) beyond(other deadCursor) bool {
	return cmp.Or(cmp.Compare(c.At, other.At), cmp.Compare(c.Key, other.Key)) > 0 && !other.Done
}

func (c deadCursor) encode(opts DeadLetterOptions) string {
	c.Only = opts.ExecutionID
	if !utf8.ValidString(c.ID) {
		c.ID, c.Raw = "", []byte(c.ID)
	}
	text, _ := json.Marshal(c) // always encodes
	return base64.RawURLEncoding.EncodeToString(text)
}

func decodeDeadCursor(opts DeadLetterOptions) (c deadCursor, err error) {
	if opts.Cursor == "" {
		return c, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(opts.Cursor)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if len(c.Raw) > 0 {
		c.ID, c.Raw = string(c.Raw), nil
	}
	switch {
	case err != nil || c.ID == "":
		return c, invalid("DeadLetterOptions.Cursor", "is not a cursor that DeadLetters gave")
	case c.Only != opts.ExecutionID:
		return c, invalid("DeadLetterOptions.Cursor", "belongs to another execution")
	}
	return c, nil // whatever text the ID is, it is only compared
}

type placedLetter struct {
	letter DeadLetter
	cursor deadCursor
}

// lettersOf reads the dead letters of a document in the order of burial.
func (s *Store) lettersOf(doc bson.Raw) []placedLetter {
	r := newReader(doc)
	var out []placedLetter
	same := map[string]int{}
	for _, raw := range r.elements("dead") {
		l := s.letter(r.id, raw)
		at, _ := seconds(raw.Lookup("at"))
		key := strings.ToValidUTF8(l.Entry.EntryID(), "\uFFFD") + contentKey(raw) // JSON must not change it
		out = append(out, placedLetter{l, deadCursor{ID: r.id, At: at, Key: fmt.Sprintf("%s%06d", key, same[key])}})
		same[key]++
	}
	s.reportDamage(r.failed())
	slices.SortStableFunc(out, func(a, b placedLetter) int {
		return cmp.Or(cmp.Compare(a.cursor.At, b.cursor.At), cmp.Compare(a.cursor.Key, b.cursor.Key))
	})
	return out
}

// contentKey tells letters apart that have the same entry and time.
func contentKey(raw bson.Raw) string {
	sum := sha256.Sum256(raw)
	return "#" + base64.RawURLEncoding.EncodeToString(sum[:6])
}

// letter reads one dead letter as far as it can be read.
func (s *Store) letter(id string, raw bson.Raw) DeadLetter {
	var l DeadLetter
	l.Cause, _ = text(raw.Lookup("cause"))
	attempts, _ := wholeNumber(raw.Lookup("attempts"))
	l.Attempts = int(attempts)
	if at, ok := seconds(raw.Lookup("at")); ok {
		l.BuriedAt = fromSeconds(at)
	}
	entry, _ := raw.Lookup("entry").DocumentOK()
	if entry == nil {
		if entry, _ = raw.Lookup("value").DocumentOK(); entry == nil {
			entry = emptyDocument
		}
	}
	r := &reader{id: id, doc: raw}
	switch kind, _ := text(raw.Lookup("kind")); kind {
	case "spawn":
		l.Entry = readSpawnEntry(r, entry)
	case "timer":
		t := Timer{ExecutionID: id}
		t.Path, _ = text(raw.Lookup("path"))
		if at, ok := seconds(raw.Lookup("fire_at")); ok {
			t.FireAt = fromSeconds(at)
		}
		l.Entry = t
	default:
		l.Entry = s.readOutboxEntry(r, entry)
	}
	return l
}
