//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
)

// content is the execution of the histories.
type content struct {
	mongostore.Header
	Content string `json:"content"`
}

func (c *content) register() register { return register{c.Version, c.Content} }

// registers are the executions that the clients of a history share, some of them busy,
// and one of each client's own: there a late write would find the version that it wants.
type registers struct {
	*history
	shared  int
	gens    []atomic.Int64 // which execution a slot is at, the clients' own behind the shared ones
	row     *row
	mayFail atomic.Int64 // calls that ended with another error
}

// historySize is how many commits an execution of a history takes, about.
const historySize = 60

func newRegisters(shared, clients int, r *row) *registers {
	r.Store = "executions"
	return &registers{history: newHistory(), shared: shared, gens: make([]atomic.Int64, shared+clients), row: r}
}

// client asks until ctx ends. Every third one only looks: it does not wait for a write.
func (r *registers) client(ctx context.Context, t *testing.T, store *mongostore.Store, number int, rnd *rand.Rand) {
	var last string // a content that this client has written or seen, for questions about it
	for n := 0; ctx.Err() == nil && !t.Failed(); n++ {
		slot := rnd.IntN(r.shared + 2)
		if slot >= r.shared && number%3 == 2 {
			slot = rnd.IntN(r.shared)
		} else if slot >= r.shared {
			slot = r.shared + number
		}
		gen := r.gens[slot].Load()
		x := &content{Header: mongostore.Header{ID: fmt.Sprintf("h-%d-%d", slot, gen), DefinitionID: "history", Status: "RUNNING"}}
		if !r.look(ctx, store, number, last, x, rnd) {
			continue
		}
		if x.Version >= historySize {
			r.gens[slot].CompareAndSwap(gen, gen+1)
			continue
		}
		if number%3 == 2 {
			last = x.Content
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
			continue
		}
		for m := range rnd.IntN(4) { // none: a load alone; more than one: on what the value remembers
			last = fmt.Sprintf("%d-%d-%d", number, n, m)
			if !r.change(ctx, store, number, x, last, rnd) {
				break
			}
		}
	}
}

// look loads x, and may ask for an event too.
func (r *registers) look(ctx context.Context, store *mongostore.Store, client int, event string, x *content, rnd *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime(rnd))
	defer cancel()
	q := question{what: "load", execution: x.ID}
	var a answer
	var err error
	called := r.now()
	if event != "" && rnd.IntN(2) == 0 {
		q.what, q.content = "seen", event
		a.seen, err = store.LoadForEvent(ctx, x.ID, event, x)
	} else {
		err = store.Load(ctx, x.ID, x)
	}
	if err != nil && !errors.Is(err, mongostore.ErrNotFound) {
		r.mayFail.Add(1)
		return false
	}
	a.found = x.register()
	r.add(client, called, q, a)
	return true
}

// callTime bounds one call of a client; some are in a hurry.
func callTime(rnd *rand.Rand) time.Duration {
	if rnd.IntN(4) == 0 {
		return time.Duration(10+rnd.IntN(100)) * time.Millisecond
	}
	return time.Second
}

// change commits content on x. An unknown outcome is asked for again, or left as it is:
// then the operation stays open.
func (r *registers) change(ctx context.Context, store *mongostore.Store, client int, x *content, text string, rnd *rand.Rand) bool {
	q := question{what: "commit", execution: x.ID, content: text, expects: x.register()}
	r.writes(text, q.expects)
	x.Content = text
	ch := changes(text, rnd)
	open, again := false, rnd.IntN(6)
	called := r.now()
	for {
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime(rnd))
		res, err := store.Commit(one, x, ch)
		cancel()
		var conflict *mongostore.ConflictError
		switch {
		case err == nil:
			if res.Deduplicated || res.Version != q.expects.version+1 {
				r.refuses(text) // it was told something that is not so
			}
			r.closed(open)
			atomic.AddInt64(&r.row.Acknowledged, 1)
			r.add(client, called, q, answer{outcome: toldLanded, found: x.register()})
			return true
		case errors.As(err, &conflict):
			r.closed(open)
			r.add(client, called, q, answer{outcome: toldConflict, found: register{version: conflict.Actual}})
			return false
		case errors.Is(err, mongostore.ErrUnknownOutcome):
			if !open {
				atomic.AddInt64(&r.row.Unknown, 1)
			}
			open = true
		case !open:
			r.mayFail.Add(1)
			r.refuses(text) // it was told to have failed
			return false
		}
		if again--; again < 0 {
			r.add(client, called, q, answer{outcome: toldUnknown})
			return false
		}
	}
}

func (r *registers) closed(open bool) {
	if open {
		atomic.AddInt64(&r.row.Resolved, 1)
	}
}

// check compares what the clients were told with what is stored, and looks for an order
// that explains the history.
func (r *registers) check(t *testing.T, store *mongostore.Store, db *mongo.Database) {
	t.Helper()
	stored := r.stored(t, db)
	for id := range stored {
		x := &content{}
		called := r.now()
		require.NoError(t, store.Load(t.Context(), id, x))
		r.add(-1, called, question{what: "load", execution: id}, answer{found: x.register()})
	}
	places := map[string][]string{}
	for id, contents := range stored {
		for i, text := range contents {
			places[text] = append(places[text], fmt.Sprintf("%s@%d", id, i+1))
		}
	}
	for _, op := range r.ops {
		q, a := op.Input.(question), op.Output.(answer)
		where := places[q.content]
		switch {
		case q.what != "commit":
		case a.outcome == toldUnknown:
			r.row.Resolved++ // by looking: it is there, or it can not land any more
		case a.outcome == toldLanded && len(where) == 0:
			r.row.Lost++
		case a.outcome == toldLanded && where[0] != fmt.Sprintf("%s@%d", q.execution, q.expects.version+1):
			r.row.Reordered++
		}
		if q.what == "commit" && len(where) > 1 {
			r.row.Doubled++
		}
	}
	for text := range r.refused {
		if len(places[text]) > 0 {
			t.Logf("%s is stored at %v, and was told to have failed", text, places[text])
			r.row.Wrong++
		}
	}
	r.history.check(t, stored, &checked{History: r.row.Fault, Topology: r.row.Topology})
	t.Logf("%d calls failed before anything was written", r.mayFail.Load())
}

// stored reads the contents of all executions, by version, and sees that no number was
// given twice.
func (r *registers) stored(t *testing.T, db *mongo.Database) map[string][]string {
	t.Helper()
	cur, err := db.Collection("executions").Find(t.Context(), bson.D{})
	require.NoError(t, err)
	stored := map[string][]string{}
	numbers := map[string]bool{}
	given := func(kind string, seq int64) {
		number := fmt.Sprintf("%s %d", kind, seq)
		if numbers[number] {
			r.row.Doubled++
			t.Logf("number %s is given twice", number)
		}
		numbers[number] = true
	}
	for cur.Next(t.Context()) {
		var doc struct {
			ID      string `bson:"_id"`
			Version int64
			Outbox  []struct {
				Seq   int64
				Event string
			}
			Spawns []struct{ Seq int64 }
		}
		require.NoError(t, cur.Decode(&doc))
		if int64(len(doc.Outbox)) != doc.Version {
			r.row.Lost++
			t.Logf("%s has %d events at version %d", doc.ID, len(doc.Outbox), doc.Version)
		}
		for i, e := range doc.Outbox {
			var event struct{ Op string }
			require.NoError(t, bson.UnmarshalExtJSON([]byte(e.Event), false, &event))
			stored[doc.ID] = append(stored[doc.ID], event.Op)
			given("outbox", e.Seq)
			if i > 0 && doc.Outbox[i-1].Seq >= e.Seq {
				r.row.Reordered++
			}
		}
		for _, s := range doc.Spawns {
			given("spawn", s.Seq)
		}
	}
	require.NoError(t, cur.Err())
	return stored
}
