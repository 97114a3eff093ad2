package outbox

import (
	"context"
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/cursor"
)

// ListOptions filter deliveries; an empty field does not.
type ListOptions struct {
	// Handler, Key and Type are compared exactly. Type, and whatever else is not the most
	// selective of the filters, costs what the others match.
	Handler, Type, Key string
	// Status is waiting, pending, processing, completed or dead.
	Status string
	// Limit is the most items of a page. 0 is 100; negative, and more than 10,000, is
	// refused.
	Limit int
	// Cursor is the Next of the page before.
	Cursor string
}

// Page is a part of a listing.
type Page struct {
	// Items have no Token: who lists does not hold.
	Items []Delivery
	// Next is the Cursor of the next page; empty: this is the last.
	Next string
}

const (
	defaultList = 100
	mostListed  = 10_000
)

// List gives deliveries with their events, page by page: those of a key by their
// sequence, finished ones the longest finished first, waiting ones by handler and key,
// all others by id. A delivery that exists throughout, and does not change what orders
// it, appears exactly once.
// Returns ErrInvalid for a status that is none, a text that is not UTF-8, a Limit that
// makes no sense, or a Cursor that is not from a List with the same filter.
func (s *Store) List(ctx context.Context, opts ListOptions) (*Page, error) {
	if err := opts.valid(); err != nil {
		return nil, err
	}
	order := opts.order()
	filter := opts.filter()
	digest := opts.digest()
	after, reason := cursor.Decode(opts.Cursor, digest)
	if reason == "" && after != "" {
		filter, reason = afterPosition(filter, order, after)
	}
	if reason != "" {
		return nil, invalid("ListOptions.Cursor", reason)
	}
	limit := orElse(opts.Limit, defaultList)
	sort := bson.D{}
	for _, field := range order {
		sort = append(sort, bson.E{Key: field, Value: 1})
	}
	ctx = outside(ctx)
	docs, err := s.find(ctx, s.deliveries, filter, options.Find().SetSort(sort).SetLimit(int64(limit)+1).SetBatchSize(int32(limit)+2))
	if err != nil {
		return nil, wrapErr("list", err)
	}
	page := &Page{}
	if len(docs) > limit {
		docs = docs[:limit]
		page.Next = cursor.Encode(position(docs[limit-1], order), digest)
	}
	page.Items, err = s.items(ctx, docs)
	return page, wrapErr("list", err)
}

func (o ListOptions) valid() error {
	for _, f := range []struct{ name, value string }{{"Handler", o.Handler}, {"Type", o.Type}, {"Key", o.Key}} {
		if err := optionalText("ListOptions."+f.name, f.value); err != nil {
			return err
		}
	}
	switch {
	case o.Status != "" && !slices.Contains([]string{waiting, pending, processing, completed, dead}, o.Status):
		return invalid("ListOptions.Status", "is none of waiting, pending, processing, completed and dead")
	case o.Limit < 0:
		return invalid("ListOptions.Limit", "is negative")
	case o.Limit > mostListed:
		return invalid("ListOptions.Limit", fmt.Sprintf("is above %d", mostListed))
	}
	return nil
}

func (o ListOptions) digest() []byte {
	return cursor.Digest("%q %q %q %q", o.Handler, o.Status, o.Type, o.Key)
}

// order is that of the index that the filter can use best.
func (o ListOptions) order() []string {
	switch {
	case o.Key != "":
		return []string{"sequence", "_id"}
	case o.Status == dead, o.Status == completed && o.Handler == "":
		return []string{"finished_at", "_id"}
	case o.Status == waiting:
		return []string{"waiting_lane", "sequence"}
	}
	return []string{"_id"}
}

func (o ListOptions) filter() bson.D {
	filter := bson.D{}
	equal := func(field, value string) {
		if value != "" {
			filter = append(filter, bson.E{Key: field, Value: op("$eq", value)})
		}
	}
	equal("key", o.Key)
	equal("status", o.Status)
	equal("type", o.Type)
	equal("handler", o.Handler)
	for _, field := range o.order() {
		handler := "" // where its ids come in another order, they have no range
		if field == o.order()[0] {
			handler = o.Handler
		}
		filter = append(filter, bson.E{Key: field, Value: orderable(field, handler)})
	}
	return filter
}

// orderable is what a field must hold for a page to end there: a comparison goes past
// what is of another type, and would end the listing. What else stands there is damage.
func orderable(field, handler string) bson.D {
	switch field {
	case "sequence":
		return bson.D{{Key: "$gte", Value: math.Inf(-1)}, {Key: "$not", Value: op("$type", "array")}}
	case "finished_at":
		return bson.D{{Key: "$exists", Value: true}, {Key: "$type", Value: "date"}, {Key: "$not", Value: op("$type", "array")}}
	}
	return append(prefixed(handler), bson.E{Key: "$type", Value: "string"}) // and no symbol
}

// prefixed is the range of ids, or lanes, that begin with a handler.
func prefixed(handler string) bson.D {
	if handler == "" {
		return op("$gte", "")
	}
	return bson.D{{Key: "$gte", Value: handler + ":"}, {Key: "$lt", Value: handler + ";"}} // ; comes after :
}

// position is where a document stands in an order, as BSON: JSON would change text that
// is not UTF-8.
func position(doc bson.Raw, order []string) string {
	var at bson.D
	for _, field := range order {
		at = append(at, bson.E{Key: field, Value: doc.Lookup(field)})
	}
	raw, err := bson.Marshal(at)
	if err != nil {
		return "" // what the server sent is encoded already
	}
	return string(raw)
}

// afterPosition adds to a filter that documents stand behind a position.
func afterPosition(filter bson.D, order []string, after string) (bson.D, string) {
	const foreign = "is not a cursor that List gave"
	var at bson.D
	if err := bson.Unmarshal([]byte(after), &at); err != nil || len(at) != len(order) {
		return nil, foreign
	}
	for i, e := range at {
		if e.Key != order[i] || !standsIn(e.Key, e.Value) {
			return nil, foreign
		}
	}
	if len(at) == 1 {
		return append(filter, bson.E{Key: "$and", Value: bson.A{op(order[0], op("$gt", at[0].Value))}}), ""
	}
	first, second := at[0], at[1]
	return append(filter, bson.E{Key: "$and", Value: bson.A{
		op(first.Key, op("$gte", first.Value)),
		op("$or", bson.A{
			op(first.Key, op("$gt", first.Value)),
			bson.D{{Key: first.Key, Value: op("$eq", first.Value)}, {Key: second.Key, Value: op("$gt", second.Value)}},
		}),
	}}), ""
}

// standsIn is whether a value is one that orderable lets through.
func standsIn(field string, v any) bool {
	switch v := v.(type) {
	case string:
		return field == "_id" || field == "waiting_lane"
	case bson.DateTime:
		return field == "finished_at"
	case int32, int64, bson.Decimal128:
		return field == "sequence"
	case float64:
		return field == "sequence" && !math.IsNaN(v)
	}
	return false
}

// items are deliveries with what can be read of their events.
func (s *Store) items(ctx context.Context, docs []bson.Raw) ([]Delivery, error) {
	all := make([]stored, 0, len(docs))
	ids := make([]string, 0, len(docs))
	for _, doc := range docs {
		d := readStored(doc)
		all = append(all, d)
		ids = append(ids, d.eventID)
	}
	events, err := s.eventsOf(ctx, ids)
	if err != nil {
		return nil, err
	}
	items := make([]Delivery, 0, len(all))
	for i, d := range all {
		item := d.delivery()
		if damage := item.event(events[ids[i]]); damage != "" && item.LastError == "" {
			item.LastError = "damaged: " + damage
		}
		item.Token = ""
		items = append(items, *item)
	}
	return items, nil
}
