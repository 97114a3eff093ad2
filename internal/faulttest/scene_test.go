//go:build faults

package faulttest_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/mongostoretest"
	"github.com/execstore/mongostore/outbox"
)

// scene is a database on which one operation after the other is tried, each on fresh
// data: by a client behind a proxy, and by a sound one that makes the data and looks.
type scene struct {
	t         *testing.T
	cluster   *mongotest.Cluster
	name      string
	proxy     *mongotest.Proxy
	far, near *mongo.Client
	clock     *mongostoretest.Clock
	started   atomic.Pointer[func()] // before a command is sent
	ended     atomic.Pointer[func()] // after its reply is read
	aborted   sync.Map               // ids of transactions whose abort was sent
}

func newScene(t *testing.T, cluster *mongotest.Cluster, name string, opts ...*options.ClientOptions) *scene {
	t.Helper()
	s := &scene{t: t, cluster: cluster, name: name, proxy: mongotest.NewProxy(t, cluster.Node(0).Addr()), near: cluster.Client()}
	tell := func(name string, to *atomic.Pointer[func()]) {
		if f := to.Load(); f != nil && name != "endSessions" {
			(*f)()
		}
	}
	monitor := &event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "abortTransaction" {
				s.aborted.Store(transactionID(e.Command.Lookup("lsid", "id"), e.Command.Lookup("txnNumber")), true)
			}
			tell(e.CommandName, &s.started)
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { tell(e.CommandName, &s.ended) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { tell(e.CommandName, &s.ended) },
	}
	s.far = cluster.Client(append([]*options.ClientOptions{
		mongotest.Through(s.proxy),
		options.Client().SetMonitor(monitor).SetAppName(name).SetServerSelectionTimeout(5 * time.Second),
	}, opts...)...)
	return s
}

// fresh makes the data anew: empty, and what the operation prepares.
func (s *scene) fresh(op operation) call {
	ctx := context.Background()
	s.clock = mongostoretest.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	names, err := s.db().ListCollectionNames(ctx, bson.D{})
	s.must(err)
	for _, name := range append(op.collections, names...) {
		if op.anew {
			s.must(s.db().Collection(name).Drop(ctx))
			continue
		}
		if !slices.Contains(names, name) {
			s.must(s.db().CreateCollection(ctx, name))
		}
		_, err := s.db().Collection(name).DeleteMany(ctx, bson.D{})
		s.must(err)
	}
	return op.prepare(s)
}

func (s *scene) db() *mongo.Database { return s.near.Database(s.name) }

// executions is a new store: nothing is remembered from the case before.
func (s *scene) executions(client *mongo.Client) *mongostore.Store {
	store, err := mongostore.New(client, mongostore.Config{Database: s.name, Clock: s.clock})
	s.must(err)
	return store
}

func (s *scene) outbox(client *mongo.Client) *outbox.Store {
	store, err := outbox.New(client, outbox.Config{Database: s.name, Clock: s.clock})
	s.must(err)
	return store
}

// must ends the goroutine of the case: nothing can be shown without its data.
func (s *scene) must(err error) {
	if err != nil {
		s.t.Errorf("%s: %v", s.name, err)
		runtime.Goexit()
	}
}

// chance is left out of what is compared: random, or numbers that may have gaps.
var chance = []string{"token", "commits", "seq", "seq_hi", "head"}

// state is all that is stored, as text.
func (s *scene) state(op operation) string {
	ctx := context.Background()
	var all strings.Builder
	names, err := s.db().ListCollectionNames(ctx, bson.D{})
	s.must(err)
	slices.Sort(names)
	for _, name := range names {
		if name == "counters" || slices.Contains(op.ignored, name) {
			continue // numbers that a failed call has taken are a gap
		}
		if op.anew {
			specs, err := s.db().Collection(name).Indexes().ListSpecifications(ctx)
			s.must(err)
			for _, spec := range specs {
				fmt.Fprintf(&all, "%s %s\n", name, spec.Name)
			}
		}
		cur, err := s.db().Collection(name).Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
		s.must(err)
		var docs []bson.D
		s.must(cur.All(ctx, &docs))
		for _, doc := range docs {
			fmt.Fprintf(&all, "%s %s\n", name, scrubbed(doc, append(op.ignored, chance...)))
		}
	}
	return all.String()
}

// scrubbed is v as text, without the fields, and with others in the order of their names.
func scrubbed(v any, without []string) string {
	switch v := v.(type) {
	case bson.D:
		var fields []string
		for _, e := range v {
			if !slices.Contains(without, e.Key) {
				fields = append(fields, e.Key+": "+scrubbed(e.Value, without))
			}
		}
		slices.Sort(fields)
		return "{" + strings.Join(fields, ", ") + "}"
	case bson.A:
		var all []string
		for _, e := range v {
			all = append(all, scrubbed(e, without))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	return fmt.Sprint(v)
}

func transactionID(session, number bson.RawValue) string { return session.String() + number.String() }

// openTransactions are those of the far client on the server.
func (s *scene) openTransactions() (open []string) {
	ctx := context.Background()
	cur, err := s.near.Database("admin").Aggregate(ctx, bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleSessions", Value: true}, {Key: "allUsers", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "appName", Value: s.name}, {Key: "transaction.parameters.autocommit", Value: false}}}},
	})
	s.must(err)
	var docs []bson.Raw
	s.must(cur.All(ctx, &docs))
	for _, doc := range docs {
		open = append(open, transactionID(doc.Lookup("lsid", "id"), doc.Lookup("transaction", "parameters", "txnNumber")))
	}
	return open
}

// call is one operation with its arguments, to be done once or again.
type call func(ctx context.Context) error

// operation is one method of a store, on data of its own.
type operation struct {
	name        string
	prepare     func(s *scene) call
	definite    bool     // an error that is not ErrUnknownOutcome says that nothing has changed
	once        bool     // not to be repeated after an unknown outcome
	collections []string // that it needs beforehand
	ignored     []string // fields and collections that tell of the calls before, by their nature
	anew        bool     // without collections
	plain       bool     // nothing in its command tells a second copy of it from a second call
}

// settle lets repairs do what they do within a second, so that states can be compared.
func (op operation) settle(s *scene) {
	if len(op.collections) == 0 {
		return
	}
	_, err := s.outbox(s.near).Claim(context.Background(), outbox.ClaimOptions{Handlers: []string{"nobody"}})
	s.must(err)
}
