package main

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// A process that dies in the middle of a transaction leaves it open on the server, and
// what it has written stays locked, until transactionLifetimeLimitSeconds have passed, 60
// by default: the orders of that customer stand still. Whoever knows that a process is
// dead, as the shop does here, can end its transactions at once.
type reaper struct {
	admin *mongo.Database
	dead  []string // application names
	ended int
}

// appName tells the server which process a connection belongs to.
func appName(cfg config, pid int) string { return fmt.Sprintf("%s process %d", cfg.database, pid) }

// reap ends the transactions that dead processes have left open.
func (r *reaper) reap(ctx context.Context) error {
	if len(r.dead) == 0 {
		return nil
	}
	cur, err := r.admin.Aggregate(ctx, bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleSessions", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "appName", Value: bson.D{{Key: "$in", Value: r.dead}}}, {Key: "transaction", Value: bson.D{{Key: "$exists", Value: true}}}}}},
	})
	if err != nil {
		return err
	}
	var open []struct {
		LSID struct {
			ID bson.RawValue `bson:"id"`
		} `bson:"lsid"`
	}
	if err := cur.All(ctx, &open); err != nil || len(open) == 0 {
		return err
	}
	sessions := make(bson.A, 0, len(open))
	for _, op := range open {
		sessions = append(sessions, bson.D{{Key: "id", Value: op.LSID.ID}})
	}
	r.ended += len(open)
	return r.admin.RunCommand(ctx, bson.D{{Key: "killSessions", Value: sessions}}).Err()
}
