package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
)

// Large collections are filled with copies of documents that the store wrote.

// mould is a document that the store wrote, and where its id and its timer stand.
type mould struct {
	raw   bson.Raw
	ids   []int
	times []int
}

// mouldOf has the store write o, and takes the document out of the collection.
func mouldOf(ctx context.Context, coll *mongo.Collection, store *mongostore.Store, o *order, last mongostore.Changes) (*mould, error) {
	const handled = 20 // events, as in the figures of the original
	for n := range handled {
		ch := mongostore.Changes{}
		if n == handled-1 {
			ch = last
		}
		ch.Processed = newID()
		if _, err := store.Commit(ctx, o, ch); err != nil {
			return nil, err
		}
	}
	raw, err := coll.FindOneAndDelete(ctx, bson.D{{Key: "_id", Value: o.ID}}).Raw()
	if err != nil {
		return nil, err
	}
	m := &mould{raw: raw, ids: positions(raw, []byte(o.ID))}
	for _, op := range last.Timers {
		m.times = positions(raw, double(float64(op.FireAt.UnixMicro())/1e6))
	}
	return m, nil
}

func positions(in, what []byte) (at []int) {
	for from := 0; ; {
		i := bytes.Index(in[from:], what)
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(what)
	}
}

func double(f float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(f)) }

// pour gives a copy under another id of the same length.
func (m *mould) pour(id string) bson.Raw {
	doc := bytes.Clone(m.raw)
	for _, at := range m.ids {
		copy(doc[at:], id)
	}
	return doc
}

// pourAt is pour with the timer at another time.
func (m *mould) pourAt(id string, seconds float64) bson.Raw {
	doc := m.pour(id)
	for _, at := range m.times {
		copy(doc[at:], double(seconds))
	}
	return doc
}

// withNumbers renumbers the entries of a document from first on.
func withNumbers(doc bson.Raw, first int64) (bson.Raw, error) {
	var fields bson.D
	if err := bson.Unmarshal(doc, &fields); err != nil {
		return nil, err
	}
	for _, f := range fields {
		entries, ok := f.Value.(bson.A)
		if !ok || f.Key != "outbox" && f.Key != "spawns" {
			continue
		}
		for i, e := range entries {
			e.(bson.D)[0].Value = first + int64(i) // seq comes first
		}
	}
	return bson.Marshal(fields)
}

// idOf gives the k-th id, in no order, as random ids are.
func idOf(k int) string {
	h := uint64(k+1) * 0x9E3779B97F4A7C15
	return fmt.Sprintf("%016x%016x", h, ^h)
}

// fastCollection is the collection of a store, written to by w:1.
func fastCollection(t *target, db string) *mongo.Collection {
	return t.fast().raw(db, "executions")
}

// insertAll inserts n documents in unordered batches from two goroutines.
func insertAll(ctx context.Context, coll *mongo.Collection, n int, make func(k int) (bson.Raw, error)) error {
	const batch, goroutines = 2000, 2
	starts := generate(n, batch)
	errs := [goroutines]error{}
	var wg sync.WaitGroup
	for g := range errs {
		wg.Go(func() {
			for start := range starts {
				if errs[g] == nil {
					errs[g] = insertBatch(ctx, coll, start, min(start+batch, n), make)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

func generate(n, by int) <-chan int {
	starts := make(chan int)
	go func() {
		defer close(starts)
		for start := 0; start < n; start += by {
			starts <- start
		}
	}()
	return starts
}

func insertBatch(ctx context.Context, coll *mongo.Collection, from, to int, make func(k int) (bson.Raw, error)) error {
	docs := []any{}
	for k := from; k < to; k++ {
		doc, err := make(k)
		if err != nil {
			return err
		}
		docs = append(docs, doc)
	}
	_, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	return err
}
