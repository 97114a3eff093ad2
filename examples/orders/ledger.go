package main

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// The kinds of postings.
const (
	payment = "payment"
	refund  = "refund"
)

// Ledger stands for the world outside: a system that the store's commits do not
// reach. Events come to it at least once, and it books each once, because the id of
// a posting is the id of the entry that asked for it. An outside system must offer
// as much (an idempotency key), or its effects can happen twice.
type Ledger struct{ postings *mongo.Collection }

// Posting is one line of the ledger.
type Posting struct {
	ID       string `bson:"_id"` // the outbox entry's
	Kind     string `bson:"kind"`
	Account  string `bson:"account"`
	Order    string `bson:"order"`
	Amount   int64  `bson:"amount"`   // cents
	Attempts int    `bson:"attempts"` // how often it came: above 1 after a kill between delivery and ack
}

func newLedger(db *mongo.Database) *Ledger {
	journaled := true
	safe := &writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journaled}
	return &Ledger{db.Collection("ledger", options.Collection().SetWriteConcern(safe))}
}

// Book adds the posting of ev under id, counts the attempt, and reports whether it
// was the first.
func (l *Ledger) Book(ctx context.Context, id string, ev Event) (first bool, err error) {
	res, err := l.postings.UpdateOne(ctx,
		bson.D{{Key: "_id", Value: id}},
		bson.D{
			{Key: "$setOnInsert", Value: bson.D{
				{Key: "kind", Value: ev.Name}, {Key: "account", Value: ev.From},
				{Key: "order", Value: ev.Order}, {Key: "amount", Value: ev.Amount},
			}},
			{Key: "$inc", Value: bson.D{{Key: "attempts", Value: 1}}},
		},
		options.UpdateOne().SetUpsert(true))
	return err == nil && res.UpsertedCount == 1, err
}

// Postings reads the whole ledger.
func (l *Ledger) Postings(ctx context.Context) ([]Posting, error) {
	cur, err := l.postings.Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var all []Posting
	err = cur.All(ctx, &all)
	return all, err
}
