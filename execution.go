package mongostore

import "time"

// Header is what the store knows of an execution. Embed it by value in the
// engine's own type, and a pointer to that type is an Execution:
//
//	type Order struct {
//		mongostore.Header
//		Total int `json:"total"`
//	}
//
// Its JSON stays flat. A copy of a loaded value, or one that was decoded from
// elsewhere, commits like the original; what a copy lacks costs at most one round
// trip more. A value belongs to one goroutine at a time.
type Header struct {
	// ID names the execution: not empty, UTF-8, without NUL.
	ID string `json:"id" bson:"id"`
	// DefinitionID names the workflow or machine that the execution runs; may be empty.
	DefinitionID string `json:"definition_id" bson:"definition_id"`
	// ParentID is the execution that spawned this one; empty for a root.
	ParentID string `json:"parent_id,omitempty" bson:"parent_id,omitempty"`
	// Status is the engine's own word; those in Config.FinishedStatuses end it.
	Status string `json:"status" bson:"status"`
	// Outcome is the engine's own word for how it ended; may be empty.
	Outcome string `json:"outcome,omitempty" bson:"outcome,omitempty"`
	// ActivePath is the node where the execution stands; may be empty.
	ActivePath string `json:"active_path,omitempty" bson:"active_path,omitempty"`
	// Version counts commits. 0 has never been stored; only Commit and Load move it.
	Version int64 `json:"version" bson:"version"`

	known known
}

// ExecutionHeader gives the Header itself, so that engines and fakes can work on
// any Execution.
func (h *Header) ExecutionHeader() *Header { return h }

// Execution is a pointer to a struct that embeds Header by value, directly or
// through other structs. One goroutine at a time may use it.
type Execution interface{ ExecutionHeader() *Header }

// Changes is everything beside the snapshot that one Commit writes. The zero
// value changes nothing else. Commit does not keep or change it.
type Changes struct {
	// Emits are events to deliver, in this order.
	Emits []Emit
	// Spawns are child executions to create, in this order.
	Spawns []Spawn
	// Timers are armed and cancelled in order; of one path the last one wins.
	Timers []TimerOp
	// Processed is the id of the event that this commit handles; empty: none. It is
	// remembered for deduplication together with the newest Config.ProcessedMax.
	Processed string
	// Trace is one step of the timeline; nil: none. It is any value that encodes as a
	// BSON document: a map, a bson.D, or a struct (by bson tags, else json tags). Its
	// field index is set by the store.
	Trace any
	// Acks are entries of this same execution, an OutboxEntry, SpawnEntry or Timer
	// each, that are gone with the same update. Those with a Token make the commit
	// fail with ErrLeaseLost once the lease is not held any more. A timer goes only
	// if it still stands at its FireAt.
	Acks []Entry
}

// Emit is an event for another execution, or for the outside.
type Emit struct {
	// TargetID is the execution to deliver to; empty: no target.
	TargetID string
	// Event is encoded by Config.Codec, nil too; a json.RawMessage is stored as it is.
	Event any
}

// Spawn is a child execution to be created by the relay.
type Spawn struct {
	// ChildID is the child's id, not empty.
	ChildID string
	// RootPath is the node that the child starts from; may be empty.
	RootPath string
	// Input is any value that encodes as a BSON document, nil an empty one. It is
	// stored as context.
	Input any
}

// TimerOp arms or cancels the timer of one node path.
type TimerOp struct {
	// Path names the timer within the execution; any text without NUL.
	Path string
	// FireAt is when it is due, kept to the microsecond and as much finer as a double of
	// seconds is (a quarter of one), between the years 1 and 9999. The zero time is refused unless Cancel is set.
	FireAt time.Time
	// Cancel removes the timer; one that is not armed is no error.
	Cancel bool
}

// CommitResult is what a landed commit did.
type CommitResult struct {
	// Version is the execution's version now.
	Version int64
	// OutboxSeqs and SpawnSeqs are the numbers given to Emits and Spawns, in order.
	OutboxSeqs, SpawnSeqs []int64
	// Deduplicated says, from Commit, that Processed had been recorded before (the
	// rest has landed); from Update, that fn did not run; from CreateChild, that the
	// child was there.
	Deduplicated bool
}
