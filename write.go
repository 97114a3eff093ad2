package mongostore

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// The bytes of the one write. They are appended, not marshalled: nothing here is
// reflected over, and the snapshot is copied once.

// filter is what must still be true: the version, and what the update relies on.
func (s *Store) filter(a *attempt) bson.Raw {
	dst := make([]byte, 0, 192+len(a.plan.id))
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendStringElement(dst, "_id", a.plan.id)
	if a.mode == fill {
		dst = bsoncore.AppendNullElement(dst, "version")
	} else if !matchesAnyVersion() {
		dst = appendWhole(dst, "version", a.old)
	}
	if a.base.version != 0 && !ignoresCommits() {
		dst = appendSlot(dst, "commits."+slotKey(a.old), a.base.slot)
	}
	if a.processed != "" && !a.alreadyProcessed {
		dst = appendDocument(dst, "processed", func(dst []byte) []byte {
			return bsoncore.AppendStringElement(dst, "$ne", a.processed)
		})
	}
	if a.trace != nil && !a.serverTrace {
		dst = appendTraceGuard(dst, a)
	}
	if s.cfg.SeqBlock > 1 && a.base.version == 0 { // else number saw seq_hi, and version and slot say that it still stands
		dst = appendOrderGuard(dst, a)
	}
	if a.acks.token != "" && !acksWithoutToken() {
		dst = bsoncore.AppendStringElement(dst, "lease.token", a.acks.token)
	}
	if a.needsPipeline() {
		dst = bsoncore.AppendDocumentElement(dst, "$expr", bsoncore.Document(a.soundness()))
	}
	for _, t := range a.ackedTimers {
		dst = appendDocument(dst, "timers."+t.key, func(dst []byte) []byte {
			dst = bsoncore.AppendDoubleElement(dst, "$gte", t.at-nanosecond)
			return bsoncore.AppendDoubleElement(dst, "$lte", t.at+nanosecond)
		})
	}
	return end(dst, start)
}

// appendTraceGuard makes the index that the step carries still the next one.
func appendTraceGuard(dst []byte, a *attempt) []byte {
	if a.traceStored {
		return appendWhole(dst, "trace_next", a.traceIndex)
	}
	return bsoncore.AppendNullElement(dst, "trace_next")
}

// appendOrderGuard makes reserved numbers still higher than all that were given.
func appendOrderGuard(dst []byte, a *attempt) []byte {
	for _, kind := range []seqKind{outboxSeq, spawnSeq} {
		if a.count(kind) == 0 {
			continue
		}
		dst = appendDocument(dst, "seq_hi."+kind.String(), func(dst []byte) []byte {
			return appendDocument(dst, "$not", func(dst []byte) []byte {
				return appendWhole(dst, "$gte", a.firsts[kind])
			})
		})
	}
	return dst
}

// update is the classic update, or a pipeline where the server needs one.
func (s *Store) update(a *attempt) any {
	if a.needsPipeline() {
		return s.pipeline(a)
	}
	dst := make([]byte, 0, 512+a.size()+64*len(a.timers))
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = appendDocument(dst, "$set", func(dst []byte) []byte { return s.appendSet(dst, a) })
	dst = appendSection(dst, "$push", func(dst []byte) []byte { return s.appendPush(dst, a) })
	dst = appendSection(dst, "$pull", func(dst []byte) []byte { return appendPull(dst, a) })
	dst = appendSection(dst, "$unset", func(dst []byte) []byte { return s.appendUnset(dst, a) })
	dst = appendSection(dst, "$min", func(dst []byte) []byte { return s.appendMin(dst, a) })
	return end(dst, start)
}

func (s *Store) appendSet(dst []byte, a *attempt) []byte {
	dst = a.appendData(dst)
	dst = appendWhole(dst, "version", a.old+1)
	dst = appendPromoted(dst, a)
	dst = bsoncore.AppendDoubleElement(dst, "updated_at", a.now)
	dst = appendSlot(dst, "commits."+slotKey(a.old+1), a.id)
	for _, t := range a.timers {
		if !t.cancel {
			dst = bsoncore.AppendDoubleElement(dst, "timers."+t.key, t.at)
		}
	}
	if a.trace != nil {
		dst = appendWhole(dst, "trace_next", a.traceIndex+1)
	}
	if s.cfg.SeqBlock > 1 {
		for _, kind := range []seqKind{outboxSeq, spawnSeq} {
			if a.count(kind) > 0 {
				dst = appendWhole(dst, "seq_hi."+kind.String(), a.last(kind))
			}
		}
	}
	if a.mode == fill {
		dst = a.appendMissing(dst)
	}
	return dst
}

func (a *attempt) appendData(dst []byte) []byte {
	if a.text {
		return appendText(dst, "data", a.data)
	}
	return bsoncore.AppendBinaryElement(dst, "data", 0, a.data)
}

// appendPromoted writes the header fields that changed, or all if that is not known.
func appendPromoted(dst []byte, a *attempt) []byte {
	all := !a.base.current
	was, is := a.base.stored, a.fields
	if all || was.definitionID != is.definitionID {
		dst = bsoncore.AppendStringElement(dst, "definition_id", is.definitionID)
	}
	if all || was.status != is.status {
		dst = bsoncore.AppendStringElement(dst, "status", is.status)
	}
	if all || was.parentID != is.parentID {
		dst = appendTextOrNull(dst, "parent_id", is.parentID)
	}
	if all || was.outcome != is.outcome {
		dst = bsoncore.AppendStringElement(dst, "outcome", is.outcome)
	}
	if all || was.activePath != is.activePath {
		dst = bsoncore.AppendStringElement(dst, "active_path", is.activePath)
	}
	return dst
}

// appendMissing makes the fields of a new document that a stub lacks.
func (a *attempt) appendMissing(dst []byte) []byte {
	if len(a.emits) == 0 {
		dst = appendEmptyArray(dst, "outbox")
	}
	if len(a.spawns) == 0 {
		dst = appendEmptyArray(dst, "spawns")
	}
	if a.processed == "" {
		dst = appendEmptyArray(dst, "processed")
	}
	if _, armed := a.earliest(); !armed {
		dst = bsoncore.AppendDocumentElement(dst, "timers", bsoncore.Document(emptyDocument))
	}
	return dst
}

func (s *Store) appendPush(dst []byte, a *attempt) []byte {
	if len(a.emits) > 0 {
		dst = appendEach(dst, "outbox", 0, a.appendOutbox)
	}
	if len(a.spawns) > 0 {
		dst = appendEach(dst, "spawns", 0, a.appendSpawns)
	}
	if a.trace != nil {
		dst = appendEach(dst, "trace", s.cfg.TraceMax, a.appendTrace)
	}
	if a.processed != "" && !a.alreadyProcessed {
		dst = appendEach(dst, "processed", s.cfg.ProcessedMax, a.appendProcessed)
	}
	return dst
}

func (a *attempt) appendOutbox(dst []byte) []byte {
	for i, e := range a.emits {
		dst = appendDocument(dst, index(i), func(dst []byte) []byte {
			dst = appendWhole(dst, "seq", a.firsts[outboxSeq]+int64(i))
			dst = appendTextOrNull(dst, "target_id", e.target)
			if e.text {
				return appendText(dst, "event", e.event)
			}
			return bsoncore.AppendBinaryElement(dst, "event", 0, e.event)
		})
	}
	return dst
}

func (a *attempt) appendSpawns(dst []byte) []byte {
	for i, sp := range a.spawns {
		dst = appendDocument(dst, index(i), func(dst []byte) []byte {
			dst = appendWhole(dst, "seq", a.firsts[spawnSeq]+int64(i))
			dst = bsoncore.AppendStringElement(dst, "parent_id", a.plan.id)
			dst = bsoncore.AppendStringElement(dst, "child_id", sp.child)
			dst = bsoncore.AppendStringElement(dst, "root_path", sp.path)
			return bsoncore.AppendDocumentElement(dst, "context", bsoncore.Document(sp.input))
		})
	}
	return dst
}

// appendTrace writes the step with the store's index in place of the caller's.
func (a *attempt) appendTrace(dst []byte) []byte {
	return appendDocument(dst, "0", func(dst []byte) []byte {
		dst = appendFieldsBut(dst, a.trace, "index")
		return appendWhole(dst, "index", a.traceIndex)
	})
}

func (a *attempt) appendProcessed(dst []byte) []byte {
	return bsoncore.AppendStringElement(dst, "0", a.processed)
}

func appendPull(dst []byte, a *attempt) []byte {
	dst = appendPullSeqs(dst, "outbox", a.acks.outbox)
	return appendPullSeqs(dst, "spawns", a.acks.spawns)
}

func (s *Store) appendUnset(dst []byte, a *attempt) []byte {
	for _, t := range a.timers {
		if t.cancel {
			dst = bsoncore.AppendStringElement(dst, "timers."+t.key, "")
		}
		if t.harelKey != "" {
			dst = bsoncore.AppendStringElement(dst, "timers."+t.harelKey, "")
		}
	}
	for _, t := range a.ackedTimers {
		dst = bsoncore.AppendStringElement(dst, "timers."+t.key, "")
	}
	if s.leavesFinished(a) {
		dst = bsoncore.AppendStringElement(dst, "finished_at", "")
	}
	return dst
}

// appendMin lowers what must never be too high: when the document is due, and when
// it was first finished.
func (s *Store) appendMin(dst []byte, a *attempt) []byte {
	if due, ok := s.dueAt(a); ok {
		dst = bsoncore.AppendDoubleElement(dst, "due_at", due)
	}
	if at, armed := a.earliest(); armed {
		dst = bsoncore.AppendDoubleElement(dst, "timer_at", at)
	}
	if s.entersFinished(a) {
		dst = bsoncore.AppendDoubleElement(dst, "finished_at", a.now)
	}
	return dst
}

// dueAt is when the work in this commit needs a relay.
func (s *Store) dueAt(a *attempt) (at float64, any bool) {
	kinds := s.cfg.RelayKinds
	if kinds&KindTimer != 0 {
		at, any = a.earliest()
	}
	now := len(a.emits) > 0 && kinds&KindOutbox != 0 || len(a.spawns) > 0 && kinds&KindSpawn != 0
	if now && (!any || a.now < at) {
		return a.now, true
	}
	return at, any
}

func (s *Store) entersFinished(a *attempt) bool {
	return s.finished[a.fields.status] && !(a.base.current && s.finished[a.base.stored.status])
}

func (s *Store) leavesFinished(a *attempt) bool {
	return !s.finished[a.fields.status] && !(a.base.current && !s.finished[a.base.stored.status])
}

// document is a whole new document, harel's fields first and in harel's order.
func (s *Store) document(a *attempt) bson.Raw {
	dst := make([]byte, 0, 640+a.size()+64*len(a.timers))
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendStringElement(dst, "_id", a.plan.id)
	dst = bsoncore.AppendStringElement(dst, "definition_id", a.fields.definitionID)
	dst = appendWhole(dst, "version", a.old+1)
	dst = a.appendData(dst)
	dst = appendArray(dst, "outbox", a.appendOutbox)
	dst = appendArray(dst, "spawns", a.appendSpawns)
	dst = appendArray(dst, "trace", func(dst []byte) []byte {
		if a.trace == nil {
			return dst
		}
		return a.appendTrace(dst)
	})
	dst = appendArray(dst, "processed", func(dst []byte) []byte {
		if a.processed == "" {
			return dst
		}
		return a.appendProcessed(dst)
	})
	dst = appendDocument(dst, "timers", func(dst []byte) []byte {
		for _, t := range a.timers {
			if !t.cancel {
				dst = bsoncore.AppendDoubleElement(dst, t.key, t.at)
			}
		}
		return dst
	})
	return end(s.appendOwn(dst, a), start)
}

// appendOwn writes the fields of a new document that are the store's own.
func (s *Store) appendOwn(dst []byte, a *attempt) []byte {
	dst = bsoncore.AppendStringElement(dst, "status", a.fields.status)
	dst = appendTextOrNull(dst, "parent_id", a.fields.parentID)
	dst = bsoncore.AppendStringElement(dst, "outcome", a.fields.outcome)
	dst = bsoncore.AppendStringElement(dst, "active_path", a.fields.activePath)
	dst = bsoncore.AppendDoubleElement(dst, "updated_at", a.now)
	dst = appendDocument(dst, "commits", func(dst []byte) []byte {
		return appendSlot(dst, slotKey(a.old+1), a.id)
	})
	next := a.traceIndex
	if a.trace != nil {
		next++
	}
	dst = appendWhole(dst, "trace_next", next)
	if s.cfg.SeqBlock > 1 {
		dst = appendDocument(dst, "seq_hi", func(dst []byte) []byte {
			for _, kind := range []seqKind{outboxSeq, spawnSeq} {
				if a.count(kind) > 0 {
					dst = appendWhole(dst, kind.String(), a.last(kind))
				}
			}
			return dst
		})
	}
	return s.appendMin(dst, a)
}
