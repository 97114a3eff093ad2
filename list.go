package mongostore

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ListOptions filter a listing; what is left zero does not filter.
type ListOptions struct {
	// DefinitionID, ParentID and IDPrefix match exactly, IDPrefix the id's beginning.
	DefinitionID, ParentID, IDPrefix string
	// Statuses lists those in any of them; nil: all; empty and not nil: none.
	Statuses []string
	// RootsOnly leaves out executions with a parent.
	RootsOnly bool
	// UpdatedBefore and FinishedBefore leave out those that were updated or finished
	// at that time or later, or for which that is not known. They cost what the other
	// filters match.
	UpdatedBefore, FinishedBefore time.Time
	// Limit is the most items on a page. 0 is 100; negative is refused.
	Limit int
	// Cursor is the Next of the page before; empty: the first page.
	Cursor string
}

// Page is one page of a listing, in the order of ids.
type Page struct {
	Items []Summary
	// Next is the cursor of the next page; empty: this is the last.
	Next string
}

// Summary is a row of a listing. It does not embed Header, because it must not be
// an Execution: committing it would drop the snapshot.
type Summary struct {
	ID, DefinitionID, ParentID, Status, Outcome, ActivePath string
	Version                                                 int64
	// UpdatedAt and FinishedAt are by the clock of the store that wrote them; zero if
	// not known.
	UpdatedAt, FinishedAt time.Time
	// Err is a *DamagedError if only the ID is sure, else nil.
	Err error
}

const (
	defaultLimit = 100
	maxLimit     = 1 << 30 // the server counts in 32 bits
)

// List gives one page. Every execution that exists throughout appears exactly once
// over the pages, whatever is added or deleted meanwhile; a page costs what it
// returns, however far on it is. A damaged document has its row too, with Err.
// Documents that harel wrote are filled from their snapshot; where it wrote last,
// run Adopt before filtering by anything but DefinitionID and IDPrefix.
// Returns ErrInvalid if opts make no sense, or the cursor is broken or belongs to
// another filter.
func (s *Store) List(ctx context.Context, opts ListOptions) (*Page, error) {
	limit, err := validLimit("ListOptions.Limit", opts.Limit)
	if err != nil {
		return nil, err
	}
	if err := opts.validate(); err != nil {
		return nil, err
	}
	after, err := opts.after()
	if err != nil {
		return nil, err
	}
	items, err := s.rows(outside(ctx), opts, after, limit+1)
	if err != nil {
		return nil, wrapErr("list", "", err)
	}
	page := &Page{Items: items}
	if len(items) > limit {
		page.Items = items[:limit]
		page.Next = opts.next(items[limit-1].ID)
	}
	return page, nil
}

// All is List over all pages; opts.Limit is the size of the pages it reads and
// opts.Cursor where it begins. An error ends it; a damaged document does not.
func (s *Store) All(ctx context.Context, opts ListOptions) iter.Seq2[Summary, error] {
	return func(yield func(Summary, error) bool) {
		for {
			page, err := s.List(ctx, opts)
			if err != nil {
				yield(Summary{}, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if opts.Cursor = page.Next; page.Next == "" {
				return
			}
		}
	}
}

func validLimit(field string, limit int) (int, error) {
	if limit < 0 {
		return 0, invalid(field, "is negative")
	}
	return min(orElse(limit, defaultLimit), maxLimit), nil
}

func (o ListOptions) validate() error {
	for _, f := range []struct{ name, value string }{
		{"ListOptions.DefinitionID", o.DefinitionID}, {"ListOptions.ParentID", o.ParentID}, {"ListOptions.IDPrefix", o.IDPrefix},
	} {
		if err := optionalText(f.name, f.value); err != nil {
			return err
		}
	}
	for i, status := range o.Statuses {
		if err := optionalText(fmt.Sprintf("ListOptions.Statuses[%d]", i), status); err != nil {
			return err
		}
	}
	if o.RootsOnly && o.ParentID != "" {
		return invalid("ListOptions.RootsOnly", "excludes ParentID")
	}
	return nil
}

// rows reads until there are enough or no more: rows that harel wrote are filtered
// here, so one query may not fill the page.
func (s *Store) rows(ctx context.Context, opts ListOptions, after string, want int) ([]Summary, error) {
	var items []Summary
	if opts.Statuses != nil && len(opts.Statuses) == 0 {
		return nil, nil
	}
	for missing := want; ; missing = max(want-len(items), defaultLimit) { // many that do not match: no more small steps
		batch, err := s.rowBatch(ctx, opts, after, missing)
		if err != nil {
			return nil, err
		}
		for _, doc := range batch {
			row := summarize(doc)
			after = row.ID
			if row.Err != nil || opts.matches(row) {
				items = append(items, row)
			}
			s.reportDamage(row.Err)
		}
		if len(items) >= want || len(batch) < missing {
			return items, nil
		}
	}
}

func (s *Store) rowBatch(ctx context.Context, opts ListOptions, after string, limit int) ([]bson.Raw, error) {
	return s.find(ctx, opts.filter(after), options.Find().
		SetProjection(rowProjection).SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit)))
}

// rowProjection ships the snapshot only of documents that harel wrote.
var rowProjection = bson.D{
	{Key: "version", Value: 1}, {Key: "definition_id", Value: 1}, {Key: "parent_id", Value: 1}, {Key: "status", Value: 1},
	{Key: "outcome", Value: 1}, {Key: "active_path", Value: 1}, {Key: "updated_at", Value: 1}, {Key: "finished_at", Value: 1},
	{Key: "data", Value: bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$status", nil}}}, nil}}}, "$data", "$$REMOVE",
	}}}},
}

// filter finds the store's documents by their promoted fields, and beside them
// those without any, which harel wrote: to the server a missing field is null. Its
// shape lets one index give the order of ids, or two be merged in it.
func (o ListOptions) filter(after string) bson.D {
	filter := bson.D{{Key: "_id", Value: o.idRange(after)}}
	if o.DefinitionID != "" {
		filter = append(filter, bson.E{Key: "definition_id", Value: o.DefinitionID})
	}
	filter = append(filter, committed)
	if o.RootsOnly {
		filter = append(filter, bson.E{Key: "parent_id", Value: nil})
	}
	if o.ParentID != "" { // null here would be all roots
		own := bson.D{{Key: "parent_id", Value: o.ParentID}}
		return bson.D{{Key: "$or", Value: bson.A{
			slices.Concat(filter, own, o.statusFilter(), o.timeFilter()),
			slices.Concat(filter, foreign),
		}}}
	}
	filter = append(filter, o.statusFilter(nil)...)
	if times := o.timeFilter(); len(times) > 0 {
		filter = append(filter, bson.E{Key: "$or", Value: bson.A{foreign, times}})
	}
	return filter
}

// committed leaves out what AppendTrace made before the first commit.
var committed = bson.E{Key: "$nor", Value: bson.A{bson.D{{Key: "version", Value: nil}, {Key: "data", Value: nil}}}}

// foreign finds the documents without promoted fields.
var foreign = bson.D{{Key: "status", Value: nil}}

func (o ListOptions) statusFilter(others ...any) bson.D {
	if len(o.Statuses) == 0 {
		return nil
	}
	for _, status := range o.Statuses {
		others = append(others, status)
	}
	return bson.D{{Key: "status", Value: bson.D{{Key: "$in", Value: others}}}}
}

func (o ListOptions) timeFilter() (times bson.D) {
	if !o.UpdatedBefore.IsZero() {
		times = append(times, bson.E{Key: "updated_at", Value: bson.D{{Key: "$lt", Value: toSeconds(o.UpdatedBefore)}}})
	}
	if !o.FinishedBefore.IsZero() {
		times = append(times, bson.E{Key: "finished_at", Value: bson.D{{Key: "$lt", Value: toSeconds(o.FinishedBefore)}}})
	}
	return times
}

// idRange is the ids after a position, and with a prefix those that have it. Ids
// that are not text are not ours.
func (o ListOptions) idRange(after string) bson.D {
	bounds := bson.D{{Key: "$gte", Value: o.IDPrefix}}
	if o.IDPrefix == "" {
		bounds = bson.D{{Key: "$gt", Value: ""}} // an empty id is no id
	}
	if after != "" && after >= o.IDPrefix {
		bounds = bson.D{{Key: "$gt", Value: after}}
	}
	if last := prefixEnd(o.IDPrefix); last != "" {
		bounds = append(bounds, bson.E{Key: "$lt", Value: last})
	}
	return append(bounds, noSymbols)
}

// noSymbols leaves out symbols, which compare as text and are none.
var noSymbols = bson.E{Key: "$type", Value: "string"}

// prefixEnd is the first text after all with the prefix, in the order of bytes,
// which is that of code points; empty: there is none.
func prefixEnd(prefix string) string {
	runes := []rune(prefix)
	for i := len(runes) - 1; i >= 0; i-- {
		switch next := runes[i] + 1; {
		case next == 0xD800:
			return string(append(runes[:i], 0xE000))
		case next <= 0x10FFFF:
			return string(append(runes[:i], next))
		}
	}
	return ""
}

// matches applies the filter to a row that harel wrote.
func (o ListOptions) matches(row Summary) bool {
	before := func(t, limit time.Time) bool { return limit.IsZero() || !t.IsZero() && t.Before(limit) }
	return (o.Statuses == nil || slices.Contains(o.Statuses, row.Status)) &&
		(o.ParentID == "" || row.ParentID == o.ParentID) &&
		(!o.RootsOnly || row.ParentID == "") &&
		before(row.UpdatedAt, o.UpdatedBefore) && before(row.FinishedAt, o.FinishedBefore)
}

// summarize fills a row from the promoted fields, or from the snapshot.
func summarize(doc bson.Raw) Summary {
	id, _ := doc.Lookup("_id").StringValueOK()
	r := &reader{id: id, doc: doc}
	row := Summary{ID: id, Version: r.version()}
	if missing(doc.Lookup("status")) {
		r.snapshotRow(&row)
	} else {
		p := r.promoted()
		row.DefinitionID, row.ParentID, row.Status, row.Outcome, row.ActivePath = p.definitionID, p.parentID, p.status, p.outcome, p.activePath
		row.UpdatedAt, row.FinishedAt = r.time("updated_at"), r.time("finished_at")
	}
	if err := r.failed(); err != nil {
		return Summary{ID: id, Err: err}
	}
	return row
}

func (r *reader) time(field string) time.Time {
	if at, ok := r.seconds(field); ok {
		return fromSeconds(at)
	}
	return time.Time{}
}

// snapshotRow reads the fields of a row from a snapshot in JSON.
func (r *reader) snapshotRow(row *Summary) {
	row.DefinitionID = r.text("definition_id")
	data, text := r.data()
	if r.err != nil || !text {
		return // another codec's snapshot tells nothing here
	}
	snap, err := readSnapshot(data)
	if err != nil {
		r.damaged("data", "is not JSON of an execution: "+err.Error())
		return
	}
	row.DefinitionID = orElse(snap.DefinitionID, row.DefinitionID)
	row.ParentID, row.Status, row.Outcome, row.ActivePath = snap.ParentID, snap.Status, snap.Outcome, snap.ActivePath
	row.UpdatedAt, row.FinishedAt = snap.time(snap.UpdatedAt), snap.time(snap.FinishedAt)
}

// snapshot is what harel keeps in its JSON that the store promotes.
type snapshot struct {
	DefinitionID string   `json:"definition_id"`
	ParentID     string   `json:"parent_id"`
	Status       string   `json:"status"`
	Outcome      string   `json:"outcome"`
	ActivePath   string   `json:"active_path"`
	UpdatedAt    *float64 `json:"updated_at"`
	FinishedAt   *float64 `json:"finished_at"`
}

func readSnapshot(data []byte) (snap snapshot, err error) {
	err = json.Unmarshal(data, &snap)
	return snap, err
}

func (snapshot) time(at *float64) time.Time {
	if at == nil || !fitsSeconds(*at) {
		return time.Time{}
	}
	return fromSeconds(*at)
}

// reportDamage tells Config.OnDamaged of a document that was passed over.
func (s *Store) reportDamage(err error) {
	if damaged, ok := err.(*DamagedError); ok {
		s.cfg.OnDamaged(damaged)
	}
}
