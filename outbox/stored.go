package outbox

import (
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The states of a delivery, in documents, filters and statistics alike.
const (
	waiting    = "waiting"    // behind another one of its lane
	pending    = "pending"    // to be claimed from due_at on
	processing = "processing" // leased until due_at
	completed  = "completed"
	dead       = "dead"
)

// stored is a delivery's document. What it lacks, or has of another type, is zero.
type stored struct {
	id, handler, eventID, typ, key, status, token, lastError, lane string

	sequence                 int64
	attempts, requeues, runs int64
	availableAt, dueAt       time.Time
	finishedAt               time.Time
	idValue                  bson.RawValue // whatever its type
	damaged                  string        // what cannot be read; empty: nothing
}

func readStored(doc bson.Raw) stored {
	d := stored{
		id: text(doc.Lookup("_id")), handler: text(doc.Lookup("handler")), eventID: text(doc.Lookup("event_id")),
		typ: text(doc.Lookup("type")), key: text(doc.Lookup("key")), status: text(doc.Lookup("status")),
		token: text(doc.Lookup("token")), lastError: text(doc.Lookup("last_error")), lane: text(doc.Lookup("active_lane")),
		availableAt: date(doc.Lookup("available_at")), dueAt: date(doc.Lookup("due_at")), finishedAt: date(doc.Lookup("finished_at")),
		idValue: doc.Lookup("_id"),
	}
	var numbered bool
	d.sequence, numbered = doc.Lookup("sequence").AsInt64OK()
	attempts := doc.Lookup("attempts")
	var counted bool
	d.attempts, counted = attempts.AsInt64OK()
	d.requeues, _ = doc.Lookup("requeues").AsInt64OK()
	d.runs, _ = doc.Lookup("runs").AsInt64OK()
	keyed := doc.Lookup("key").Type != 0 || doc.Lookup("active_lane").Type != 0
	switch {
	case d.id == "":
		d.damaged = "_id is no string"
	case d.id != d.handler+":"+d.eventID:
		d.damaged = "_id is not made of handler and event_id"
	case keyed && (d.key == "" || !numbered):
		d.damaged = "key or sequence cannot be read"
	case keyed && doc.Lookup("active_lane").Type != 0 && d.lane != laneOf(d.handler, d.key):
		d.damaged = "active_lane is not made of handler and key"
	case attempts.Type != 0 && (!counted || d.attempts < 0 || d.attempts > math.MaxInt32):
		d.damaged = "attempts is no number of attempts"
	}
	return d
}

func text(v bson.RawValue) string {
	s, _ := v.StringValueOK()
	return s
}

// date is the zero time for what is no date.
func date(v bson.RawValue) time.Time {
	ms, ok := v.DateTimeOK()
	if !ok {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
