package interop

import (
	"encoding/json"

	"github.com/execstore/mongostore"
)

// Execution has the 22 fields of a harel 0.9.0 execution. What Go need not look
// into stays the JSON text that harel wrote, so that it comes back unchanged:
// integers of any size, 1.0 and 1e+16, the order of keys.
//
// harel reads null in error and the like as its default, but refuses it for
// history, context, deferred, children and invoke_seq, which are left out when
// empty, as are the Header's parent_id, outcome and active_path.
type Execution struct {
	mongostore.Header

	DefinitionFQN   *string         `json:"definition_fqn"`
	RootPath        string          `json:"root_path"`
	Error           *string         `json:"error"`
	History         json.RawMessage `json:"history,omitempty"`
	Context         json.RawMessage `json:"context,omitempty"`
	ProcessedEvents json.Number     `json:"processed_events,omitempty"`
	Priority        int             `json:"priority"`
	ChildID         *string         `json:"child_id"`
	Deferred        json.RawMessage `json:"deferred,omitempty"`
	Children        json.RawMessage `json:"children,omitempty"`
	InvokeSeq       json.RawMessage `json:"invoke_seq,omitempty"`

	// Seconds since the epoch as harel wrote them, to the last digit; nil where
	// it has not, or is older than 0.9.0.
	CreatedAt  *json.Number `json:"created_at"`
	UpdatedAt  *json.Number `json:"updated_at"`
	FinishedAt *json.Number `json:"finished_at"`
	ExpiresAt  *json.Number `json:"expires_at"`
}

// Event is a harel event.
type Event struct {
	ID           string          `json:"id"`
	Kind         string          `json:"kind"`
	CreatedTime  *string         `json:"created_time"`
	ReceivedTime *string         `json:"received_time"`
	Data         json.RawMessage `json:"data,omitempty"`
}
