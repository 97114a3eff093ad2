package mongostore

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// known is what a Header remembers of its document between Load and Commit: plain
// data, so that a copy of the value remembers the same and shares nothing that
// changes. It counts only while version is the Header's.
type known struct {
	id        string   // of the execution
	version   int64    // what the rest is about; 0: nothing is known
	slot      commitID // commits.<version mod 8>; zero: absent
	stored    promoted // the promoted fields as they stand in the document
	current   bool     // they were written by the commit to version
	traceNext int64    // trace_next; absentTrace: not in the document
	seqHigh   perKind  // seq_hi
	open      *openTry // what is not known to have landed, newest first
}

const (
	absentTrace  = -1 // no trace_next in the document
	unknownTrace = -2 // not asked yet
)

// promoted are the header fields that stand in the document itself.
type promoted struct {
	definitionID, parentID, status, outcome, activePath string
}

func promotedOf(h *Header) promoted {
	return promoted{h.DefinitionID, h.ParentID, h.Status, h.Outcome, h.ActivePath}
}

func (p promoted) fill(h *Header) {
	h.DefinitionID, h.ParentID, h.Status, h.Outcome, h.ActivePath = p.definitionID, p.parentID, p.status, p.outcome, p.activePath
}

// recall gives what h remembers of its current version.
func (h *Header) recall() (known, bool) {
	if h.Version == 0 || h.known.version != h.Version || h.known.id != h.ID {
		return known{}, false
	}
	return h.known, true
}

// openTry is an attempt that ended without an answer. The list is never changed,
// only put a new head on, so copies of a Header may share it.
type openTry struct {
	attempt attempt
	digest  [32]byte
	older   *openTry
}

// openTries gives the attempts that are open for the current version.
func (h *Header) openTries() *openTry {
	if h.known.open == nil || h.known.open.attempt.old != h.Version || h.known.open.attempt.plan.id != h.ID {
		return nil
	}
	return h.known.open
}

// remember puts an attempt that is open at the head of the tries, as it is now.
func (h *Header) remember(a *attempt) {
	older := h.openTries().without(a.id)
	h.known.open = &openTry{attempt: *a, digest: a.digest(), older: older}
}

// without is the list less one try.
func (o *openTry) without(id commitID) *openTry {
	switch {
	case o == nil:
		return nil
	case o.attempt.id == id:
		return o.older
	}
	return &openTry{attempt: o.attempt, digest: o.digest, older: o.older.without(id)}
}

// has reports whether id is one of the tried ones.
func (o *openTry) has(id commitID) bool {
	for ; o != nil; o = o.older {
		if o.attempt.id == id {
			return true
		}
	}
	return false
}

// find gives the try with the same contents.
func (o *openTry) find(digest [32]byte) *openTry {
	for ; o != nil; o = o.older {
		if o.digest == digest {
			return o
		}
	}
	return nil
}

// commitID marks one commit in the document: the version it makes, modulo 2^32,
// and 8 random bytes. The version tells a slot that is current from one that a
// foreign writer passed over.
type commitID [12]byte

func newCommitID(version int64) commitID {
	var id commitID
	binary.BigEndian.PutUint32(id[:4], uint32(version))
	binary.BigEndian.PutUint64(id[4:], rand.Uint64())
	return id
}

func (id commitID) makes(version int64) bool {
	return id != commitID{} && binary.BigEndian.Uint32(id[:4]) == uint32(version)
}

// slots is how many commits a document remembers.
const slots = 8

func slotKey(version int64) string { return strconv.FormatInt(version%slots, 10) }

// slotOf reads commits.<version mod 8>; zero if it is absent or foreign.
func slotOf(doc bson.Raw, version int64) commitID {
	oid, ok := within(doc, "commits", slotKey(version)).ObjectIDOK()
	if !ok {
		return commitID{}
	}
	return commitID(oid)
}
