package mongostore

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/sessions"
)

// joins reports whether ctx carries an open transaction that a write will be part
// of. A session without one is refused: its writes would not be a unit, though
// they look like one.
func joins(ctx context.Context) (bool, error) {
	sess := mongo.SessionFromContext(ctx)
	if sess == nil {
		return false, nil
	}
	if !sess.TransactionRunning() {
		return false, invalid("ctx", "carries a session without an open transaction")
	}
	return true, nil
}

// outside gives ctx without its session, for what must not be part of a transaction.
func outside(ctx context.Context) context.Context { return sessions.Outside(ctx) }

// refuseTransaction is for writes that would commit outside the caller's
// transaction, or wait for its locks.
func refuseTransaction(ctx context.Context) (context.Context, error) {
	ctx, reason := sessions.Refuse(ctx)
	if reason != "" {
		return nil, invalid("ctx", reason)
	}
	return ctx, nil
}
