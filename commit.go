package mongostore

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// Commit writes the snapshot of exe and all of ch in one update that applies only
// if the stored version is still the one in exe's Header, and moves that version.
// A first commit (Version 0) inserts the document. The emitted and spawned numbers
// rise within the execution.
//
// A lost reply is settled by asking the server, for Config.OutcomeTimeout even when
// ctx has ended. After any error the Version in memory is what it was, and calling
// Commit again with the same value and changes lands at most once.
//
// With an open transaction in ctx the update is part of it, the Version in memory
// moves at once, and nothing is retried: load inside the callback, drop the value
// after an abort.
//
// Returns ErrInvalid, before anything is sent, if exe or ch can never be written.
// Returns ErrConflict if another writer was first, ErrExists if a first commit
// found an execution, ErrNotFound (with ErrConflict) if a loaded one is gone.
// Returns ErrTooLarge if the document would pass 16 MiB.
// Returns ErrLeaseLost if an acked entry's Token does not hold the lease.
// Returns ErrDamaged if the document or a counter has a field of a wrong type.
// Returns ErrUnknownOutcome if the server did not tell in time what became of it.
func (s *Store) Commit(ctx context.Context, exe Execution, ch Changes) (CommitResult, error) {
	h, err := headerOf(exe)
	if err != nil {
		return CommitResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return CommitResult{}, wrapErr("commit", h.ID, err)
	}
	inTransaction, err := joins(ctx)
	if err != nil {
		return CommitResult{}, err
	}
	p, err := s.planCommit(h, exe, &ch)
	if err != nil {
		return CommitResult{}, err
	}
	a, err := s.prepare(ctx, h, p, inTransaction)
	if err != nil {
		return CommitResult{}, wrapErr("commit", h.ID, err)
	}
	if inTransaction {
		err = s.landInTransaction(ctx, h, a)
	} else {
		err = s.land(ctx, h, a)
	}
	if err != nil {
		return CommitResult{}, err
	}
	res := a.landed(h)
	if !inTransaction { // else it is not there yet
		s.wakeRelays(a)
	}
	return res, nil
}

// prepare gives the attempt to send: the same one again if these contents were
// tried before and never answered, else a new one with its numbers.
func (s *Store) prepare(ctx context.Context, h *Header, p *plan, inTransaction bool) (*attempt, error) {
	if tried := h.openTries(); tried != nil && !inTransaction {
		if same := tried.find(p.digest()); same != nil {
			again := same.attempt
			return &again, nil
		}
	}
	a := newAttempt(h, p)
	if a.needsTraceIndex() {
		if err := s.readTraceIndex(ctx, a); err != nil {
			return nil, err
		}
	}
	if p.acks.ambiguous {
		if err := s.readAckedTimers(ctx, a); err != nil {
			return nil, err
		}
	}
	if inTransaction && p.old == 0 {
		// E11000 would kill the caller's transaction, so look first.
		if _, err := s.judge(ctx, h, a); err != nil {
			return nil, err
		}
	}
	return a, s.number(ctx, a)
}

// number takes numbers for the emits and the spawns in one wait.
func (s *Store) number(ctx context.Context, a *attempt) (err error) {
	count := perKind{outboxSeq: int64(len(a.emits)), spawnSeq: int64(len(a.spawns))}
	if count == (perKind{}) {
		return nil
	}
	ctx = outside(ctx)
	a.firsts, err = s.seqs.wait(ctx, s.seqs.ask(ctx, count, a.base.seqHigh))
	return err
}

// land sends the attempt until it has landed or has not.
func (s *Store) land(ctx context.Context, h *Header, a *attempt) error {
	const tries = 4 // a miss is mended and sent again three times
	var duplicate error
	for try := range tries {
		a.serverTrace = a.trace != nil && try == tries-1 && a.mode != insert // AppendTrace was faster each time
		matched, err := s.send(ctx, a)
		switch {
		case matched && err == nil:
			return nil
		case err == nil || a.mode == insert && mongo.IsDuplicateKeyError(err):
			duplicate = err
			landed, err := s.judge(ctx, h, a)
			if s.mustSettle(h, err) {
				return s.settle(ctx, h, a, err)
			}
			if landed || err != nil {
				return err
			}
		case s.mustSettle(h, err):
			return s.settle(ctx, h, a, err)
		default:
			if err := s.mendNulls(ctx, a, err); err != nil {
				return wrapErr("commit", a.plan.id, err)
			}
		}
	}
	if duplicate != nil {
		return wrapErr("commit", a.plan.id, duplicate) // by an index of somebody else's
	}
	return s.whyStuck(ctx, a)
}

// mustSettle: the write may have landed, or an earlier try of it may have, and the
// server cannot be asked right now.
func (s *Store) mustSettle(h *Header, err error) bool {
	return isOpen(err) || h.openTries() != nil && mongoerr.NeverSent(err)
}

// landInTransaction sends once: what goes wrong is for the caller's transaction to
// retry, labels and all.
func (s *Store) landInTransaction(ctx context.Context, h *Header, a *attempt) error {
	matched, err := s.send(ctx, a)
	if err != nil {
		return wrapErr("commit", a.plan.id, s.nameDamage(ctx, a, err))
	}
	if matched {
		return nil
	}
	if _, err = s.judge(ctx, h, a); err != nil {
		return wrapErr("commit", a.plan.id, err)
	}
	if matched, err = s.send(ctx, a); err != nil || matched {
		return wrapErr("commit", a.plan.id, err)
	}
	return s.whyStuck(ctx, a)
}

// send does the one write and reports whether it found the expected version.
func (s *Store) send(ctx context.Context, a *attempt) (matched bool, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if a.mode == insert {
		doc := s.document(a)
		if len(doc) > maxDocument { // the server's answer has no code of its own for this
			return false, tooLarge("commit", a.plan.id, len(doc))
		}
		_, err = s.executions.InsertOne(ctx, doc)
		return err == nil, err
	}
	res, err := s.executions.UpdateOne(ctx, s.filter(a), s.update(a))
	return err == nil && res.MatchedCount == 1, err
}
