package outbox

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/sessions"
)

// inTransaction reports whether ctx carries an open transaction of the store's client.
// A session without one is refused: its writes would not be a unit, though they look
// like one.
func (s *Store) inTransaction(ctx context.Context) (bool, error) {
	sess := mongo.SessionFromContext(ctx)
	switch {
	case sess == nil:
		return false, nil
	case sess.Client() != s.client:
		return false, invalid("ctx", "carries a session of another client")
	case !sess.TransactionRunning():
		return false, ErrOutsideTransaction
	}
	return true, nil
}

// requireTransaction is for writes that make sense in the caller's transaction only.
func (s *Store) requireTransaction(ctx context.Context) error {
	in, err := s.inTransaction(ctx)
	if err == nil && !in {
		err = ErrOutsideTransaction
	}
	return err
}

// outside gives ctx without its session, for what must not be part of a transaction.
func outside(ctx context.Context) context.Context { return sessions.Outside(ctx) }

// refuseTransaction is for writes that would commit outside the caller's transaction, or
// wait for its locks.
func refuseTransaction(ctx context.Context) (context.Context, error) {
	ctx, reason := sessions.Refuse(ctx)
	if reason != "" {
		return nil, invalid("ctx", reason)
	}
	return ctx, nil
}
