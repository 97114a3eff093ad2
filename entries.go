package mongostore

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Entry is a piece of work that an execution owes: an OutboxEntry, a SpawnEntry or
// a Timer. Entries are plain data and may travel.
type Entry interface {
	// EntryID is unique and stable: deduplicate deliveries by it.
	EntryID() string
	entry()
}

// OutboxEntry is an emitted event that waits for delivery.
type OutboxEntry struct {
	// ExecutionID emitted it.
	ExecutionID string
	// TargetID is the execution to deliver to; empty: no target.
	TargetID string
	// Seq is its number, rising within an execution.
	Seq int64
	// Event is the encoded event.
	Event []byte
	// Token is the lease it was claimed under; empty: from a sweep.
	Token string
	// Attempt counts deliveries, 1 the first; 0: from a sweep.
	Attempt int

	codec Codec // nil: JSON text
}

// SpawnEntry is a child execution that waits for its creation.
type SpawnEntry struct {
	// ParentID asked for it; ChildID is to be created; RootPath is where it starts.
	ParentID, ChildID, RootPath string
	// Seq is its number, rising within an execution.
	Seq int64
	// Input is the BSON document that the parent gave.
	Input bson.Raw
	// Token is the lease it was claimed under; empty: from a sweep.
	Token string
	// Attempt counts deliveries, 1 the first; 0: from a sweep.
	Attempt int
}

// Timer is an armed timer.
type Timer struct {
	// ExecutionID armed it under Path.
	ExecutionID, Path string
	// FireAt is when it is due, in UTC: what was armed to the microsecond comes back
	// equal, and what harel armed finer is exact.
	FireAt time.Time
	// Token is the lease it was claimed under; empty: from a sweep.
	Token string
	// Attempt counts deliveries, 1 the first; 0: from a sweep.
	Attempt int
}

// Decode reads the event into v, by JSON or by Config.Codec, whichever wrote it.
// Returns ErrDamaged if the event cannot be decoded.
func (e OutboxEntry) Decode(v any) error {
	unmarshal := json.Unmarshal
	if e.codec != nil {
		unmarshal = e.codec.Unmarshal
	}
	if err := unmarshal(e.Event, v); err != nil {
		return &DamagedError{ExecutionID: e.ExecutionID, Field: "outbox.event", Reason: "seq " + strconv.FormatInt(e.Seq, 10) + ": " + err.Error(), cause: err}
	}
	return nil
}

// Decode reads Input into v, by bson tags, else json tags; documents inside a
// map[string]any become maps. Returns ErrDamaged if it cannot be decoded.
func (e SpawnEntry) Decode(v any) error {
	if err := decodeBSON(e.Input, v); err != nil {
		return &DamagedError{ExecutionID: e.ParentID, Field: "spawns.context", Reason: "seq " + strconv.FormatInt(e.Seq, 10) + ": " + err.Error(), cause: err}
	}
	return nil
}

// EntryID is outbox:<execution>:<seq>.
func (e OutboxEntry) EntryID() string {
	return "outbox:" + e.ExecutionID + ":" + strconv.FormatInt(e.Seq, 10)
}

// EntryID is spawn:<execution>:<seq>.
func (e SpawnEntry) EntryID() string {
	return "spawn:" + e.ParentID + ":" + strconv.FormatInt(e.Seq, 10)
}

// EntryID is timeout:<execution>:<path>:<fire_at>, as harel makes it: the same
// path armed again for the same time is the same timer.
func (t Timer) EntryID() string {
	return "timeout:" + t.ExecutionID + ":" + t.Path + ":" + pythonFloat(toSeconds(t.FireAt))
}

func (OutboxEntry) entry() {}
func (SpawnEntry) entry()  {}
func (Timer) entry()       {}

// pythonFloat writes f as Python's repr does, which harel puts into its ids.
func pythonFloat(f float64) string {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
