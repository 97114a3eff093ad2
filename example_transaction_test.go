package mongostore_test

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// On a replica set a commit can be part of the caller's own transaction. Load
// inside the callback, which may run again, and drop the value after an abort.
// That both contexts are named ctx is on purpose: the inner one hides the outer,
// which would write beside the transaction.
func Example_transactions() {
	ctx := context.Background()
	store, client, done := exampleReplicaSet()
	defer done()
	stock := client.Database("example_shop").Collection("stock")
	defer func() { check(stock.Drop(ctx)) }()
	_, err := stock.InsertOne(ctx, bson.D{{Key: "_id", Value: "tea"}, {Key: "left", Value: 1}})
	check(err)

	errSoldOut := errors.New("sold out")
	buy := func(ctx context.Context, orderID string) error {
		sess, err := client.StartSession()
		if err != nil {
			return err
		}
		defer sess.EndSession(ctx)
		_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
			res, err := stock.UpdateOne(ctx,
				bson.D{{Key: "_id", Value: "tea"}, {Key: "left", Value: bson.D{{Key: "$gt", Value: 0}}}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "left", Value: -1}}}})
			if err != nil {
				return nil, err
			}
			order := Order{Header: mongostore.Header{ID: orderID, Status: "BOUGHT"}}
			if _, err := store.Commit(ctx, &order, mongostore.Changes{}); err != nil {
				return nil, err
			}
			if res.ModifiedCount == 0 {
				return nil, errSoldOut // aborts both
			}
			return nil, nil
		})
		return err
	}

	fmt.Println("order-1:", buy(ctx, "order-1"))
	fmt.Println("order-2:", buy(ctx, "order-2"))
	for row, err := range store.All(ctx, mongostore.ListOptions{}) {
		check(err)
		fmt.Println("stored:", row.ID, row.Status)
	}
	// Output:
	// order-1: <nil>
	// order-2: sold out
	// stored: order-1 BOUGHT
}
