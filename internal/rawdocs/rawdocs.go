// Package rawdocs reads cursors without decoding what they hold.
package rawdocs

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// All gives the documents of a cursor and closes it. The driver's own All makes a decoder
// with a buffer of 4 KiB for each document.
func All(ctx context.Context, cur *mongo.Cursor) ([]bson.Raw, error) {
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }() // it has ended, or its error is told
	docs := make([]bson.Raw, 0, cur.RemainingBatchLength())
	for cur.Next(ctx) {
		docs = append(docs, slices.Clone(cur.Current))
	}
	return docs, cur.Err()
}
