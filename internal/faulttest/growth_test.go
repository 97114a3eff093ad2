//go:build faults

package faulttest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

const full = 16 << 20

// grown is an execution whose array, or snapshot, takes all the room.
type grown struct {
	*counter

	store  *mongostore.Store
	coll   *mongo.Collection
	damage *atomic.Int64 // leases that had no room
}

// place is where an execution grows: many is some of it that stands there from the
// beginning, more is what one commit adds.
type place struct {
	many func() bson.E
	more func(bytes int) mongostore.Changes
}

func repeated(n int, one func(i int) any) bson.A {
	all := make(bson.A, 0, n)
	for i := range n {
		all = append(all, one(i))
	}
	return all
}

// pieces of a mebibyte, less what stands around them.
const pieces = 15

func filler(bytes int) string { return strings.Repeat("x", max(bytes, 0)) }

func places() map[string]place {
	return map[string]place{
		"outbox": {
			func() bson.E {
				return bson.E{Key: "outbox", Value: repeated(pieces, func(i int) any {
					return bson.D{{Key: "seq", Value: i + 1}, {Key: "target_id", Value: nil}, {Key: "event", Value: `"` + filler(1<<20) + `"`}}
				})}
			},
			func(n int) mongostore.Changes {
				return mongostore.Changes{Emits: []mongostore.Emit{{Event: filler(n)}}}
			},
		},
		"spawns": {
			func() bson.E {
				return bson.E{Key: "spawns", Value: repeated(pieces, func(i int) any {
					return bson.D{{Key: "seq", Value: i + 1}, {Key: "parent_id", Value: "x"}, {Key: "child_id", Value: "c"}, {Key: "root_path", Value: ""}, {Key: "context", Value: bson.D{{Key: "n", Value: filler(1 << 20)}}}}
				})}
			},
			func(n int) mongostore.Changes {
				return mongostore.Changes{Spawns: []mongostore.Spawn{{ChildID: "c", Input: bson.D{{Key: "n", Value: filler(n)}}}}}
			},
		},
		"processed": {
			func() bson.E {
				return bson.E{Key: "processed", Value: repeated(pieces, func(i int) any { return fmt.Sprint(i, filler(1<<20)) })}
			},
			func(n int) mongostore.Changes { return mongostore.Changes{Processed: filler(n)} },
		},
		"trace": {
			func() bson.E {
				return bson.E{Key: "trace", Value: repeated(pieces, func(i int) any { return bson.D{{Key: "index", Value: i}, {Key: "n", Value: filler(1 << 20)}} })}
			},
			func(n int) mongostore.Changes { return mongostore.Changes{Trace: bson.D{{Key: "n", Value: filler(n)}}} },
		},
		"timers": {
			func() bson.E {
				timers := bson.D{}
				for i := range pieces {
					timers = append(timers, bson.E{Key: fmt.Sprint(i, filler(1<<20)), Value: 4e9})
				}
				return bson.E{Key: "timers", Value: timers}
			},
			func(n int) mongostore.Changes {
				return mongostore.Changes{Timers: []mongostore.TimerOp{{Path: filler(n), FireAt: time.Unix(4e9, 0)}}}
			},
		},
		"dead": {
			func() bson.E {
				return bson.E{Key: "dead", Value: repeated(pieces, func(i int) any {
					entry := bson.D{{Key: "seq", Value: i + 1}, {Key: "target_id", Value: nil}, {Key: "event", Value: `"` + filler(1<<20) + `"`}}
					return bson.D{{Key: "kind", Value: "outbox"}, {Key: "cause", Value: "c"}, {Key: "attempts", Value: 1}, {Key: "at", Value: 1.5}, {Key: "seq", Value: i + 1}, {Key: "entry", Value: entry}}
				})}
			},
			func(n int) mongostore.Changes {
				return mongostore.Changes{Emits: []mongostore.Emit{{Event: filler(n)}}}
			},
		},
		"data": {
			func() bson.E {
				return bson.E{Key: "outcome", Value: filler(pieces << 20)} // beside the snapshot, and in it
			},
			func(int) mongostore.Changes { return mongostore.Changes{} },
		},
	}
}

// TestAnExecutionThatFillsItsDocument is driven to the edge in each of its parts, and is
// no trap there.
func TestAnExecutionThatFillsItsDocument(t *testing.T) {
	t.Parallel()
	client, name := mongotest.Standalone(t).Database(t)
	for part, p := range places() {
		t.Run(part, func(t *testing.T) {
			g := newGrown(t, client, name, part, p)
			grow := func(bytes int) error {
				if part == "data" {
					g.Outcome = filler(bytes / 2)
				}
				_, err := g.store.Commit(t.Context(), g.counter, p.more(bytes))
				return err
			}
			before := g.bytes(t)
			require.NoError(t, grow(64<<10))
			around := g.bytes(t) - before - 64<<10 // what stands around a piece
			left := 2000
			room := full - g.bytes(t) - around - left
			if part == "data" {
				room = full - g.bytes(t) + 64<<10 - left
			}
			require.NoError(t, grow(room))
			require.InDelta(t, left, full-g.bytes(t), 1000)

			stands, version := g.hash(t), g.Version
			tooMuch := 4000
			if part == "data" {
				tooMuch += room
			}
			outcome := g.Outcome
			require.ErrorIs(t, grow(tooMuch), mongostore.ErrTooLarge)
			g.Outcome = outcome
			require.Equal(t, version, g.Version)
			require.Equal(t, stands, g.hash(t), "half of a commit is there")
			require.ErrorIs(t, g.store.AppendTrace(t.Context(), g.ID, bson.D{{Key: "n", Value: filler(4000)}}), mongostore.ErrTooLarge)
			require.Equal(t, stands, g.hash(t))
			g.goesOn(t, part)
		})
	}
}

func newGrown(t *testing.T, client *mongo.Client, database, part string, p place) *grown {
	t.Helper()
	g := &grown{counter: &counter{}, damage: &atomic.Int64{}}
	var err error
	g.store, err = mongostore.New(client, mongostore.Config{
		Database: database, Prefix: part + "_", ProcessedMax: -1, TraceMax: -1,
		OnDamaged: func(err *mongostore.DamagedError) {
			if err.Field == "lease" {
				g.damage.Add(1)
			}
		},
	})
	require.NoError(t, err)
	g.coll = client.Database(database).Collection(part + "_executions")
	require.NoError(t, g.store.Setup(t.Context()))
	_, err = g.store.Commit(t.Context(), &counter{Header: mongostore.Header{ID: "x", Status: "RUNNING"}}, mongostore.Changes{})
	require.NoError(t, err)
	_, err = client.Database(database).Collection(part+"_counters").InsertMany(t.Context(), bson.A{bson.D{{Key: "_id", Value: "outbox"}, {Key: "n", Value: 100}}, bson.D{{Key: "_id", Value: "spawn"}, {Key: "n", Value: 100}}})
	require.NoError(t, err)
	if part != "data" {
		_, err = g.coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "x"}}, bson.D{{Key: "$set", Value: bson.D{p.many(), {Key: "due_at", Value: 1.5}, {Key: "dead_at", Value: 1.5}, {Key: "trace_next", Value: pieces}}}})
		require.NoError(t, err)
	}
	require.NoError(t, g.store.Load(t.Context(), "x", g.counter))
	return g
}

// hash is the server's, of all that the collection holds: that is this document.
func (g *grown) hash(t *testing.T) string {
	t.Helper()
	var hashes struct{ Collections map[string]string }
	name := g.coll.Name()
	require.NoError(t, g.coll.Database().RunCommand(t.Context(), bson.D{{Key: "dbHash", Value: 1}, {Key: "collections", Value: bson.A{name}}}).Decode(&hashes))
	require.NotEmpty(t, hashes.Collections[name])
	return hashes.Collections[name]
}

func (g *grown) bytes(t *testing.T) int {
	t.Helper()
	cur, err := g.coll.Aggregate(t.Context(), bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}}}}}})
	require.NoError(t, err)
	var sizes []struct{ N int }
	require.NoError(t, cur.All(t.Context(), &sizes))
	require.Len(t, sizes, 1)
	return sizes[0].N
}

// goesOn reads, commits less, and acks.
func (g *grown) goesOn(t *testing.T, part string) {
	t.Helper()
	ctx := t.Context()
	loaded := &counter{}
	require.NoError(t, g.store.Load(ctx, g.ID, loaded))
	require.Equal(t, g.Version, loaded.Version)
	in, err := g.store.Inspect(ctx, g.ID)
	require.NoError(t, err)
	require.NoError(t, in.Summary.Err)
	_, err = g.store.Commit(ctx, g.counter, mongostore.Changes{Processed: "small"})
	require.NoError(t, err, "a smaller commit goes on")
	if part != "outbox" && part != "spawns" {
		return
	}
	_, err = g.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: "x"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "pad", Value: filler(full - g.bytes(t) - 40)}}}})
	require.NoError(t, err)
	leases, err := g.store.Claim(ctx, mongostore.ClaimOptions{})
	require.NoError(t, err)
	require.Empty(t, leases, "there is no room for a lease")
	require.EqualValues(t, 1, g.damage.Load(), "and that is told")
	if part == "outbox" {
		entries, err := g.store.PendingOutbox(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, g.store.AckOutbox(ctx, entries...))
	} else {
		entries, err := g.store.PendingSpawns(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, g.store.AckSpawn(ctx, entries...))
	}
	_, err = g.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: "x"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "due_at", Value: 1.5}}}})
	require.NoError(t, err)
	leases, err = g.store.Claim(ctx, mongostore.ClaimOptions{})
	require.NoError(t, err)
	require.Len(t, leases, 1, "acknowledging makes room")
	require.NoError(t, g.store.Complete(ctx, leases[0]))
}

// TestAnEventOlderThanTheWindowIsHandledAgain shows the limit that the README states.
func TestAnEventOlderThanTheWindowIsHandledAgain(t *testing.T) {
	t.Parallel()
	const window = 10
	client, name := mongotest.Standalone(t).Database(t)
	store, err := mongostore.New(client, mongostore.Config{Database: name, ProcessedMax: window})
	require.NoError(t, err)
	handle := func(event string) (handled bool) {
		_, err := store.Update(t.Context(), "x", &counter{}, mongostore.UpdateOptions{EventID: event, Create: true}, func(*mongostore.Changes) error {
			handled = true
			return nil
		})
		require.NoError(t, err)
		return handled
	}
	for i := range window + 1 {
		require.True(t, handle(fmt.Sprint("ev-", i)))
	}
	for i := range window {
		require.False(t, handle(fmt.Sprint("ev-", i+1)), "one of the newest %d", window)
	}
	require.True(t, handle("ev-0"), "the one before them")
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	require.Contains(t, string(readme), "An older event that comes again is not recognised.")
}

// size is how many a test of growth stores: a tenth, unless the suite runs for long.
func size(t *testing.T, long int) int {
	t.Helper()
	if duration(t) > 10*time.Second {
		return long
	}
	return min(long/10, 10_000)
}

func insertMany(t *testing.T, coll *mongo.Collection, n int, doc func(i int) any) {
	t.Helper()
	const batch = 5000
	for from := 0; from < n; from += batch {
		docs := repeated(min(batch, n-from), func(i int) any { return doc(from + i) })
		_, err := coll.InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false))
		require.NoError(t, err)
	}
}

// TestAPurgeOfManyExecutionsBesideWork deletes what is finished, and nothing else, while
// workers commit and a relay delivers.
func TestAPurgeOfManyExecutionsBesideWork(t *testing.T) {
	t.Parallel()
	client, name := mongotest.ReplicaSet(t).Database(t)
	store, err := mongostore.New(client, mongostore.Config{Database: name})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	coll, n := client.Database(name).Collection("executions"), size(t, 100_000)
	const owing = 50
	insertMany(t, coll, n+owing, func(i int) any {
		doc := bson.D{
			{Key: "_id", Value: fmt.Sprintf("old-%06d", i)}, {Key: "version", Value: 1}, {Key: "data", Value: `{"status":"DONE"}`}, {Key: "outbox", Value: bson.A{}}, {Key: "spawns", Value: bson.A{}},
			{Key: "timers", Value: bson.D{}}, {Key: "status", Value: "DONE"}, {Key: "finished_at", Value: 1000.5 + float64(i)/1000},
		}
		if i >= n {
			doc = append(doc, bson.E{Key: "dead", Value: bson.A{bson.D{{Key: "kind", Value: "outbox"}}}}, bson.E{Key: "dead_at", Value: 1.5})
		}
		return doc
	})
	var committed, delivered sync.Map
	relay, err := store.NewRelay(mongostore.Handlers{
		Outbox: func(_ context.Context, e mongostore.OutboxEntry) error {
			delivered.Store(e.EntryID(), true)
			return nil
		},
		Spawn: func(context.Context, mongostore.SpawnEntry) error { return nil },
		Timer: func(context.Context, mongostore.Timer) error { return nil },
	}, mongostore.RelayConfig{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = relay.Run(ctx) })
	for w := range 4 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				x := &counter{Header: mongostore.Header{ID: fmt.Sprintf("new-%d-%d", w, i/10), Status: "RUNNING"}}
				res, err := store.Update(context.WithoutCancel(ctx), x.ID, x, mongostore.UpdateOptions{Create: true}, func(ch *mongostore.Changes) error {
					x.Total++
					ch.Emits = []mongostore.Emit{{Event: i}}
					return nil
				})
				if err != nil {
					t.Errorf("commit beside a purge: %v", err)
					return
				}
				for _, seq := range res.OutboxSeqs {
					committed.Store(mongostore.OutboxEntry{ExecutionID: x.ID, Seq: seq}.EntryID(), true)
				}
			}
		})
	}
	purged, err := store.Purge(ctx, mongostore.PurgeOptions{FinishedBefore: time.Unix(1e6, 0)})
	require.NoError(t, err)
	require.EqualValues(t, n, purged)
	stop()
	all.Wait()
	_, err = relay.Drain(t.Context())
	require.NoError(t, err)
	count := 0
	committed.Range(func(id, _ any) bool {
		count++
		if _, there := delivered.Load(id); !there {
			t.Errorf("%s was committed beside the purge, and not delivered", id)
		}
		return true
	})
	t.Logf("%d purged, %d committed and delivered meanwhile", purged, count)
	require.Positive(t, count)
	left, err := coll.CountDocuments(t.Context(), bson.D{{Key: "finished_at", Value: bson.D{{Key: "$exists", Value: true}}}})
	require.NoError(t, err)
	require.EqualValues(t, owing, left, "what owes something stays")
}

// TestAPurgeOfManyDeliveriesBesideWork is the same for the outbox.
func TestAPurgeOfManyDeliveriesBesideWork(t *testing.T) {
	t.Parallel()
	client, name := mongotest.ReplicaSet(t).Database(t)
	store, err := outbox.New(client, outbox.Config{Database: name})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	db, n := client.Database(name), size(t, 100_000)
	long := time.UnixMilli(1_000_000)
	insertMany(t, db.Collection("outbox_events"), n/2, func(i int) any {
		return bson.D{{Key: "_id", Value: fmt.Sprintf("old-%06d", i)}, {Key: "type", Value: "t"}, {Key: "payload", Value: "1"}, {Key: "created_at", Value: long}, {Key: "handlers", Value: eventHandlers}}
	})
	insertMany(t, db.Collection("outbox_deliveries"), n, func(i int) any {
		event, handler := fmt.Sprintf("old-%06d", i/2), eventHandlers[i%2]
		return bson.D{
			{Key: "_id", Value: handler + ":" + event}, {Key: "event_id", Value: event}, {Key: "type", Value: "t"}, {Key: "handler", Value: handler}, {Key: "key", Value: fmt.Sprintf("k-%d", i%7)},
			{Key: "sequence", Value: int64(-i)}, {Key: "status", Value: "completed"}, {Key: "finished_at", Value: long.Add(time.Duration(i/3) * time.Millisecond)}, {Key: "available_at", Value: long},
		}
	})
	r := &row{Fault: "a purge", Topology: "replica set of one", Injected: 1}
	work := newEvents(8, r)
	ctx, stop := context.WithCancel(t.Context())
	from := seed(t)
	var all sync.WaitGroup
	for w := range 2 {
		rnd := rand.New(rand.NewPCG(from, uint64(w)))
		all.Go(func() { work.publish(ctx, t, store, db.Collection("orders"), w, rnd) })
		all.Go(func() { work.consume(ctx, t, store, rand.New(rand.NewPCG(from, uint64(100+w)))) })
	}
	purged, err := store.Purge(t.Context(), outbox.PurgeOptions{CompletedBefore: long.Add(24 * time.Hour), Batch: 2000})
	stop()
	all.Wait()
	require.NoError(t, err)
	require.EqualValues(t, n, purged)
	work.check(t, store, db)
	require.Zero(t, r.Lost+r.Doubled+r.Reordered+r.Wrong, "%s", r)
	require.Positive(t, r.Acknowledged)
	t.Logf("%d purged, %d acknowledged meanwhile", purged, r.Acknowledged)
}

// TestWhatIsStoredCostsNothing explains every command of the sweeps, claims and listings
// of a store with a million executions, of which few owe something.
func TestWhatIsStoredCostsNothing(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	plain, name := server.Database(t)
	var sent mongotest.Commands
	store, err := mongostore.New(server.Client(t, options.Client().SetMonitor(sent.Monitor())), mongostore.Config{Database: name, OpTimeout: time.Minute})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	n := size(t, 1_000_000)
	insertMany(t, plain.Database(name).Collection("executions"), n, func(i int) any {
		doc := bson.D{
			{Key: "_id", Value: fmt.Sprintf("x-%07d", i)}, {Key: "definition_id", Value: "d"}, {Key: "version", Value: 1}, {Key: "data", Value: "{}"}, {Key: "spawns", Value: bson.A{}},
			{Key: "status", Value: []string{"RUNNING", "WAITING"}[i%2]}, {Key: "outcome", Value: ""}, {Key: "active_path", Value: ""}, {Key: "updated_at", Value: 1.5},
		}
		if i%(n/200) == 0 {
			doc = append(doc, bson.E{Key: "outbox", Value: bson.A{bson.D{{Key: "seq", Value: i + 1}, {Key: "event", Value: "{}"}}}}, bson.E{Key: "due_at", Value: 1.5},
				bson.E{Key: "timers", Value: bson.D{{Key: "A", Value: 5.5}}}, bson.E{Key: "timer_at", Value: 5.5})
		}
		return doc
	})
	ctx := t.Context()
	const limit = 20
	page, err := store.List(ctx, mongostore.ListOptions{Limit: limit, IDPrefix: fmt.Sprintf("x-%04d", n/2000)})
	require.NoError(t, err)
	for what, call := range map[string]func() error{
		"PendingOutbox": func() error { _, err := store.PendingOutbox(ctx, limit); return err },
		"DueTimers":     func() error { _, err := store.DueTimers(ctx, time.Now(), limit); return err },
		"Claim":         func() error { _, err := store.Claim(ctx, mongostore.ClaimOptions{Limit: limit}); return err },
		"List":          func() error { _, err := store.List(ctx, mongostore.ListOptions{Limit: limit}); return err },
		"List, status": func() error {
			_, err := store.List(ctx, mongostore.ListOptions{Limit: limit, Statuses: []string{"WAITING"}})
			return err
		},
		"List, far on": func() error {
			_, err := store.List(ctx, mongostore.ListOptions{Limit: limit, IDPrefix: fmt.Sprintf("x-%04d", n/2000), Cursor: page.Next})
			return err
		},
		"DeadLetters": func() error { _, err := store.DeadLetters(ctx, mongostore.DeadLetterOptions{Limit: limit}); return err },
		"Purge": func() error {
			_, err := store.Purge(ctx, mongostore.PurgeOptions{FinishedBefore: time.Now()})
			return err
		},
		"Load": func() error { return store.Load(ctx, "x-0000001", &counter{}) },
	} {
		sent.Reset()
		require.NoError(t, call(), what)
		for _, c := range sent.Commands() {
			cost := mongotest.Explain(t, plain.Database(name), c.Body)
			if cost.CollectionScan() || max(cost.KeysExamined, cost.DocsExamined) > 5*limit {
				t.Errorf("%s: %s of %d executions reads %d keys and %d documents", what, c.Name, n, cost.KeysExamined, cost.DocsExamined)
			}
		}
	}
	begin := time.Now()
	stats, err := store.Stats(ctx)
	require.NoError(t, err)
	t.Logf("%d executions, of which %d owe something; Stats in %s", n, stats.Pending, time.Since(begin))
}
