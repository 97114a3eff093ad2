// Package sessions tells what a context carries of the caller's transactions.
package sessions

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Outside gives ctx without its session, for what must not be part of a transaction.
func Outside(ctx context.Context) context.Context {
	if mongo.SessionFromContext(ctx) == nil {
		return ctx
	}
	return mongo.NewSessionContext(ctx, nil)
}

// Refuse gives ctx without its session, and a reason if that has an open transaction: for
// writes that would commit outside of it, or wait for its locks. Empty: it has none.
func Refuse(ctx context.Context) (_ context.Context, reason string) {
	if sess := mongo.SessionFromContext(ctx); sess != nil && sess.TransactionRunning() {
		return nil, "carries an open transaction that this call cannot join; mongo.NewSessionContext(ctx, nil) detaches on purpose"
	}
	return Outside(ctx), ""
}
