package mongostore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Inspection is one whole document, for operators and tests.
type Inspection struct {
	// Summary is its row; Summary.Err tells of damage anywhere in the document, and
	// what could be read is there all the same.
	Summary Summary
	// Data is the snapshot as the codec made it: JSON, unless Config.Codec is another.
	Data []byte
	// Outbox, Spawns and Timers are what it owes, in order.
	Outbox []OutboxEntry
	Spawns []SpawnEntry
	Timers []Timer
	// Dead are the entries that were given up, in the order of burial.
	Dead []DeadLetter
	// Trace are the kept steps, oldest first; ReadTrace decodes them by json tags too.
	Trace []bson.Raw
	// Processed counts the event ids kept; Bytes is the size of the document.
	Processed, Bytes int
	// LeasedUntil is the end of the lease that somebody holds, also when it has passed;
	// zero: free, or backing off.
	LeasedUntil time.Time
}

// Inspect reads one whole document, in one round trip. It reads what a damaged one
// still tells, with Summary.Err set, and also what AppendTrace made before any
// commit, with Version 0.
// Returns ErrNotFound if there is nothing under id.
// Returns ErrInvalid if id is not valid.
func (s *Store) Inspect(ctx context.Context, id string) (*Inspection, error) {
	if err := validText("id", id); err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(outside(ctx))
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(id)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, &opError{op: "inspect", id: id, sentinel: ErrNotFound}
	}
	if err != nil {
		return nil, wrapErr("inspect", id, err)
	}
	return s.inspection(id, doc), nil
}

func (s *Store) inspection(id string, doc bson.Raw) *Inspection {
	in := &Inspection{Summary: Summary{ID: id}, Bytes: len(doc)}
	r := &reader{id: id, doc: doc}
	if !isStub(doc) {
		in.Summary = summarize(doc)
		in.Data, _ = r.data()
	}
	for _, raw := range r.elements("outbox") {
		in.Outbox = append(in.Outbox, s.readOutboxEntry(r, raw))
	}
	for _, raw := range r.elements("spawns") {
		in.Spawns = append(in.Spawns, readSpawnEntry(r, raw))
	}
	in.Timers = r.timers()
	for _, raw := range r.elements("trace") {
		in.Trace = append(in.Trace, bytes.Clone(raw))
	}
	for _, l := range s.lettersOf(doc) {
		in.Dead = append(in.Dead, l.letter)
	}
	in.Processed = r.count("processed")
	if until, ok := seconds(within(doc, "lease", "until")); ok && !missing(within(doc, "lease", "token")) {
		in.LeasedUntil = fromSeconds(until)
	}
	if in.Summary.Err == nil {
		in.Summary.Err = r.failed()
	}
	return in
}

// timers reads all armed timers, the earliest first.
func (r *reader) timers() []Timer {
	v := r.doc.Lookup("timers")
	if missing(v) {
		return nil
	}
	doc, ok := v.DocumentOK()
	if !ok {
		r.damaged("timers", "is "+typeName(v)+", not a document")
		return nil
	}
	elements, err := doc.Elements()
	if err != nil {
		r.damaged("timers", err.Error())
	}
	var out []Timer
	for _, e := range elements {
		if t, ok := r.timer(e.Key(), e.Value()); ok {
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b Timer) int { return a.FireAt.Compare(b.FireAt) })
	return out
}

func (r *reader) count(field string) int {
	v := r.doc.Lookup(field)
	if missing(v) {
		return 0
	}
	arr, ok := v.ArrayOK()
	if !ok {
		r.damaged(field, "is "+typeName(v)+", not an array")
		return 0
	}
	values, _ := arr.Values()
	return len(values)
}
