package outbox

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore/internal/mongoerr"
	"github.com/execstore/mongostore/internal/wait"
)

const (
	transactionLimit = 120 * time.Second // where ctx has no deadline
	commitPatience   = 2 * time.Second   // for a commit that is on its way when ctx ends
	commitTry        = time.Second       // of it, for the last try
	abortPatience    = 700 * time.Millisecond
)

const (
	labelTransient     = "TransientTransactionError"
	labelUnknownCommit = "UnknownTransactionCommitResult"
)

// Transaction runs fn in a transaction, snapshot and majority, and commits it if fn
// returns nil. fn's ctx carries the session: pass it to every call that is to be part of
// it, also those on your own collections; name both ctx, so that the outer one is
// hidden. After a conflict fn runs again, from a snapshot of then, as often as needed
// until ctx ends, or for 120 s if it has no deadline: what fn does outside the
// transaction must bear that. It must return an error of the server as it is.
//
// If ctx carries an open transaction already, fn joins it, once, and who started it
// commits it.
//
// Returns fn's error, nothing being committed; ErrNoTransactions on a standalone server;
// ErrUnknownOutcome if the reply to the commit was lost and ctx, or 2 s after it, has
// ended; ctx's error, nothing being committed, if that ended before the commit was sent;
// ErrOutsideTransaction if ctx carries a session without an open transaction, ErrInvalid
// if one of another client.
func (s *Store) Transaction(ctx context.Context, fn func(ctx context.Context) error) error {
	joined, err := s.inTransaction(ctx)
	switch {
	case err != nil:
		return err
	case fn == nil:
		return invalid("fn", "is nil")
	case joined:
		return fn(ctx)
	}
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, transactionLimit)
		defer cancel()
	}
	st, err := s.transaction(ctx, fn)
	if err != nil {
		return err
	}
	s.settle(ctx, st)
	return nil
}

// transaction has a loop of its own, because the driver's ends after 120 s whatever ctx
// says, and spins all that time if an error inside was not returned at once.
func (s *Store) transaction(ctx context.Context, fn func(ctx context.Context) error) (*state, error) {
	sess, err := s.client.StartSession()
	if err != nil {
		return nil, wrapErr("start a session", err)
	}
	defer sess.EndSession(context.WithoutCancel(ctx))
	for attempt := 0; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return nil, wrapErr("transaction", err)
		}
		st := &state{store: s, session: sess}
		err := st.attempt(ctx, fn)
		if err == nil || !isTransient(err) {
			return st, err
		}
		if !wait.For(ctx, conflictBackoff(attempt)) {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

// conflictBackoff is a random time up to 5 ms, doubling up to 250 ms.
func conflictBackoff(attempt int) time.Duration {
	const first, most = 5 * time.Millisecond, 250 * time.Millisecond
	return rand.N(min(first<<min(attempt, 10), most)) + 1
}

// isTransient is whether the whole transaction may be run again.
func isTransient(err error) bool {
	var labeled mongo.LabeledError
	return errors.As(err, &labeled) && labeled.HasErrorLabel(labelTransient)
}

// state is what one attempt at a transaction leaves to do after it.
type state struct {
	store    *Store
	session  *mongo.Session
	lanes    map[string]bool // appended to; true: something waits there
	finished map[string]bool // lanes whose head was completed
	handlers map[string]bool
	first    time.Time // from when the first of what was appended is due; zero: none is
}

type stateKey struct{}

// stateOf is the state of the transaction in ctx, if the store started it.
func stateOf(ctx context.Context, s *Store) *state {
	st, _ := ctx.Value(stateKey{}).(*state)
	if st == nil || st.store != s || st.session != mongo.SessionFromContext(ctx) {
		return nil
	}
	return st
}

func (st *state) appended(lane string) bool {
	_, there := st.lanes[lane]
	return there
}

func (plan placement) remember(st *state) {
	if st == nil {
		return // a session of the caller's own: the suspect marks do it
	}
	st.lanes, st.handlers = merged(st.lanes, plan.lanes), merged(st.handlers, plan.handlers)
	if !plan.first.IsZero() && (st.first.IsZero() || plan.first.Before(st.first)) {
		st.first = plan.first
	}
}

func merged(a, b map[string]bool) map[string]bool {
	if a == nil {
		a = make(map[string]bool, len(b))
	}
	for k, v := range b {
		a[k] = a[k] || v
	}
	return a
}

// attempt runs fn once and commits.
func (st *state) attempt(ctx context.Context, fn func(ctx context.Context) error) error {
	journal := true
	err := st.session.StartTransaction(options.Transaction().
		SetReadConcern(readconcern.Snapshot()).SetReadPreference(readpref.Primary()).
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}))
	if err != nil {
		return wrapErr("start a transaction", err)
	}
	defer st.abort(ctx) // does nothing after a commit; a panic in fn passes through
	if err := fn(mongo.NewSessionContext(context.WithValue(ctx, stateKey{}, st), st.session)); err != nil {
		if mongoerr.HasCode(err, codeIllegalOperation) {
			return wrapErr("transaction", err)
		}
		return err
	}
	if !st.session.TransactionRunning() {
		return nil // fn has aborted or committed it on purpose
	}
	if err := ctx.Err(); err != nil {
		return wrapErr("transaction", err)
	}
	return st.commit(ctx)
}

// abort ends a transaction that is still open, also when ctx has ended: the server would
// keep its locks for a minute.
func (st *state) abort(ctx context.Context) {
	if !st.session.TransactionRunning() {
		return
	}
	ctx, cancel := patient(ctx, abortPatience)
	defer cancel()
	_ = st.session.AbortTransaction(ctx) // the server aborts it by itself in the end
}

// commit sends the commit until there is an answer. One that is on its way when ctx
// ends gets 2 s more, because it can not be taken back.
func (st *state) commit(ctx context.Context) error {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(commitPatience-commitTry, cancel) })
	defer stop()
	for try := 0; ; try++ {
		err := st.sendCommit(context.WithoutCancel(ctx))
		switch {
		case err == nil:
			return nil
		case isTransient(err): // it was aborted, all of it
			return err
		case !isUnknownCommit(err):
			return wrapErr("commit", err)
		case sending.Err() != nil, !wait.For(sending, conflictBackoff(try)):
			return unknownOutcome("commit", err, ctx.Err())
		}
	}
}

// sendCommit ends by a timeout alone: after one, unlike after a cancellation, the driver
// still lets the transaction be aborted, so that a commit that never came leaves none open.
func (st *state) sendCommit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commitTry)
	defer cancel()
	return st.session.CommitTransaction(ctx)
}

// isUnknownCommit is whether a commit may have landed, or may yet.
func isUnknownCommit(err error) bool {
	var labeled mongo.LabeledError
	if errors.As(err, &labeled) && labeled.HasErrorLabel(labelUnknownCommit) {
		return true
	}
	return isOpen(err)
}

// settle lets heads be claimed that the transaction left waiting, and wakes who works
// here. The transaction has landed: an error is no error of it, and the marks that it
// left let a repair do the same within a second.
func (s *Store) settle(ctx context.Context, st *state) {
	if st == nil {
		return
	}
	if !st.first.IsZero() {
		s.front.lower(st.first)
	}
	var appended []string
	for lane, waits := range st.lanes {
		if waits && !st.finished[lane] {
			appended = append(appended, lane)
		}
	}
	ctx, cancel := lingering(outside(ctx))
	defer cancel()
	if err := errors.Join(s.promoteIdle(ctx, appended), s.promoteHeads(ctx, keysOf(st.finished))); err != nil {
		s.cfg.Logger.Warn("outbox: what a transaction left waiting could not be looked at, a repair will", "error", err)
	}
	s.listeners.wake(slices.Collect(maps.Keys(st.handlers)))
}
