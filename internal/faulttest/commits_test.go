//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
)

// counter is the execution of this workload.
type counter struct {
	mongostore.Header
	Total   int64 `json:"total"`
	Handled int64 `json:"handled,omitempty"` // effects of its own events
}

// commits is a workload: many workers commit to few executions, each operation once
// under an id of its own, and remember what they were told. The id is in the event that
// the commit emits, so the stored documents say what has landed.
type commits struct {
	slots int            // executions that are written at a time
	gens  []atomic.Int64 // which execution a slot is at: each takes generationSize commits

	mu    sync.Mutex
	told  map[string]toldCommit // by operation
	row   *row
	fails atomic.Int64 // calls that ended with another error, and were repeated
}

type toldCommit struct {
	execution string
	version   int64 // acknowledged with
	recovered bool  // found to be there by a load after an unknown outcome
}

// generationSize keeps documents small: all events stay in them.
const generationSize = 100

func newCommits(slots int, r *row) *commits {
	r.Store = "executions"
	return &commits{slots: slots, gens: make([]atomic.Int64, slots), told: map[string]toldCommit{}, row: r}
}

// work commits until ctx ends. Each operation is seen through: what is under way when
// ctx ends is repeated until there is an answer.
func (c *commits) work(ctx context.Context, t *testing.T, store *mongostore.Store, worker int, rnd *rand.Rand) {
	for n := 0; ctx.Err() == nil && !t.Failed(); n++ {
		slot := rnd.IntN(c.slots)
		op := fmt.Sprintf("%d-%d", worker, n)
		if err := c.operation(store, slot, op, rnd); err != nil {
			t.Errorf("operation %s: %v", op, err)
		}
	}
}

// patience is how long one operation is repeated.
const patience = 2 * time.Minute

// operation loads, commits, and loads again after a conflict, until it is told success.
func (c *commits) operation(store *mongostore.Store, slot int, op string, rnd *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	doubt := false   // an outcome of this operation was not known
	unknown := false // and is not yet
	resolved := func() {
		if unknown {
			c.count(&c.row.Resolved)
		}
		unknown = false
	}
	for id := ""; ; {
		if !doubt { // else it may be there
			id = fmt.Sprintf("x-%d-%d", slot, c.gens[slot].Load())
		}
		x := &counter{Header: mongostore.Header{ID: id, DefinitionID: "counter", Status: "RUNNING"}}
		one, done := context.WithTimeout(ctx, 5*time.Second)
		seen, err := store.LoadForEvent(one, id, op, x)
		done()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("no answer in %s: %w", patience, err)
		case err != nil && !errors.Is(err, mongostore.ErrNotFound):
			c.fails.Add(1)
			continue
		case seen && !doubt:
			c.count(&c.row.Wrong) // it was told to have failed
			c.remember(op, toldCommit{execution: id, recovered: true})
			return nil
		case seen:
			resolved()
			c.remember(op, toldCommit{execution: id, recovered: true})
			return nil
		case x.Version >= generationSize:
			c.gens[slot].CompareAndSwap(genOf(id), genOf(id)+1)
			resolved()
			doubt = false // what was tried at an earlier version can not land any more
			continue
		}
		x.Total++
		ch := changes(op, rnd)
		err = c.commit(ctx, store, x, ch, &doubt, &unknown)
		switch {
		case err == nil:
			resolved()
			c.remember(op, toldCommit{execution: id, version: x.Version})
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("no answer in %s: %w", patience, err)
		case errors.Is(err, mongostore.ErrConflict):
			resolved()
		}
	}
}

// commit repeats the same commit until its outcome is known. Where so many others have
// committed on top that the document can not tell any more, the next load does.
func (c *commits) commit(ctx context.Context, store *mongostore.Store, x *counter, ch mongostore.Changes, doubt, unknown *bool) error {
	for tries := 0; ; tries++ {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := store.Commit(one, x, ch)
		cancel()
		var conflict *mongostore.ConflictError
		switch {
		case err == nil, errors.As(err, &conflict):
			if conflict != nil && conflict.Own {
				*doubt = true
			}
			return err
		case errors.Is(err, mongostore.ErrUnknownOutcome):
			if !*unknown {
				c.count(&c.row.Unknown)
			}
			*doubt, *unknown = true, true
			if tries >= 3 {
				return err
			}
		case ctx.Err() != nil:
			return err
		default:
			c.fails.Add(1) // the same again is always safe
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func genOf(id string) int64 {
	var slot, gen int64
	_, _ = fmt.Sscanf(id, "x-%d-%d", &slot, &gen)
	return gen
}

// changes carry the operation's id, and at random the other parts of a commit.
func changes(op string, rnd *rand.Rand) mongostore.Changes {
	ch := mongostore.Changes{Processed: op, Emits: []mongostore.Emit{{Event: map[string]string{"op": op}}}}
	if rnd.IntN(2) == 0 {
		ch.Spawns = []mongostore.Spawn{{ChildID: "c-" + op, RootPath: "A"}}
	}
	if rnd.IntN(2) == 0 {
		ch.Timers = []mongostore.TimerOp{{Path: "A.B", FireAt: time.Unix(4e9, 0)}}
	}
	if rnd.IntN(2) == 0 {
		ch.Trace = bson.D{{Key: "op", Value: op}}
	}
	return ch
}

func (c *commits) count(n *int64) { atomic.AddInt64(n, 1) }

func (c *commits) remember(op string, told toldCommit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[op] = told
	c.row.Acknowledged++
}

// check compares what was told with what is stored.
func (c *commits) check(t *testing.T, db *mongo.Database) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cur, err := db.Collection("executions").Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "version", Value: 1}, {Key: "outbox", Value: 1}, {Key: "data", Value: 1}}))
	require.NoError(t, err)
	places := map[string][]string{} // operation: executions and versions
	for cur.Next(ctx) {
		var doc struct {
			ID      string `bson:"_id"`
			Version int64
			Outbox  []struct {
				Seq   int64
				Event string
			}
		}
		require.NoError(t, cur.Decode(&doc))
		require.Len(t, doc.Outbox, int(doc.Version), "%s: each commit emits one event", doc.ID)
		for i, e := range doc.Outbox {
			var event struct{ Op string }
			require.NoError(t, bson.UnmarshalExtJSON([]byte(e.Event), false, &event))
			places[event.Op] = append(places[event.Op], fmt.Sprintf("%s@%d", doc.ID, i+1))
			if i > 0 && doc.Outbox[i-1].Seq >= e.Seq {
				c.row.Reordered++
			}
		}
	}
	require.NoError(t, cur.Err())
	for op, told := range c.told {
		where := places[op]
		switch {
		case len(where) == 0:
			c.row.Lost++
		case len(where) > 1:
			c.row.Doubled++
		case !told.recovered && where[0] != fmt.Sprintf("%s@%d", told.execution, told.version):
			c.row.Reordered++ // stored as another version than was told
		}
		delete(places, op)
	}
	for op, where := range places {
		t.Logf("%s is stored at %v, and nobody was told", op, where)
		c.row.Wrong++
	}
	t.Logf("%d calls failed and were repeated", c.fails.Load())
}
