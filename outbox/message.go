package outbox

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/internal/names"
)

// Message is an event to append, with the handlers that it is for. Its ID, Type, Key and
// handlers have at most 2,048 bytes each.
type Message struct {
	// ID names the event for ever: an id that is known already is not stored again.
	ID string
	// Type is what happened, such as order.placed.v1.
	Type string
	// Key orders: each handler gets the events of one key in the order of their commits.
	// Empty: no order.
	Key string
	// Payload is stored as its JSON text. A json.RawMessage is taken as it is, but for
	// white space; in a Delivery it always is one.
	Payload any
	// Headers are stored as JSON text too. In a Delivery numbers are json.Number, exact.
	Headers map[string]any
	// Handlers get one delivery each; at least one. An id may not hold a colon.
	Handlers []string
	// NotBefore is when the event may be delivered first, to the millisecond. Later ones
	// of its key wait for it. Zero is now.
	NotBefore time.Time
}

// entry is a message that can be stored.
type entry struct {
	id, typ, key string
	handlers     []string
	notBefore    time.Time // zero: now
	doc          bson.Raw  // the event
}

const (
	maxDocument = 16 << 20
	maxEvent    = maxDocument - 64<<10 // room for more handlers, and what a purge notes
	maxName     = 2048                 // bytes of an id, a key, a type or a handler: lists of them are sent
)

// prepare checks messages and encodes their events. One that names an id again only
// adds its handlers.
func prepare(msgs []Message, now time.Time) ([]entry, error) {
	entries, known := make([]entry, 0, len(msgs)), make(map[string]int, len(msgs))
	for i, m := range msgs {
		e, err := m.entry(now)
		if err != nil {
			return nil, at(fmt.Sprintf("Message[%d].", i), err)
		}
		if first, again := known[m.ID]; again {
			have := entries[first].handlers
			entries[first].handlers = slices.Concat(have, missing(m.Handlers, have))
			entries[first].doc = withHandlers(entries[first].doc, entries[first].handlers)
			continue
		}
		known[m.ID] = len(entries)
		entries = append(entries, e)
	}
	return entries, nil
}

func (m Message) entry(now time.Time) (entry, error) {
	if err := m.valid(); err != nil {
		return entry{}, err
	}
	payload, err := jsonText(m.Payload)
	if err != nil {
		return entry{}, invalid("Payload", err.Error())
	}
	doc := bson.D{{Key: "_id", Value: m.ID}, {Key: "type", Value: m.Type}}
	if m.Key != "" {
		doc = append(doc, bson.E{Key: "key", Value: m.Key})
	}
	doc = append(doc, bson.E{Key: "payload", Value: payload})
	if len(m.Headers) > 0 {
		headers, err := jsonText(m.Headers)
		if err != nil {
			return entry{}, invalid("Headers", err.Error())
		}
		doc = append(doc, bson.E{Key: "headers", Value: headers})
	}
	doc = append(doc, bson.E{Key: "created_at", Value: now}, bson.E{Key: "handlers", Value: m.Handlers})
	raw, err := bson.Marshal(doc)
	if err != nil {
		return entry{}, invalid("Payload", err.Error())
	}
	if len(raw) > maxEvent {
		return entry{}, tooLarge("Payload", len(raw))
	}
	e := entry{id: m.ID, typ: m.Type, key: m.Key, handlers: m.Handlers, doc: raw}
	if !m.NotBefore.IsZero() {
		e.notBefore = m.NotBefore.UTC().Truncate(time.Millisecond)
	}
	return e, nil
}

func (m Message) valid() error {
	for _, f := range []struct{ name, value string }{{"ID", m.ID}, {"Type", m.Type}} {
		if err := validText(f.name, f.value); err != nil {
			return err
		}
	}
	if err := optionalText("Key", m.Key); err != nil {
		return err
	}
	if !m.NotBefore.IsZero() && !storable(m.NotBefore) {
		return invalid("NotBefore", "is not between the years 1970 and 9999")
	}
	return validHandlers("Handlers", m.Handlers)
}

// validHandlers checks a list of handler ids.
func validHandlers(field string, handlers []string) error {
	if len(handlers) == 0 {
		return invalid(field, "is empty")
	}
	seen := make(map[string]bool, len(handlers))
	for i, h := range handlers {
		name := fmt.Sprintf("%s[%d]", field, i)
		if err := validHandler(name, h); err != nil {
			return err
		}
		if seen[h] {
			return invalid(name, "is there twice")
		}
		seen[h] = true
	}
	return nil
}

// validHandler checks an id that stands in front of a colon in other ids.
func validHandler(field, id string) error {
	if strings.Contains(id, ":") {
		return invalid(field, "holds a colon")
	}
	return validText(field, id)
}

func validText(field, s string) error {
	if s == "" {
		return invalid(field, "is empty")
	}
	return optionalText(field, s)
}

// validDelivery checks the id of a delivery: a handler and an event's id.
func validDelivery(field, id string) error {
	if id == "" {
		return invalid(field, "is empty")
	}
	return textUpTo(2*maxName+1, field, id)
}

func optionalText(field, s string) error { return textUpTo(maxName, field, s) }

func textUpTo(most int, field, s string) error {
	if len(s) > most {
		return invalid(field, fmt.Sprintf("has %d bytes, %d are allowed", len(s), most))
	}
	if reason := names.Text(s); reason != "" {
		return invalid(field, reason)
	}
	return nil
}

// storable is whether a time makes sense as a date in documents.
func storable(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 1970 && year <= 9999
}

// missing are those of wanted that have lacks.
func missing(wanted, have []string) (lacking []string) {
	there := make(map[string]bool, len(have))
	for _, h := range have {
		there[h] = true
	}
	for _, h := range wanted {
		if !there[h] {
			lacking = append(lacking, h)
		}
	}
	return lacking
}

// withHandlers replaces the handlers, which are the last field.
func withHandlers(doc bson.Raw, handlers []string) bson.Raw {
	var d bson.D
	if err := bson.Unmarshal(doc, &d); err != nil {
		return doc // it was encoded just now
	}
	d[len(d)-1].Value = handlers
	return mustEncode(d)
}

func mustEncode(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err) // strings, numbers and times always encode
	}
	return raw
}
