//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// guarded is a replica set of one that asks who one is.
type guarded struct {
	cluster *mongotest.Cluster
	admin   *mongo.Client
}

const (
	accessDB = "access"
	password = "s3cr3t-pässword"
)

var (
	actions     = []string{"find", "insert", "update", "remove"}
	collections = []string{"executions", "counters", "outbox_events", "outbox_deliveries", "outbox_keys"}
)

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("key4", 64)), 0o400))
	g := &guarded{cluster: mongotest.Start(t, mongotest.Options{ReplicaSet: true, Args: []string{"--keyFile", key}})}
	first := g.cluster.Client() // nobody, on this machine: may make the first user
	require.NoError(t, first.Database("admin").RunCommand(t.Context(), bson.D{
		{Key: "createUser", Value: "root"}, {Key: "pwd", Value: password}, {Key: "roles", Value: bson.A{"root"}},
	}).Err())
	g.admin = g.client(t, "root")
	return g
}

func (g *guarded) client(t *testing.T, user string) *mongo.Client {
	t.Helper()
	return g.cluster.Client(options.Client().SetAuth(options.Credential{Username: user, Password: password, AuthSource: "admin"}))
}

// user makes one that has the documented rights, but for one action on one collection.
func (g *guarded) user(t *testing.T, name, lackedCollection, lackedAction string) *mongo.Client {
	t.Helper()
	privileges := bson.A{}
	for _, coll := range collections {
		granted := slices.DeleteFunc(slices.Clone(actions), func(a string) bool { return coll == lackedCollection && a == lackedAction })
		privileges = append(privileges, bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: accessDB}, {Key: "collection", Value: coll}}}, {Key: "actions", Value: granted}})
	}
	g.make(t, name, privileges, nil)
	return g.client(t, name)
}

func (g *guarded) make(t *testing.T, name string, privileges, roles any) {
	t.Helper()
	admin := g.admin.Database("admin")
	if privileges != nil {
		require.NoError(t, admin.RunCommand(t.Context(), bson.D{{Key: "createRole", Value: name}, {Key: "privileges", Value: privileges}, {Key: "roles", Value: bson.A{}}}).Err())
		roles = bson.A{name}
	}
	require.NoError(t, admin.RunCommand(t.Context(), bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: password}, {Key: "roles", Value: roles}}).Err())
}

// stores are both, of one user.
type stores struct {
	executions *mongostore.Store
	events     *outbox.Store
}

func newStores(t *testing.T, client *mongo.Client) stores {
	t.Helper()
	executions, err := mongostore.New(client, mongostore.Config{Database: accessDB})
	require.NoError(t, err)
	events, err := outbox.New(client, outbox.Config{Database: accessDB})
	require.NoError(t, err)
	return stores{executions, events}
}

// method is one call, and what is there before it.
type method struct {
	name    string
	prepare func(ctx context.Context, t *testing.T, owner stores) any
	call    func(ctx context.Context, s stores, made any) error
}

// TestTheDocumentedRightsAreEnoughAndEachIsNeeded calls every method as users who lack
// one of the rights each, and as one who has them all.
func TestTheDocumentedRightsAreEnoughAndEachIsNeeded(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	owner := newStores(t, g.admin)
	g.make(t, "setup", nil, bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: accessDB}}})
	setup := newStores(t, g.client(t, "setup"))
	all := newStores(t, g.user(t, "all", "", ""))
	for name, call := range map[string]func(stores) error{
		"executions": func(s stores) error { return s.executions.Setup(t.Context()) }, "outbox": func(s stores) error { return s.events.Setup(t.Context()) },
	} {
		require.True(t, isUnauthorized(call(all)), "Setup of %s needs more", name)
		require.NoError(t, call(setup))
		require.NoError(t, call(setup))
	}
	lacking := map[string]stores{}
	for _, coll := range collections {
		for _, action := range actions {
			right := coll + "." + action
			lacking[right] = newStores(t, g.user(t, right, coll, action))
		}
	}
	db := g.admin.Database(accessDB)
	var rights []string              // in the order of the methods
	methods := map[string][]string{} // by what they need
	for _, m := range slices.Concat(executionMethods(), outboxMethods()) {
		var needs []string
		var made any
		var before []string
		stands := false // nothing has changed since it was prepared
		for _, right := range append(slices.Sorted(maps.Keys(lacking)), "") {
			s, lacks := lacking[right]
			if lacks && strings.HasPrefix(right, "outbox_") != strings.HasPrefix(m.name, "outbox: ") {
				continue // the collections of the other store
			}
			if !lacks {
				s = all
			}
			if !stands {
				clearAll(t, db)
				made = m.prepare(t.Context(), t, owner)
				before = dump(t, db)
			}
			err := m.call(t.Context(), s, made)
			stands = slices.Equal(before, dump(t, db))
			if !lacks {
				require.NoError(t, err, "%s with all rights", m.name)
			}
			if err == nil {
				continue
			}
			needs = append(needs, right)
			require.True(t, isUnauthorized(err), "%s without %s: %v", m.name, right, err)
			if !stands && !leavesBehind[m.name+" without "+right] {
				t.Errorf("%s without %s left something half-written:\n%s", m.name, right, before)
			}
		}
		store, name := "", strings.TrimPrefix(m.name, "outbox: ")
		if name != m.name {
			store = "outbox, "
		}
		need := store + rightsText(needs)
		if methods[need] == nil {
			rights = append(rights, need)
		}
		methods[need] = append(methods[need], name)
	}
	table := ""
	for _, need := range rights {
		table += fmt.Sprintf("| %s | %s |\n", need, strings.Join(methods[need], ", "))
	}
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	require.NoError(t, err)
	if !strings.Contains(string(docs), table) {
		t.Errorf("docs/operations.md should have this table:\n%s", table)
	}
}

// leavesBehind are the calls of several commands that end in their middle: nothing of it
// is half a document, and the next call with all rights goes on.
var leavesBehind = map[string]bool{
	"Purge without counters.remove":                  true, // the executions are gone, counters of harel's are left
	"outbox: Claim without outbox_events.find":       true, // the lease runs out
	"outbox: Bus.Drain without outbox_events.find":   true, // the same
	"outbox: Extend without outbox_deliveries.find":  true, // it is extended, and nobody can tell
	"outbox: Requeue without outbox_deliveries.find": true, // it waits, to be found by the repair
}

func rightsText(rights []string) string {
	byCollection := map[string][]string{}
	for _, right := range rights {
		coll, action, _ := strings.Cut(right, ".")
		byCollection[coll] = append(byCollection[coll], action)
	}
	var parts []string
	for _, coll := range collections {
		if has := byCollection[coll]; len(has) > 0 {
			parts = append(parts, fmt.Sprintf("`%s`: %s", strings.TrimPrefix(coll, "outbox_"), strings.Join(has, ", ")))
		}
	}
	return strings.Join(parts, "; ")
}

func isUnauthorized(err error) bool {
	const unauthorized = 13
	var refused mongo.ServerError
	return errors.As(err, &refused) && refused.HasErrorCode(unauthorized)
}

func clearAll(t *testing.T, db *mongo.Database) {
	t.Helper()
	for _, coll := range collections {
		_, err := db.Collection(coll).DeleteMany(t.Context(), bson.D{})
		require.NoError(t, err)
	}
}

// dump is all that both stores hold, but for the counters: their numbers may have gaps.
func dump(t *testing.T, db *mongo.Database) (all []string) {
	t.Helper()
	for _, coll := range collections {
		if coll == "counters" {
			continue
		}
		cur, err := db.Collection(coll).Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
		require.NoError(t, err)
		for cur.Next(t.Context()) {
			all = append(all, cur.Current.String())
		}
		require.NoError(t, cur.Err())
	}
	return all
}

func executionMethods() []method {
	ch := mongostore.Changes{
		Emits: []mongostore.Emit{{Event: 1}}, Spawns: []mongostore.Spawn{{ChildID: "c"}}, Timers: []mongostore.TimerOp{{Path: "A", FireAt: time.Unix(5, 0)}},
		Processed: "ev", Trace: bson.D{{Key: "n", Value: 1}},
	}
	made := func(ctx context.Context, t *testing.T, s stores) any {
		x := &counter{Header: mongostore.Header{ID: "x", Status: "DONE"}}
		_, err := s.executions.Commit(ctx, x, ch)
		require.NoError(t, err)
		return x
	}
	nothing := func(context.Context, *testing.T, stores) any { return nil }
	leased := func(ctx context.Context, t *testing.T, s stores) any {
		made(ctx, t, s)
		leases, err := s.executions.Claim(ctx, mongostore.ClaimOptions{})
		require.NoError(t, err)
		return leases[0]
	}
	buried := func(ctx context.Context, t *testing.T, s stores) any {
		l := leased(ctx, t, s).(*mongostore.Lease)
		require.NoError(t, s.executions.Bury(ctx, l.Outbox[0], nil))
		return l
	}
	handlers := mongostore.Handlers{
		Outbox: func(context.Context, mongostore.OutboxEntry) error { return nil }, Spawn: func(context.Context, mongostore.SpawnEntry) error { return nil },
		Timer: func(context.Context, mongostore.Timer) error { return nil },
	}
	fresh := func() *counter { return &counter{Header: mongostore.Header{ID: "y"}} }
	return []method{
		{name: "Load", prepare: made, call: func(ctx context.Context, s stores, _ any) error { return s.executions.Load(ctx, "x", &counter{}) }},
		{name: "LoadForEvent", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.LoadForEvent(ctx, "x", "new", &counter{})
			return err
		}},
		{name: "IsProcessed", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.IsProcessed(ctx, "x", "ev")
			return err
		}},
		{name: "a first Commit", prepare: nothing, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.Commit(ctx, fresh(), mongostore.Changes{})
			return err
		}},
		{name: "a later Commit", prepare: made, call: func(ctx context.Context, s stores, x any) error {
			_, err := s.executions.Commit(ctx, x.(*counter), mongostore.Changes{})
			return err
		}},
		{name: "a Commit with emits or spawns", prepare: made, call: func(ctx context.Context, s stores, x any) error {
			_, err := s.executions.Commit(ctx, x.(*counter), mongostore.Changes{Emits: ch.Emits})
			return err
		}},
		{name: "CreateChild", prepare: nothing, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.CreateChild(ctx, mongostore.SpawnEntry{ParentID: "x", ChildID: "c"}, &counter{}, mongostore.Changes{})
			return err
		}},
		{name: "LoadForEvent of a handled event", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.LoadForEvent(ctx, "x", "ev", &counter{})
			return err
		}},
		{name: "Update", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.Update(ctx, "x", &counter{}, mongostore.UpdateOptions{}, func(*mongostore.Changes) error { return nil })
			return err
		}},
		{name: "Delete", prepare: made, call: func(ctx context.Context, s stores, _ any) error { return s.executions.Delete(ctx, "x", 1) }},
		{name: "AppendTrace", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			return s.executions.AppendTrace(ctx, "x", bson.D{{Key: "n", Value: 2}})
		}},
		{name: "ReadTrace", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			return s.executions.ReadTrace(ctx, "x", &[]bson.Raw{})
		}},
		{name: "Inspect", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.Inspect(ctx, "x")
			return err
		}},
		{name: "List", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.List(ctx, mongostore.ListOptions{})
			return err
		}},
		{name: "Stats", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.Stats(ctx)
			return err
		}},
		{name: "PendingOutbox", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.PendingOutbox(ctx, 0)
			return err
		}},
		{name: "PendingSpawns", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.PendingSpawns(ctx, 0)
			return err
		}},
		{name: "AckOutbox", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			return s.executions.AckOutbox(ctx, mongostore.OutboxEntry{ExecutionID: "x", Seq: 1})
		}},
		{name: "AckSpawn", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			return s.executions.AckSpawn(ctx, mongostore.SpawnEntry{ParentID: "x", Seq: 1})
		}},
		{name: "DueTimers", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.DueTimers(ctx, time.Now(), 0)
			return err
		}},
		{name: "DeleteTimer", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			return s.executions.DeleteTimer(ctx, mongostore.Timer{ExecutionID: "x", Path: "A", FireAt: time.Unix(5, 0)})
		}},
		{name: "Claim", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.Claim(ctx, mongostore.ClaimOptions{})
			return err
		}},
		{name: "Extend", prepare: leased, call: func(ctx context.Context, s stores, l any) error {
			return s.executions.Extend(ctx, l.(*mongostore.Lease), time.Hour)
		}},
		{name: "Complete", prepare: leased, call: func(ctx context.Context, s stores, l any) error {
			return s.executions.Complete(ctx, l.(*mongostore.Lease))
		}},
		{name: "Release", prepare: leased, call: func(ctx context.Context, s stores, l any) error {
			return s.executions.Release(ctx, l.(*mongostore.Lease))
		}},
		{name: "Retry", prepare: leased, call: func(ctx context.Context, s stores, l any) error {
			return s.executions.Retry(ctx, l.(*mongostore.Lease), 0, nil)
		}},
		{name: "Bury", prepare: leased, call: func(ctx context.Context, s stores, l any) error {
			return s.executions.Bury(ctx, l.(*mongostore.Lease).Outbox[0], nil)
		}},
		{name: "DeadLetters", prepare: buried, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.DeadLetters(ctx, mongostore.DeadLetterOptions{})
			return err
		}},
		{name: "Requeue", prepare: buried, call: func(ctx context.Context, s stores, l any) error {
			_, err := s.executions.Requeue(ctx, l.(*mongostore.Lease).Outbox[0])
			return err
		}},
		{name: "Adopt", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.Adopt(ctx)
			return err
		}},
		{name: "Purge", prepare: func(ctx context.Context, t *testing.T, s stores) any {
			_, err := s.executions.Commit(ctx, &counter{Header: mongostore.Header{ID: "x", Status: "DONE"}}, mongostore.Changes{})
			require.NoError(t, err)
			return nil
		}, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.executions.Purge(ctx, mongostore.PurgeOptions{FinishedBefore: time.Now().Add(time.Hour)})
			return err
		}},
		{name: "Relay.Drain", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			r, err := s.executions.NewRelay(handlers, mongostore.RelayConfig{})
			if err != nil {
				return err
			}
			_, err = r.Drain(ctx)
			return err
		}},
	}
}

func outboxMethods() []method {
	msg := outbox.Message{ID: "e", Type: "t", Key: "k", Payload: 1, Handlers: []string{"h"}}
	appends := func(ctx context.Context, s stores, all ...outbox.Message) error {
		return s.events.Transaction(ctx, func(ctx context.Context) error { return s.events.Append(ctx, all...) })
	}
	nothing := func(context.Context, *testing.T, stores) any { return nil }
	made := func(ctx context.Context, t *testing.T, s stores) any {
		require.NoError(t, appends(ctx, s, msg))
		return nil
	}
	leased := func(ctx context.Context, t *testing.T, s stores) any {
		made(ctx, t, s)
		ds, err := s.events.Claim(ctx, outbox.ClaimOptions{Handlers: msg.Handlers})
		require.NoError(t, err)
		require.Len(t, ds, 1)
		return ds[0]
	}
	ended := func(end func(context.Context, *outbox.Store, *outbox.Delivery) error) func(context.Context, *testing.T, stores) any {
		return func(ctx context.Context, t *testing.T, s stores) any {
			d := leased(ctx, t, s).(*outbox.Delivery)
			require.NoError(t, end(ctx, s.events, d))
			return d
		}
	}
	return []method{
		{name: "outbox: Append", prepare: nothing, call: func(ctx context.Context, s stores, _ any) error { return appends(ctx, s, msg) }},
		{name: "outbox: Append without a key", prepare: nothing, call: func(ctx context.Context, s stores, _ any) error {
			m := msg
			m.Key = ""
			return appends(ctx, s, m)
		}},
		{name: "outbox: Append of a known event", prepare: made, call: func(ctx context.Context, s stores, _ any) error { return appends(ctx, s, msg) }},
		{name: "outbox: Claim", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.events.Claim(ctx, outbox.ClaimOptions{Handlers: msg.Handlers})
			return err
		}},
		{name: "outbox: Complete", prepare: leased, call: func(ctx context.Context, s stores, d any) error { return s.events.Complete(ctx, d.(*outbox.Delivery)) }},
		{name: "outbox: Complete in a transaction", prepare: leased, call: func(ctx context.Context, s stores, d any) error {
			return s.events.Transaction(ctx, func(ctx context.Context) error { return s.events.Complete(ctx, d.(*outbox.Delivery)) })
		}},
		{name: "outbox: Extend", prepare: leased, call: func(ctx context.Context, s stores, d any) error {
			return s.events.Extend(ctx, d.(*outbox.Delivery), time.Hour)
		}},
		{name: "outbox: Release", prepare: leased, call: func(ctx context.Context, s stores, d any) error { return s.events.Release(ctx, d.(*outbox.Delivery)) }},
		{name: "outbox: Retry", prepare: leased, call: func(ctx context.Context, s stores, d any) error {
			return s.events.Retry(ctx, d.(*outbox.Delivery), 0, nil)
		}},
		{name: "outbox: Bury", prepare: leased, call: func(ctx context.Context, s stores, d any) error {
			return s.events.Bury(ctx, d.(*outbox.Delivery), nil)
		}},
		{name: "outbox: Requeue", prepare: ended(func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error { return s.Bury(ctx, d, nil) }),
			call: func(ctx context.Context, s stores, d any) error {
				_, err := s.events.Requeue(ctx, d.(*outbox.Delivery).ID)
				return err
			}},
		{name: "outbox: List", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.events.List(ctx, outbox.ListOptions{})
			return err
		}},
		{name: "outbox: Stats", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			_, err := s.events.Stats(ctx)
			return err
		}},
		{name: "outbox: Purge", prepare: ended(func(ctx context.Context, s *outbox.Store, d *outbox.Delivery) error { return s.Complete(ctx, d) }),
			call: func(ctx context.Context, s stores, _ any) error {
				_, err := s.events.Purge(ctx, outbox.PurgeOptions{CompletedBefore: time.Now().Add(time.Hour)})
				return err
			}},
		{name: "outbox: Bus.Drain", prepare: made, call: func(ctx context.Context, s stores, _ any) error {
			bus, err := outbox.NewBus(s.events, outbox.BusConfig{})
			if err == nil {
				err = outbox.Subscribe(bus, "h", func(context.Context, outbox.Event[hello]) error { return nil }, outbox.SubscribeOptions{})
			}
			if err == nil {
				_, err = bus.Drain(ctx)
			}
			return err
		}},
	}
}

// hello is a payload of type t.
type hello int

func (hello) EventType() string { return "t" }
