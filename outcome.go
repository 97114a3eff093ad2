package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
	"github.com/execstore/mongostore/internal/wait"
)

// What happened to a commit that was not plainly acknowledged. Two questions, one
// read: did it land, and if not, can it still.

// settle finds out about an attempt whose reply was lost. The version standing
// where it was proves nothing, the write may still be on its way: so the same bytes
// go out again under the same id until the server gives a definite answer. That the
// server cannot be asked is no answer.
func (s *Store) settle(ctx context.Context, h *Header, a *attempt, cause error) error {
	h.remember(a)
	detached, cancel := s.untilOutcome(ctx)
	defer cancel()
	seen := false // in the document, though a server that is killed may still lose it
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		landed, verdict, err := s.askAgain(detached, h, a, &seen)
		if landed || verdict != nil {
			return verdict
		}
		if err != nil {
			cause = err
		}
		if !wait.For(detached, pause) {
			return &unknownError{id: a.plan.id, cause: cause, ended: ctx.Err()}
		}
	}
}

// askAgain judges, and sends again what has not landed yet. It gives the verdict
// that ends the asking, or the error that does not.
func (s *Store) askAgain(ctx context.Context, h *Header, a *attempt, seen *bool) (landed bool, verdict, err error) {
	// Half the time at most for one command: a held reply must not be all we wait for.
	ctx, cancel := context.WithTimeout(ctx, max(s.cfg.OutcomeTimeout/2, time.Millisecond))
	defer cancel()
	if !*seen {
		*seen, err = s.judge(ctx, h, a)
	}
	switch {
	case *seen:
		landed, err = s.awaitJournal(ctx, a)
		*seen = landed || err != nil
		return landed, nil, err
	case isFinal(err):
		return false, err, nil
	case err != nil:
		return false, nil, err
	case believesOldVersion():
		return false, wrapErr("commit", a.plan.id, errOldVersion), nil
	}
	h.remember(a) // as it was mended, for its numbers
	matched, err := s.send(ctx, a)
	switch {
	case err == nil || a.mode == insert && mongo.IsDuplicateKeyError(err):
		return matched, nil, nil
	case isOpen(err) || mongoerr.NeverSent(err):
		return false, nil, err
	}
	return false, wrapErr("commit", a.plan.id, err), nil
}

// awaitJournal makes what was only read as durable as what is acknowledged: on a
// standalone a read may see what is not in the journal yet, and an update of nothing
// waits for the writes before it. It reports false if the write is not there any more: a
// server that was killed meanwhile has lost it.
func (s *Store) awaitJournal(ctx context.Context, a *attempt) (still bool, err error) {
	there := bson.A{
		bson.D{{Key: "commits." + slotKey(a.old+1), Value: bson.ObjectID(a.id)}},
		op("version", op("$gt", a.old+slots)), // others have built on it since
	}
	res, err := s.executions.UpdateOne(ctx, append(byID(a.plan.id), bson.E{Key: "$or", Value: there}), op("$set", byID(a.plan.id)))
	return err == nil && res.MatchedCount == 1, err
}

// untilOutcome gives a context that outlives the caller's: it ends with the
// caller's, or Config.OutcomeTimeout from now, whichever is later. Without any
// deadline it ends after Config.OpTimeout.
func (s *Store) untilOutcome(ctx context.Context) (context.Context, context.CancelFunc) {
	least := time.Now().Add(s.cfg.OutcomeTimeout)
	last, limited := ctx.Deadline()
	if !limited {
		last = time.Now().Add(s.cfg.OpTimeout)
	}
	if last.Before(least) {
		last = least
	}
	detached, cancel := context.WithDeadline(outside(context.WithoutCancel(ctx)), last)
	stop := context.AfterFunc(ctx, func() {
		if wait.For(detached, time.Until(least)) {
			cancel()
		}
	})
	return detached, func() { stop(); cancel() }
}

// judge reads what the document says of a write that did not match. It reports
// that the write has landed, gives the error that is final, or mends the attempt so
// that it can be sent again.
func (s *Store) judge(ctx context.Context, h *Header, a *attempt) (landed bool, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, bson.D{{Key: "_id", Value: a.plan.id}},
		options.FindOne().SetProjection(judgeProjection(a))).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, a.judgeGone(h)
	}
	if err != nil {
		return false, wrapErr("commit", a.plan.id, err)
	}
	if slot := slotOf(doc, a.old+1); slot == a.id {
		return true, nil
	} else if tried := h.openTries(); tried.has(slot) {
		version, _ := wholeNumber(doc.Lookup("version"))
		return false, &ConflictError{ExecutionID: a.plan.id, Expected: a.old, Actual: version, Own: true}
	}
	if err := a.judgeVersion(h, doc); err != nil {
		return false, err
	}
	return false, s.mend(ctx, a, doc)
}

func judgeProjection(a *attempt) bson.D {
	projection := bson.D{
		{Key: "version", Value: 1}, {Key: "data", Value: bson.D{{Key: "$type", Value: "$data"}}},
		{Key: "commits", Value: 1}, {Key: "lease.token", Value: 1},
		{Key: "trace_next", Value: 1}, {Key: "last_index", Value: lastTraceIndex}, {Key: "seq_hi", Value: 1},
		{Key: "processed", Value: isMember(a.processed, "$processed")},
	}
	for _, t := range a.acks.timers {
		if t.harelKey != "" || a.acks.ambiguous { // a projection refuses a key that begins with a dollar, or comes twice
			return append(projection, bson.E{Key: "timers", Value: 1})
		}
	}
	for _, t := range a.acks.timers {
		projection = append(projection, bson.E{Key: "timers." + t.key, Value: 1})
	}
	return projection
}

// judgeGone: there is no document. A first commit goes out (again); a loaded
// execution was deleted, with or without a commit of ours in it.
func (a *attempt) judgeGone(h *Header) error {
	if a.old == 0 {
		a.mode = insert
		return nil
	}
	if h.openTries() != nil {
		return &unknownError{id: a.plan.id, final: true, cause: fmt.Errorf("the execution is gone")}
	}
	return &ConflictError{ExecutionID: a.plan.id, Expected: a.old}
}

// judgeVersion: nil if the document still stands where this commit expects it.
func (a *attempt) judgeVersion(h *Header, doc bson.Raw) error {
	field := doc.Lookup("version")
	version, ok := wholeNumber(field)
	ok = ok && version >= 0
	stub := missing(field) && doc.Lookup("data").StringValue() == "missing"
	switch {
	case !ok && !stub:
		return &DamagedError{ExecutionID: a.plan.id, Field: "version", Reason: "is " + typeName(field) + ", not a whole number"}
	case stub && a.old == 0:
		a.mode = fill
		return nil
	case version == a.old && a.sameIncarnation(doc):
		a.mode = update
		return nil
	}
	if h.openTries() != nil && (version <= a.old || version > a.old+slots) {
		return &unknownError{id: a.plan.id, final: true, cause: fmt.Errorf("version %d does not tell what became of version %d", version, a.old+1)}
	}
	return &ConflictError{ExecutionID: a.plan.id, Expected: a.old, Actual: version}
}

// sameIncarnation reports whether the document is the one that was loaded, not
// another one that was made under its id and came to the same version.
func (a *attempt) sameIncarnation(doc bson.Raw) bool {
	return a.base.version == 0 || slotOf(doc, a.old) == a.base.slot
}

// mend changes what in the attempt relied on a state that has moved on.
func (s *Store) mend(ctx context.Context, a *attempt, doc bson.Raw) error {
	if token, _ := text(within(doc, "lease", "token")); a.acks.token != "" && token != a.acks.token {
		return &LeaseLostError{IDs: []string{a.plan.id}}
	}
	if hit, _ := doc.Lookup("processed").BooleanOK(); hit {
		a.alreadyProcessed = true
	}
	if a.trace != nil {
		a.takeTraceIndex(doc)
	}
	a.mendAckedTimers(doc)
	return s.mendNumbers(ctx, a, doc)
}

func (a *attempt) takeTraceIndex(doc bson.Raw) {
	if next, ok := wholeNumber(doc.Lookup("trace_next")); ok && next >= 0 {
		a.traceIndex, a.traceStored = next, true
		return
	}
	last, ok := wholeNumber(doc.Lookup("last_index"))
	if !ok {
		last = -1
	}
	a.traceIndex, a.traceStored = last+1, false
}

// mendAckedTimers leaves a timer alone that was armed anew since it fired.
func (a *attempt) mendAckedTimers(doc bson.Raw) {
	a.ackedTimers = nil
	for _, t := range a.acks.timers {
		for _, key := range []string{t.key, t.harelKey} {
			at, ok := seconds(within(doc, "timers", key))
			if key != "" && ok && at >= t.at-nanosecond && at <= t.at+nanosecond {
				a.ackedTimers = append(a.ackedTimers, ackedTimer{key: key, at: t.at})
			}
		}
	}
}

// mendNumbers takes new numbers where the reserved ones came too late for order.
func (s *Store) mendNumbers(ctx context.Context, a *attempt, doc bson.Raw) error {
	if s.cfg.SeqBlock <= 1 {
		return nil
	}
	behind := false
	for _, kind := range []seqKind{outboxSeq, spawnSeq} {
		high, _ := wholeNumber(within(doc, "seq_hi", kind.String()))
		a.base.seqHigh[kind] = max(a.base.seqHigh[kind], high)
		behind = behind || a.count(kind) > 0 && a.firsts[kind] != 0 && high >= a.firsts[kind]
	}
	if !behind {
		return nil
	}
	return wrapErr("commit", a.plan.id, s.number(ctx, a))
}

// mendNulls makes empty what another writer left null, so that the update applies,
// and names what is of a wrong type. Any other error is final.
func (s *Store) mendNulls(ctx context.Context, a *attempt, cause error) error {
	if !mongoerr.HasCode(cause, mongoerr.BadValue, mongoerr.TypeMismatch, mongoerr.PathNotViable) {
		return cause
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, bson.D{{Key: "_id", Value: a.plan.id}}, options.FindOne().SetProjection(containerTypes)).Raw()
	if err != nil {
		return cause
	}
	mended := false
	for _, c := range containers {
		switch found, _ := text(doc.Lookup(c.field)); found {
		case c.kind, "missing":
		case "null", "undefined":
			null := bson.D{{Key: "_id", Value: a.plan.id}, {Key: c.field, Value: bson.D{{Key: "$type", Value: found}}}}
			if _, err := s.executions.UpdateOne(ctx, null, bson.D{{Key: "$set", Value: bson.D{{Key: c.field, Value: c.empty}}}}); err != nil {
				return err
			}
			mended = true
		default:
			return &DamagedError{ExecutionID: a.plan.id, Field: c.field, Reason: "is " + found + ", not " + c.kind, cause: cause}
		}
	}
	if !mended {
		return cause
	}
	return nil
}

// containers are the fields that updates reach into.
var containers = []struct {
	field, kind string
	empty       any
}{
	{"outbox", "array", bson.A{}}, {"spawns", "array", bson.A{}}, {"processed", "array", bson.A{}}, {"trace", "array", bson.A{}},
	{"timers", "object", bson.D{}}, {"commits", "object", bson.D{}}, {"seq_hi", "object", bson.D{}},
}

var containerTypes = func() (projection bson.D) {
	for _, c := range containers {
		projection = append(projection, bson.E{Key: c.field, Value: bson.D{{Key: "$type", Value: "$" + c.field}}})
	}
	return projection
}()

func typeName(v bson.RawValue) string {
	if v.Type == 0 {
		return "missing"
	}
	return v.Type.String()
}
