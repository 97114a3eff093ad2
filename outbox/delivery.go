package outbox

import (
	"context"
	"encoding/json"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Delivery is one event on its way to one handler. It is plain data: ID and Token are
// enough to hand it over, also from another process.
type Delivery struct {
	// ID is the handler and the event's id, with a colon between.
	ID string
	// Handler is whom it is for.
	Handler string
	// Token names the lease that it was claimed under; empty from List.
	Token string
	// Status is waiting (behind another of its key), pending, processing, completed or
	// dead.
	Status string
	// LastError is why it failed last; empty: it has not.
	LastError string
	// Message is the event. Its Payload is a json.RawMessage.
	Message Message
	// Sequence is its place within its key; 0 without a key.
	Sequence int64
	// Attempt counts claims, 1 the first; what was released does not count.
	Attempt int
	// DueAt is from when it may be claimed, for a leased one when it may be again. Zero
	// for one that waits, or is finished.
	DueAt time.Time
	// Until is when its lease ends, by Config.Clock; zero: it has none.
	Until time.Time

	lane        string
	next        string    // what waited behind it when it was claimed; empty: nothing, or not known
	nextDue     time.Time // from when next is due
	looked      bool      // next was looked up
	runs        int       // begun runs of its handler that the bus has noted
	publishedAt time.Time
}

// delivery is d without its event.
func (d stored) delivery() *Delivery {
	out := &Delivery{
		ID: d.id, Handler: d.handler, Status: d.status, LastError: d.lastError,
		Message:  Message{ID: d.eventID, Type: d.typ, Key: d.key, NotBefore: d.availableAt},
		Sequence: d.sequence, Attempt: int(d.attempts), DueAt: d.dueAt, lane: laneOf(d.handler, d.key), runs: int(d.runs),
	}
	if d.status == processing {
		out.Token, out.Until = d.token, d.dueAt
	}
	return out
}

// event fills in the event. What cannot be read is told; empty: nothing.
func (d *Delivery) event(doc bson.Raw) (damage string) {
	if doc == nil {
		return "its event is not stored"
	}
	payload, isText := doc.Lookup("payload").StringValueOK()
	stored := doc.Lookup("headers")
	headers, err := headersOf(text(stored))
	switch {
	case !isText || !json.Valid([]byte(payload)):
		return "the payload of its event is no JSON text"
	case err != nil, stored.Type != 0 && headers == nil:
		return "the headers of its event are no JSON object"
	}
	d.Message.Payload, d.Message.Headers = json.RawMessage(payload), headers
	d.Message.Type = orElse(text(doc.Lookup("type")), d.Message.Type)
	d.Message.Handlers = texts(doc.Lookup("handlers"))
	d.publishedAt = date(doc.Lookup("created_at"))
	return ""
}

// eventsOf reads the events of deliveries, by id.
func (s *Store) eventsOf(ctx context.Context, ids []string) (map[string]bson.Raw, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	docs, err := s.find(ctx, s.events, op("_id", op("$in", ids)))
	events := make(map[string]bson.Raw, len(docs))
	for _, doc := range docs {
		events[text(doc.Lookup("_id"))] = doc
	}
	return events, err
}
