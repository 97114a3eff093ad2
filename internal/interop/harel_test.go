package interop

import (
	"encoding/json"
)

// The operations of harel's store, as harel_side.py serves them.

type args = map[string]any

// load gives the snapshot's JSON text; empty: harel has none.
func (h *harelSide) load(id string) string {
	h.t.Helper()
	var data *string
	h.call("load", args{"id": id}, &data)
	if data == nil {
		return ""
	}
	return *data
}

type harelRow struct {
	ID           string   `json:"id"`
	DefinitionID string   `json:"definition_id"`
	Status       string   `json:"status"`
	Outcome      *string  `json:"outcome"`
	ActivePath   *string  `json:"active_path"`
	Version      int64    `json:"version"`
	ParentID     *string  `json:"parent_id"`
	FinishedAt   *float64 `json:"finished_at"`
}

// list reads all pages.
func (h *harelSide) list(filter args) []harelRow {
	h.t.Helper()
	query := args{"limit": 7}
	for k, v := range filter {
		query[k] = v
	}
	var rows []harelRow
	for {
		var page struct {
			Items []harelRow
			Next  *string
		}
		h.call("list", query, &page)
		rows = append(rows, page.Items...)
		if page.Next == nil {
			return rows
		}
		query["cursor"] = *page.Next
	}
}

type harelCommit struct {
	Data      string       `json:"data"`
	Emits     [][2]*string `json:"emits"`
	Processed *string      `json:"processed"`
	Timers    []harelTimer `json:"timers"`
	Spawns    [][3]any     `json:"spawns"`
	Trace     any          `json:"trace"`
}

type harelTimer struct {
	Action string  `json:"action"`
	Path   string  `json:"path"`
	FireAt float64 `json:"fire_at"`
}

type harelCommitted struct {
	Version int64
	Seqs    []int64
}

func (h *harelSide) commit(c harelCommit) harelCommitted {
	h.t.Helper()
	done, err := h.tryCommit(c)
	if err != nil {
		h.t.Fatal(err)
	}
	return done
}

func (h *harelSide) tryCommit(c harelCommit) (done harelCommitted, err error) {
	h.t.Helper()
	if c.Emits == nil {
		c.Emits = [][2]*string{}
	}
	if c.Timers == nil {
		c.Timers = []harelTimer{}
	}
	if c.Spawns == nil {
		c.Spawns = [][3]any{}
	}
	err = h.try("commit", c, &done)
	return done, err
}

type harelOutbox struct {
	Seq      int64   `json:"seq"`
	TargetID *string `json:"target_id"`
	Event    string  `json:"event"`
}

func (h *harelSide) pendingOutbox() (entries []harelOutbox) {
	h.t.Helper()
	h.call("pending_outbox", nil, &entries)
	return entries
}

type harelSpawn struct {
	Seq      int64           `json:"seq"`
	ParentID string          `json:"parent_id"`
	ChildID  string          `json:"child_id"`
	RootPath string          `json:"root_path"`
	Context  json.RawMessage `json:"context"`
}

func (h *harelSide) pendingSpawns() (entries []harelSpawn) {
	h.t.Helper()
	h.call("pending_spawns", nil, &entries)
	return entries
}

// dueTimer is what harel gives as a tuple, the number as Python writes it.
type dueTimer struct {
	ID, Path string
	FireAt   json.Number
}

// entryID is the id of the event that harel makes of the timer.
func (d dueTimer) entryID() string { return "timeout:" + d.ID + ":" + d.Path + ":" + d.FireAt.String() }

func (d *dueTimer) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&d.ID, &d.Path, &d.FireAt})
}

func (h *harelSide) dueTimers(now float64) (due []dueTimer) {
	h.t.Helper()
	h.call("due_timers", args{"now": now}, &due)
	return due
}

func (h *harelSide) deleteTimer(id, path string, fireAt any) {
	h.t.Helper()
	h.call("delete_timer", args{"id": id, "path": path, "fire_at": fireAt}, nil)
}

func (h *harelSide) isProcessed(id, eventID string) (seen bool) {
	h.t.Helper()
	h.call("is_processed", args{"id": id, "event_id": eventID}, &seen)
	return seen
}

func (h *harelSide) loadForEvent(id, eventID string) (data string, seen bool) {
	h.t.Helper()
	var found struct {
		Data *string
		Seen bool
	}
	h.call("load_for_event", args{"id": id, "event_id": eventID}, &found)
	if found.Data != nil {
		data = *found.Data
	}
	return data, found.Seen
}

func (h *harelSide) readTrace(id string) (steps []json.RawMessage) {
	h.t.Helper()
	h.call("read_trace", args{"id": id}, &steps)
	return steps
}

func (h *harelSide) purge(id string, version int64) (deleted bool) {
	h.t.Helper()
	h.call("purge", args{"id": id, "version": version}, &deleted)
	return deleted
}
