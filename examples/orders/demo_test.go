package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/examples/internal/stage"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestMain is also the worker: the fleet starts this binary again, as it starts the
// demo's own.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-worker") {
		main()
		return
	}
	mongotest.Main(m)
}

func smallRun(server *mongotest.Server, database string) config {
	return config{
		uri: server.URI(), database: database, orders: 20, workers: 3, kills: 3,
		seed: 5, payWait: time.Second, worker: -1,
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	client, database := server.Database(t)
	cfg := smallRun(server, database)
	var out bytes.Buffer
	require.NoError(t, demo(t.Context(), cfg, stage.Plain(&out)), "%s", &out)

	text := out.String()
	require.Equal(t, 6, strings.Count(text, "\n  ok   "), text)
	require.NotContains(t, text, "FAIL")
	require.Contains(t, text, "20 orders finished: ")
	require.Contains(t, text, "3 kills;")
	require.Contains(t, text, "seed 5,")
	require.Contains(t, text, "The trace of order:00")
	left, err := client.ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: database}})
	require.NoError(t, err)
	require.Empty(t, left, "the demo drops its database")
}

// Each check is shown a world that is wrong in one way.
func TestChecksCanFail(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	client, database := server.Database(t)
	store, err := mongostore.New(client, mongostore.Config{Database: database})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	cfg := smallRun(server, database)
	cfg.kills = 0
	_, err = runOrders(t.Context(), cfg, store, stage.Plain(new(bytes.Buffer)))
	require.NoError(t, err)

	const unpaid = "order:0007"
	ledger := newLedger(client.Database(database))
	shipped, plan := someShipped(t, store)
	north := parcelID(shipped, "North")
	for _, tt := range []struct {
		name  string
		spoil func(*World)
		wrong string
	}{
		{"NothingIsWrong", func(*World) {}, ""},
		{"OrderLost", func(w *World) { delete(w.Orders, unpaid) }, "order:0007 is not there"},
		{"OrderNotFinished", func(w *World) { w.Orders[shipped].Machine.Status = active }, "is ACTIVE"},
		{"OrderChanged", func(w *World) { w.Orders[shipped].Machine.Plan.Transit++ }, "is not what was ordered"},
		{"NobodyPaidButShipped", func(w *World) { w.Orders[unpaid].Machine.Status = done }, "payer gone, is DONE"},
		{"PostingLost", func(w *World) { w.Ledger = w.Ledger[1:] }, "-1 postings missing or too many"},
		{"PostingTwice", func(w *World) { w.Ledger = append(w.Ledger, w.Ledger[0]) }, "+1 postings missing or too many"},
		{"ChildLost", func(w *World) { delete(w.Parcels, north) }, north + " is not there"},
		{"ChildOfAnUnpaidOrder", func(w *World) { w.Parcels[parcelID(unpaid, "North")] = w.Parcels[north] }, "belongs to no paid order"},
		{"ChildStartedTwice", func(w *World) { w.Parcels[north].Machine.Starts++ }, "was started 2 times"},
		{"JoinedTwice", func(w *World) { w.Orders[shipped].Machine.Packed = []string{"North", "North"} }, `joined ["North" "North"]`},
		{"BalanceWrong", func(w *World) { w.Accounts[plan.Account].Machine.Balance++ }, plan.Account + " has"},
		{"StepMissing", func(w *World) { s := w.Orders[shipped]; s.Trace = s.Trace[1:]; w.Orders[shipped] = s }, "commits, "},
		{"StepTwice", func(w *World) { tr := w.Orders[shipped].Trace; tr[1].EventID = tr[0].EventID }, "applied start:" + shipped + " twice"},
		{"CommitTooMany", func(w *World) { w.Orders[shipped].Machine.Reminders-- }, "commits, where the orders need"},
		{"TimerPending", func(w *World) { w.Swept.Timers = 1 }, "the sweeps find"},
	} {
		t.Run(tt.name, func(t *testing.T) { requireWrong(t, store, ledger, cfg, tt.spoil, tt.wrong) })
	}
	// last, because it stays: the same charge under an id that was not seen before, as
	// an engine without deduplication would apply it after a kill
	t.Run("PaymentAppliedTwice", func(t *testing.T) {
		engine := &Engine{Store: store, Name: "test", Stats: new(Stats)}
		first, err := engine.Deliver(t.Context(), plan.Account, "again", Event{Name: "charge", Order: shipped, Amount: plan.Amount, Payer: prompt})
		require.NoError(t, err)
		require.True(t, first)
		requireWrong(t, store, ledger, cfg, func(*World) {}, "its payment was applied 2 times")
		requireWrong(t, store, ledger, cfg, func(*World) {}, plan.Account+" owes {Outbox:2 Spawns:0 Timers:0}")
		requireWrong(t, store, ledger, cfg, func(*World) {}, "the sweeps find {Outbox:2 Spawns:0 Timers:0}")
	})
}

// someShipped is an order that went all the way.
func someShipped(t *testing.T, store *mongostore.Store) (string, Plan) {
	t.Helper()
	page, err := store.List(t.Context(), mongostore.ListOptions{DefinitionID: "order", Statuses: []string{done}, Limit: 1})
	require.NoError(t, err)
	require.Len(t, page.Items, 1, "no order was shipped")
	var o Order
	require.NoError(t, store.Load(t.Context(), page.Items[0].ID, &o))
	return o.ID, o.Plan
}

func requireWrong(t *testing.T, store *mongostore.Store, ledger *Ledger, cfg config, spoil func(*World), wrong string) {
	t.Helper()
	w, err := readWorld(t.Context(), store, ledger)
	require.NoError(t, err)
	spoil(w)
	var out bytes.Buffer
	good := stage.Print(&out, check(w, cfg))
	if wrong == "" {
		require.True(t, good, "%s", &out)
		return
	}
	require.False(t, good, "%s", &out)
	require.Contains(t, out.String(), wrong)
	require.Contains(t, out.String(), "FAIL")
}

// What a worker meets that repeats the deliveries of one that was killed before it
// could ack them.
func TestRepeatsAreRecognised(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	store, err := mongostore.New(client, mongostore.Config{Database: database})
	require.NoError(t, err)
	engine := &Engine{Store: store, Name: "test", Stats: new(Stats)}
	ledger := newLedger(client.Database(database))
	plan := somePlan(prompt)
	for _, want := range []bool{true, false} {
		first, err := engine.Start(t.Context(), "order:1", "start", Event{Name: "start", Plan: plan})
		require.NoError(t, err)
		require.Equal(t, want, first, "start")
		first, err = engine.Deliver(t.Context(), "order:1", "paid", Event{Name: "paid"})
		require.NoError(t, err)
		require.Equal(t, want, first, "deliver")
		first, err = ledger.Book(t.Context(), "outbox:account:01:1", Event{Name: payment, From: "account:01", Order: "order:1", Amount: 5})
		require.NoError(t, err)
		require.Equal(t, want, first, "book")
		spawns, err := store.PendingSpawns(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, spawns, 2)
		for _, spawn := range spawns {
			first, err := engine.CreateChild(t.Context(), spawn)
			require.NoError(t, err)
			require.Equal(t, want, first, "create")
		}
	}
	var o Order
	require.NoError(t, store.Load(t.Context(), "order:1", &o))
	require.EqualValues(t, 2, o.Version)
	postings, err := ledger.Postings(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Posting{{ID: "outbox:account:01:1", Kind: payment, Account: "account:01", Order: "order:1", Amount: 5, Attempts: 2}}, postings)
}

func TestWorkerThatEndsByItselfFailsTheRun(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	_, database := server.Database(t)
	f := newFleet(smallRun(server, database))
	require.NoError(t, f.Start())
	defer f.Stop()
	require.NoError(t, syscall.Kill(f.Pid(1), syscall.SIGKILL))
	require.ErrorContains(t, <-f.Broken(), "process 1 (pid ")
}

func TestParse(t *testing.T) {
	t.Setenv("MONGOSTORE_TEST_URI", "")
	_, err := parse(nil)
	require.ErrorContains(t, err, "which server?")
	_, err = parse([]string{"-uri", "mongodb://localhost", "-orders", "0"})
	require.ErrorContains(t, err, "-orders")
	cfg, err := parse([]string{"-uri", "mongodb://localhost"})
	require.NoError(t, err)
	require.NotZero(t, cfg.seed)
	require.NotEmpty(t, cfg.database)
	require.False(t, cfg.keep)
	cfg, err = parse([]string{"-uri", "mongodb://localhost", "-database", "mine"})
	require.NoError(t, err)
	require.True(t, cfg.keep, "a database that the user named is not dropped")
}
