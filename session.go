package mongostore

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/mongo"
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
func outside(ctx context.Context) context.Context {
	if mongo.SessionFromContext(ctx) == nil {
		return ctx
	}
	return mongo.NewSessionContext(ctx, nil)
}

// refuseTransaction is for writes that would commit outside the caller's
// transaction, or wait for its locks.
func refuseTransaction(ctx context.Context) (context.Context, error) {
	if sess := mongo.SessionFromContext(ctx); sess != nil && sess.TransactionRunning() {
		return nil, invalid("ctx", "carries an open transaction that this call cannot join; mongo.NewSessionContext(ctx, nil) detaches on purpose")
	}
	return outside(ctx), nil
}
