package main

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/examples/internal/stage"
	"github.com/execstore/mongostore/outbox"
)

// World is what a run left behind.
type World struct {
	Orders map[string]Order
	Totals map[string]Total
	Boxes  map[string]Mailbox
	Events []string // ids
	Stats  outbox.Stats
}

// readWorld reads everything. Nothing should be running any more.
func readWorld(ctx context.Context, db *mongo.Database, store *outbox.Store) (*World, error) {
	w := &World{Orders: map[string]Order{}, Totals: map[string]Total{}, Boxes: map[string]Mailbox{}}
	var orders []Order
	var totals []Total
	var boxes []Mailbox
	var events []struct {
		ID string `bson:"_id"`
	}
	for name, to := range map[string]any{"orders": &orders, "revenue": &totals, "mailboxes": &boxes, "outbox_events": &events} {
		cur, err := db.Collection(name).Find(ctx, bson.D{})
		if err != nil {
			return nil, err
		}
		if err := cur.All(ctx, to); err != nil {
			return nil, err
		}
	}
	for _, o := range orders {
		w.Orders[o.ID] = o
	}
	for _, t := range totals {
		w.Totals[t.Customer] = t
	}
	for _, b := range boxes {
		w.Boxes[b.Customer] = b
	}
	for _, e := range events {
		w.Events = append(w.Events, e.ID)
	}
	var err error
	w.Stats, err = store.Stats(ctx)
	return w, err
}

// check holds what a run left behind against what was ordered.
func check(w *World, cfg config, letter outbox.Delivery) []stage.Finding {
	return []stage.Finding{
		checkOrders(w, cfg), checkMails(w), checkRevenue(w), checkOrder(w, letter), checkLetter(w, cfg, letter), checkLeft(w),
	}
}

// checkOrders: those that were accepted are there, each with its event; of those that were
// declined there is nothing.
func checkOrders(w *World, cfg config) stage.Finding {
	var f stage.Finding
	expected, declines := map[string]bool{}, 0
	for n := range cfg.orders {
		plan, declined := planOrder(cfg, n)
		o, there := w.Orders[plan.ID]
		plan.Nth = o.Nth
		switch {
		case declined && there:
			f.Wrongf("%s was declined, and is there", plan.ID)
		case declined:
			declines++
		case !there:
			f.Wrongf("%s is not there", plan.ID)
		case o != plan:
			f.Wrongf("%s is not what was ordered: %+v, not %+v", plan.ID, o, plan)
		default:
			expected[eventID(n)] = true
		}
	}
	for _, id := range w.Events {
		if !expected[id] {
			f.Wrongf("event %s belongs to no order", id)
		}
		delete(expected, id)
	}
	for id := range expected {
		f.Wrongf("event %s is not there", id)
	}
	f.Text = fmt.Sprintf("%d orders placed, each with its event; %d declined after they were written, and nothing is there of them, no event either", len(w.Orders), declines)
	return f
}

// checkMails: each order has one mail, by the id of its event.
func checkMails(w *World) stage.Finding {
	var f stage.Finding
	mails := map[string]int{}
	sent, repeats := 0, int64(0)
	for customer, box := range w.Boxes {
		repeats += box.Repeats
		for _, m := range box.Mails {
			sent++
			mails[m.Order]++
			if o := w.Orders[m.Order]; o.Customer != customer || m.ID != "placed-"+m.Order || o.Nth != m.Nth {
				f.Wrongf("mail %s of %s went to %s", m.ID, m.Order, customer)
			}
		}
	}
	for id := range w.Orders {
		if mails[id] != 1 {
			f.Wrongf("%s has %d mails", id, mails[id])
		}
	}
	f.Text = fmt.Sprintf("each order has its mail exactly once: %d, by event id, and %d repeats that were recognised", sent, repeats)
	return f
}

// checkRevenue: the projection says what the orders say.
func checkRevenue(w *World) stage.Finding {
	var f stage.Finding
	expected := map[string]Total{}
	sum := int64(0)
	for _, o := range w.Orders {
		t := expected[o.Customer]
		t.Orders++
		t.Cents += o.Cents
		expected[o.Customer] = t
		sum += o.Cents
	}
	for customer, t := range expected {
		if is := w.Totals[customer]; is.Orders != t.Orders || is.Cents != t.Cents {
			f.Wrongf("%s has %d orders of %d cents in the projection, not %d of %d", customer, is.Orders, is.Cents, t.Orders, t.Cents)
		}
	}
	for customer := range w.Totals {
		if _, there := expected[customer]; !there {
			f.Wrongf("%s has ordered nothing, and is in the projection", customer)
		}
	}
	f.Text = fmt.Sprintf("the projection is right to the cent: %d.%02d from %d customers", sum/100, sum%100, len(w.Totals))
	return f
}

// checkOrder: both handlers saw the orders of each customer in the order in which they
// were committed. The mail that failed let the later ones pass, when it was buried.
func checkOrder(w *World, letter outbox.Delivery) stage.Finding {
	var f stage.Finding
	for customer, t := range w.Totals {
		if len(t.OutOfOrder) > 0 || t.Last != t.Orders {
			f.Wrongf("revenue saw the orders of %s out of order: %v, %d the last of %d", customer, t.OutOfOrder, t.Last, t.Orders)
		}
	}
	for customer, box := range w.Boxes {
		mails := slices.DeleteFunc(slices.Clone(box.Mails), func(m Mail) bool { return m.ID == letter.Message.ID })
		if !slices.IsSortedFunc(mails, func(a, b Mail) int { return int(a.Nth - b.Nth) }) {
			f.Wrongf("the mails of %s came out of order: %v", customer, box.Mails)
		}
	}
	f.Text = fmt.Sprintf("the order of commits was kept for each of %d customers, by both handlers", len(w.Totals))
	return f
}

// checkLetter: the mail that failed was buried after its attempts, and came after all.
func checkLetter(w *World, cfg config, letter outbox.Delivery) stage.Finding {
	var f stage.Finding
	n := brokenOrder(cfg)
	if want := mailerID + ":" + eventID(n); letter.ID != want || letter.Attempt < mailTries || letter.LastError == "" {
		f.Wrongf("the dead letter was %q after %d attempts with %q, not %s", letter.ID, letter.Attempt, letter.LastError, want)
	}
	plan, _ := planOrder(cfg, n)
	if !slices.ContainsFunc(w.Boxes[plan.Customer].Mails, func(m Mail) bool { return m.ID == eventID(n) }) {
		f.Wrongf("its mail did not come")
	}
	f.Text = fmt.Sprintf("the dead letter %s was put back, and delivered", letter.ID)
	return f
}

// checkLeft: nothing is due, waits, runs or is dead.
func checkLeft(w *World) stage.Finding {
	var f stage.Finding
	want := outbox.Stats{Completed: int64(2 * len(w.Orders))}
	if w.Stats != want {
		f.Wrongf("%+v, not %+v", w.Stats, want)
	}
	f.Text = fmt.Sprintf("nothing left: %d deliveries, two of each event, all completed", w.Stats.Completed)
	return f
}
