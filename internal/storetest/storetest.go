// Package storetest is the contract of the execution store as tests, split by
// topic: one file, one function and one table of tests each. [Exercise] runs them
// all on one kind of server; every test has a database of its own. Tests of the
// faults that were met in public trackers start with their number, such as BH-08.
package storetest

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/mongostoretest"
)

// Exercise runs the whole suite on a server. The stores under test get a client
// with opts; what the tests write and read by hand goes through a plain one.
func Exercise(t *testing.T, server func(testing.TB) *mongotest.Server, opts ...*options.ClientOptions) {
	h := newHarness(t, server(t), opts...)
	topics := map[string]func(*testing.T, *harness){
		"Commit": exerciseCommit, "Header": exerciseHeader, "Acks": exerciseAcks, "First": exerciseFirst, "Update": exerciseUpdate,
		"Dedupe": exerciseDedupe, "Trace": exerciseTrace, "Timers": exerciseTimers, "Paths": exercisePaths,
		"Sweeps": exerciseSweeps, "Children": exerciseChildren, "List": exerciseList, "Pages": exercisePages,
		"Inspect": exerciseInspect, "Delete": exerciseDelete, "Adopt": exerciseAdopt, "Setup": exerciseSetup, "Lifecycle": exerciseLifecycle,
		"Counters": exerciseCounters, "Size": exerciseSize, "Payload": exercisePayload, "Foreign": exerciseForeign,
		"Damaged": exerciseDamaged, "DamagedFields": exerciseDamagedFields,
		"BadInput": exerciseBadInput, "Config": exerciseConfig, "ClientOptions": exerciseClientOptions,
		"Concurrency": exerciseConcurrency, "History": exerciseHistory,
		"Leases": exerciseLeases, "Claims": exerciseClaims, "DeadLetters": exerciseDeadLetters, "Purge": exercisePurge, "Relay": exerciseRelay, "RelayFaults": exerciseRelayFaults,
	}
	if h.hasTransactions {
		topics["Transactions"] = exerciseTransactions
	}
	if len(opts) > 0 { // a suite once more: without what has clients of its own, and what is only large
		delete(topics, "ClientOptions")
		delete(topics, "Size")
	}
	for name, exercise := range topics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exercise(t, h)
		})
	}
}

// tests are the tests of one topic, by the sentence that each proves.
type tests map[string]func(t *testing.T, b *bundle)

// run gives each test a bundle of its own.
func run(t *testing.T, setup func(t *testing.T) *bundle, all tests) {
	for name, test := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, setup(t))
		})
	}
}

// harness is what all tests of one Exercise share.
type harness struct {
	server          *mongotest.Server
	client          *mongo.Client
	opts            []*options.ClientOptions
	hasTransactions bool
}

func newHarness(t *testing.T, server *mongotest.Server, opts ...*options.ClientOptions) *harness {
	client := server.Client(t, opts...)
	var hello struct {
		SetName string `bson:"setName"`
	}
	reply, err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Raw()
	require.NoError(t, err)
	require.NoError(t, bson.Unmarshal(reply, &hello))
	return &harness{server: server, client: client, opts: opts, hasTransactions: hello.SetName != ""}
}

// bundle is what one test works with.
type bundle struct {
	*harness
	store      *mongostore.Store
	cfg        mongostore.Config
	clock      *mongostoretest.Clock
	damage     *damageLog
	database   string
	db         *mongo.Database // by a plain client
	executions *mongo.Collection
	counters   *mongo.Collection
	byHand     bool // documents were written around the store
}

func (h *harness) bundle(t *testing.T) *bundle {
	t.Helper()
	plain, name := h.server.Database(t)
	b := &bundle{harness: h, clock: &mongostoretest.Clock{}, damage: &damageLog{}, database: name, db: plain.Database(name)}
	b.executions, b.counters = b.db.Collection("executions"), b.db.Collection("counters")
	b.cfg = mongostore.Config{Database: name, Clock: b.clock, OnDamaged: b.damage.add}
	b.store = b.with(t, func(*mongostore.Config) {})
	t.Cleanup(func() {
		if !t.Failed() && !b.byHand {
			b.checkInvariants(t)
		}
	})
	return b
}

// withIndexes is a bundle after Setup.
func (h *harness) withIndexes(t *testing.T) *bundle {
	t.Helper()
	b := h.bundle(t)
	require.NoError(t, b.store.Setup(t.Context()))
	return b
}

// with gives another store on the same database.
func (b *bundle) with(t *testing.T, change func(*mongostore.Config)) *mongostore.Store {
	t.Helper()
	return b.on(t, b.client, change)
}

// on gives another store on the same database, by another client.
func (b *bundle) on(t *testing.T, client *mongo.Client, change func(*mongostore.Config)) *mongostore.Store {
	t.Helper()
	cfg := b.cfg
	change(&cfg)
	store, err := mongostore.New(client, cfg)
	require.NoError(t, err)
	return store
}

// order is the engine's type in most tests.
type order struct {
	mongostore.Header
	Total int      `json:"total"`
	Notes []string `json:"notes,omitempty"`
}

// event is what the tests emit.
type event struct {
	Kind string `json:"kind"`
	N    int    `json:"n"`
}

func newOrder(id string) *order {
	return &order{Header: mongostore.Header{ID: id, DefinitionID: "orders", Status: "RUNNING"}}
}

// create makes the first commit of an order.
func (b *bundle) create(t *testing.T, id string, changes ...mongostore.Changes) *order {
	t.Helper()
	o := newOrder(id)
	b.commit(t, o, append(changes, mongostore.Changes{})[0])
	return o
}

func (b *bundle) commit(t *testing.T, exe mongostore.Execution, ch mongostore.Changes) mongostore.CommitResult {
	t.Helper()
	res, err := b.store.Commit(t.Context(), exe, ch)
	require.NoError(t, err)
	return res
}

func (b *bundle) load(t *testing.T, id string) *order {
	t.Helper()
	o := &order{}
	require.NoError(t, b.store.Load(t.Context(), id, o))
	return o
}

// insert writes a document around the store.
func (b *bundle) insert(t *testing.T, doc any) {
	t.Helper()
	b.byHand = true
	_, err := b.executions.InsertOne(t.Context(), doc)
	require.NoError(t, err)
}

// set changes fields of a document around the store.
func (b *bundle) set(t *testing.T, id any, fields bson.D) {
	t.Helper()
	b.change(t, id, bson.D{{Key: "$set", Value: fields}})
}

// unset removes fields of a document around the store.
func (b *bundle) unset(t *testing.T, id any, fields ...string) {
	t.Helper()
	var gone bson.D
	for _, f := range fields {
		gone = append(gone, bson.E{Key: f, Value: ""})
	}
	b.change(t, id, bson.D{{Key: "$unset", Value: gone}})
}

func (b *bundle) change(t *testing.T, id any, update bson.D) {
	t.Helper()
	b.byHand = true
	res, err := b.executions.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, update)
	require.NoError(t, err)
	require.EqualValues(t, 1, res.MatchedCount, "no document %v", id)
}

// doc is the stored document, byte by byte.
func (b *bundle) doc(t *testing.T, id any) bson.Raw {
	t.Helper()
	raw, err := b.executions.FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
	require.NoError(t, err, "document %v", id)
	return raw
}

// count is how many documents the executions collection holds.
func (b *bundle) count(t *testing.T) int {
	t.Helper()
	n, err := b.executions.CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	return int(n)
}

// counter is the stored n of a counter, 0 if there is none.
func (b *bundle) counter(t *testing.T, name string) int64 {
	t.Helper()
	raw, err := b.counters.FindOne(t.Context(), bson.D{{Key: "_id", Value: name}}).Raw()
	if err == mongo.ErrNoDocuments {
		return 0
	}
	require.NoError(t, err)
	n, ok := raw.Lookup("n").AsInt64OK()
	require.True(t, ok, "counter %s is %s", name, raw)
	return n
}

// lease puts a lease on a document, as a claim does.
func (b *bundle) lease(t *testing.T, id, token string) {
	t.Helper()
	b.set(t, id, bson.D{{Key: "lease", Value: bson.D{
		{Key: "token", Value: token}, {Key: "until", Value: seconds(b.clock.Now().Add(time.Minute))}, {Key: "attempts", Value: 1},
	}}})
}

// seconds is a time as documents hold it.
func seconds(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }

func at(seconds float64) time.Time { return time.UnixMicro(int64(seconds * 1e6)).UTC() }

// damageLog is what OnDamaged was told.
type damageLog struct {
	mu   sync.Mutex
	list []mongostore.DamagedError
}

func (d *damageLog) add(err *mongostore.DamagedError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, *err)
}

// take gives what was told since the last take, as sorted "id field" lines
// without repetition.
func (d *damageLog) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := []string{}
	for _, e := range d.list {
		lines = append(lines, e.ExecutionID+" "+e.Field)
	}
	d.list = nil
	slices.Sort(lines)
	return slices.Compact(lines)
}

func requireInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var invalid *mongostore.ValidationError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, field, invalid.Field)
	require.NotEmpty(t, invalid.Reason)
	require.ErrorIs(t, err, mongostore.ErrInvalid)
}

func requireDamaged(t *testing.T, err error, id, field string) {
	t.Helper()
	var damaged *mongostore.DamagedError
	require.ErrorAs(t, err, &damaged)
	require.Equal(t, id+" "+field, damaged.ExecutionID+" "+damaged.Field, damaged.Reason)
	require.NotEmpty(t, damaged.Reason)
	require.ErrorIs(t, err, mongostore.ErrDamaged)
}

// requireConflict checks the facts and the sentinels that they stand for.
func requireConflict(t *testing.T, err error, want mongostore.ConflictError) {
	t.Helper()
	var conflict *mongostore.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, want, *conflict)
	require.ErrorIs(t, err, mongostore.ErrConflict)
	if want.Expected == 0 && want.Actual != 0 {
		require.ErrorIs(t, err, mongostore.ErrExists)
	} else {
		require.NotErrorIs(t, err, mongostore.ErrExists)
	}
	if want.Actual == 0 {
		require.ErrorIs(t, err, mongostore.ErrNotFound)
	} else {
		require.NotErrorIs(t, err, mongostore.ErrNotFound)
	}
}

// numbered gives n ids with a prefix, in order.
func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return ids
}

// d is a document of keys and values in turn.
func d(pairs ...any) bson.D {
	doc := bson.D{}
	for i := 0; i < len(pairs); i += 2 {
		doc = append(doc, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return doc
}

// assertNoError is for goroutines, which must not end the test; it reports whether
// all is well.
func assertNoError(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		t.Errorf("unexpected error: %v", err)
	}
	return err == nil
}

var nan = math.NaN()
