package main

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/examples/internal/stage"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// TestMain is also a process of the shop: the fleet starts this binary again, as it
// starts the demo's own.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-worker") {
		main()
		return
	}
	mongotest.Main(m)
}

func smallRun(server *mongotest.Server, database string) config {
	return config{
		uri: server.URI(), database: database, orders: 60, workers: 3, kills: 3,
		seed: 5, pace: 10 * time.Millisecond, worker: -1,
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	server := mongotest.ReplicaSet(t)
	client, database := server.Database(t)
	cfg := smallRun(server, database)
	var out bytes.Buffer
	require.NoError(t, demo(t.Context(), cfg, stage.Plain(&out)), "%s", &out)

	text := out.String()
	require.Equal(t, 6, strings.Count(text, "\n  ok   "), text)
	require.NotContains(t, text, "FAIL")
	require.Contains(t, text, "55 orders placed, each with its event; 5 declined")
	require.Contains(t, text, "3 kills, ")
	require.Contains(t, text, "seed 5,")
	require.Contains(t, text, "  dead letter mailer:placed-order-00030 after ")
	require.Contains(t, text, "  the store: 110 completed, 0 pending, 0 waiting, 0 processing, 0 dead")
	left, err := client.ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: database}})
	require.NoError(t, err)
	require.Empty(t, left, "the demo drops its database")
}

// Each check is shown a world that is wrong in one way.
func TestChecksCanFail(t *testing.T) {
	t.Parallel()
	server := mongotest.ReplicaSet(t)
	client, database := server.Database(t)
	cfg := smallRun(server, database)
	cfg.kills = 0
	s, err := openShop(t.Context(), cfg, client, stage.Plain(new(bytes.Buffer)))
	require.NoError(t, err)
	require.NoError(t, s.run(t.Context()))

	const placed, declined = "order-00000", "order-00005"
	plan, _ := planOrder(cfg, 0)
	customer := plan.Customer
	box := func(w *World, change func(*Mailbox)) {
		b := w.Boxes[customer]
		change(&b)
		w.Boxes[customer] = b
	}
	total := func(w *World, change func(*Total)) {
		all := w.Totals[customer]
		change(&all)
		w.Totals[customer] = all
	}
	for _, tt := range []struct {
		name  string
		spoil func(*World)
		wrong string
	}{
		{"NothingIsWrong", func(*World) {}, ""},
		{"OrderLost", func(w *World) { delete(w.Orders, placed) }, "order-00000 is not there"},
		{"OrderChanged", func(w *World) { o := w.Orders[placed]; o.Cents++; w.Orders[placed] = o }, "is not what was ordered"},
		{"DeclinedIsThere", func(w *World) { w.Orders[declined] = Order{ID: declined} }, "order-00005 was declined, and is there"},
		{"EventOfDeclined", func(w *World) { w.Events = append(w.Events, "placed-"+declined) }, "event placed-order-00005 belongs to no order"},
		{"EventLost", func(w *World) { w.Events = w.Events[1:] }, " is not there"},
		{"MailLost", func(w *World) { box(w, func(b *Mailbox) { b.Mails = b.Mails[1:] }) }, "has 0 mails"},
		{"MailTwice", func(w *World) { box(w, func(b *Mailbox) { b.Mails = append(b.Mails, b.Mails[0]) }) }, "has 2 mails"},
		{"MailToAnother", func(w *World) { w.Boxes["customer-999"] = w.Boxes[customer] }, "went to customer-999"},
		{"MailsOutOfOrder", func(w *World) { box(w, func(b *Mailbox) { slices.Reverse(b.Mails) }) }, "came out of order"},
		{"SumWrong", func(w *World) { total(w, func(t *Total) { t.Cents++ }) }, "cents in the projection, not"},
		{"RevenueOutOfOrder", func(w *World) { total(w, func(t *Total) { t.OutOfOrder = []int64{2} }) }, "out of order: [2]"},
		{"RevenueOfNobody", func(w *World) { w.Totals["customer-999"] = Total{} }, "customer-999 has ordered nothing"},
		{"LetterWithoutMail", func(w *World) { maps.DeleteFunc(w.Boxes, func(string, Mailbox) bool { return true }) }, "its mail did not come"},
		{"SomethingDead", func(w *World) { w.Stats.Dead++ }, "Dead:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := readWorld(t.Context(), s.db, s.store)
			require.NoError(t, err)
			tt.spoil(w)
			requireWrong(t, check(w, cfg, s.requeued), tt.wrong)
		})
	}
	t.Run("AnotherLetter", func(t *testing.T) {
		w, err := readWorld(t.Context(), s.db, s.store)
		require.NoError(t, err)
		requireWrong(t, check(w, cfg, outbox.Delivery{ID: "mailer:placed-order-00001"}), "not mailer:placed-order-00030")
	})
}

func requireWrong(t *testing.T, findings []stage.Finding, wrong string) {
	t.Helper()
	var out bytes.Buffer
	good := stage.Print(&out, findings)
	if wrong == "" {
		require.True(t, good, "%s", &out)
		return
	}
	require.False(t, good, "%s", &out)
	require.Contains(t, out.String(), wrong)
	require.Contains(t, out.String(), "FAIL")
}

// What the mailer meets where a process was killed after the mail, before the completion.
func TestRepeatsAreRecognised(t *testing.T) {
	t.Parallel()
	client, database := mongotest.ReplicaSet(t).Database(t)
	db := client.Database(database)
	m := &mailer{boxes: db.Collection("mailboxes"), broken: db.Collection("broken")}
	for n, want := range []int64{0, 1} {
		require.NoError(t, m.handle(t.Context(), outbox.Event[OrderPlaced]{ID: "e", Payload: OrderPlaced{Order: "o", Customer: "c", Nth: 1}}))
		var box Mailbox
		require.NoError(t, m.boxes.FindOne(t.Context(), bson.D{}).Decode(&box))
		require.Equal(t, Mailbox{Customer: "c", Mails: []Mail{{ID: "e", Order: "o", Nth: 1}}, Repeats: want}, box, n)
	}
}

// What a process leaves that is killed in the middle of a transaction holds up nobody.
func TestTransactionsOfTheDeadAreEnded(t *testing.T) {
	t.Parallel()
	server := mongotest.ReplicaSet(t)
	client, database := server.Database(t)
	customers := client.Database(database).Collection("customers")
	require.NoError(t, client.Database(database).CreateCollection(t.Context(), "customers"))
	cfg := smallRun(server, database)
	dying, err := connectAs(t.Context(), cfg, 1)
	require.NoError(t, err)
	defer func() { _ = dying.Disconnect(t.Context()) }()
	sess, err := dying.StartSession()
	require.NoError(t, err)
	require.NoError(t, sess.StartTransaction())
	_, err = dying.Database(database).Collection("customers").InsertOne(mongo.NewSessionContext(t.Context(), sess), bson.D{{Key: "_id", Value: "c"}})
	require.NoError(t, err)

	r := &reaper{admin: client.Database("admin")}
	require.NoError(t, r.reap(t.Context()))
	require.Zero(t, r.ended, "nobody is dead yet")
	r.dead = []string{appName(cfg, 1)}
	require.NoError(t, r.reap(t.Context()))
	require.Equal(t, 1, r.ended)
	_, err = customers.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "c"}})
	require.NoError(t, err)
}

func TestProcessThatEndsByItselfFailsTheRun(t *testing.T) {
	t.Parallel()
	server := mongotest.ReplicaSet(t)
	_, database := server.Database(t)
	f := newFleet(smallRun(server, database))
	require.NoError(t, f.Start())
	defer f.Stop()
	require.NoError(t, syscall.Kill(f.Pid(1), syscall.SIGKILL))
	require.ErrorContains(t, <-f.Broken(), "process 1 (pid ")
}

func TestParse(t *testing.T) {
	t.Setenv("MONGOSTORE_TEST_RS_URI", "")
	_, err := parse(nil)
	require.ErrorContains(t, err, "which replica set?")
	_, err = parse([]string{"-uri", "mongodb://localhost", "-orders", "0"})
	require.ErrorContains(t, err, "-orders")
	cfg, err := parse([]string{"-uri", "mongodb://localhost"})
	require.NoError(t, err)
	require.NotZero(t, cfg.seed)
	require.NotEmpty(t, cfg.database)
	require.False(t, cfg.keep)
	t.Setenv("MONGOSTORE_EXAMPLE_URI", "mongodb://other")
	child, err := parse(append(cfg.args(), "-worker", "2"))
	require.NoError(t, err)
	want := cfg
	want.worker, want.uri, want.keep, want.kills = 2, "mongodb://other", true, child.kills
	require.Equal(t, want, child, "a process knows what the demo knows")
}
