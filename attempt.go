package mongostore

// attempt is a plan with its commit id and numbers: what one update writes. Sent
// again it is the same update under the same id, and lands at most once.
type attempt struct {
	*plan
	id     commitID
	base   known // what the value knew of the document
	mode   mode
	firsts perKind // first number

	traceIndex  int64
	traceStored bool // the document has a trace_next
	serverTrace bool // the server numbers the step

	alreadyProcessed bool // the event id is in the document: do not add it again
	ackedTimers      []ackedTimer
}

// mode is how a commit meets its document.
type mode int

const (
	update mode = iota // the usual one: a document at the expected version
	insert             // no document yet
	fill               // a document without version: AppendTrace was first
)

func newAttempt(h *Header, p *plan) *attempt {
	a := &attempt{plan: p, id: newCommitID(p.old + 1)}
	base, ok := h.recall()
	switch {
	case p.old == 0:
		a.mode = insert
		a.base = known{traceNext: 0}
	case ok:
		a.base = base
	default:
		a.base = known{traceNext: unknownTrace}
	}
	a.base.open = nil
	if !p.acks.ambiguous {
		a.ackedTimers = p.acks.timers
	}
	a.traceIndex, a.traceStored = a.base.traceNext, a.base.traceNext >= 0
	return a
}

// needsTraceIndex reports whether the next index has to be read first.
func (a *attempt) needsTraceIndex() bool { return a.trace != nil && a.traceIndex < 0 }

func (a *attempt) count(kind seqKind) int64 {
	if kind == outboxSeq {
		return int64(len(a.emits))
	}
	return int64(len(a.spawns))
}

// last is the highest number of a kind that this commit gives; 0: none.
func (a *attempt) last(kind seqKind) int64 {
	if a.count(kind) == 0 {
		return 0
	}
	return a.firsts[kind] + a.count(kind) - 1
}

func (a *attempt) numbers(kind seqKind) []int64 {
	if a.count(kind) == 0 {
		return nil
	}
	out := make([]int64, a.count(kind))
	for i := range out {
		out[i] = a.firsts[kind] + int64(i)
	}
	return out
}

// landed moves the version in memory and remembers what now stands in the document.
func (a *attempt) landed(h *Header) CommitResult {
	traceNext := a.base.traceNext
	if a.trace != nil {
		traceNext = a.traceIndex + 1
	}
	if a.serverTrace {
		traceNext = unknownTrace
	}
	high := a.base.seqHigh
	for kind := range high {
		high[kind] = max(high[kind], a.last(seqKind(kind)))
	}
	h.Version = a.old + 1
	h.known = known{id: a.plan.id, version: h.Version, slot: a.id, stored: a.fields, current: true, traceNext: traceNext, seqHigh: high}
	return CommitResult{
		Version:      h.Version,
		OutboxSeqs:   a.numbers(outboxSeq),
		SpawnSeqs:    a.numbers(spawnSeq),
		Deduplicated: a.alreadyProcessed,
	}
}
