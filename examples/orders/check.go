package main

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/examples/internal/stage"
)

// check holds what a run left behind against what was ordered.
func check(w *World, cfg config) []stage.Finding {
	return []stage.Finding{
		checkOrders(w, cfg),
		checkPayments(w),
		checkLedger(w),
		checkChildren(w),
		checkPending(w),
		checkSteps(w),
	}
}

// checkOrders: all are there, as ordered, and finished; those that nobody answers
// for are cancelled. On a slow machine an answer can be too late for others too.
func checkOrders(w *World, cfg config) stage.Finding {
	var f stage.Finding
	shipped, unanswered, late, reminded := 0, 0, 0, 0
	for n := range cfg.orders {
		id := orderID(n)
		seen, ok := w.Orders[id]
		if !ok {
			f.Wrongf("%s is not there", id)
			continue
		}
		o := seen.Machine
		if plan := planOrder(cfg.seed, n, cfg.orders, cfg.payWait); !reflect.DeepEqual(o.Plan, plan) {
			f.Wrongf("%s is not what was ordered: %+v, not %+v", id, o.Plan, plan)
		}
		reminded += o.Reminders
		switch {
		case o.Status == done && o.Plan.Payer != gone:
			shipped++
		case o.Status == cancelled && o.Plan.Payer == gone:
			unanswered++
		case o.Status == cancelled:
			late++
		default:
			f.Wrongf("%s, payer %s, is %s at %q", id, o.Plan.Payer, o.Status, o.ActivePath)
		}
	}
	if extra := len(w.Orders) - cfg.orders; extra > 0 {
		f.Wrongf("%d orders that nobody placed", extra)
	}
	f.Text = fmt.Sprintf("%d orders finished: %d shipped, %d cancelled because nobody paid, %d because the answer came late; %d reminders on the way",
		len(w.Orders), shipped, unanswered, late, reminded)
	return f
}

// checkPayments: where the payment is part of an execution's own state. The counts
// and the balance trust each event to come once.
func checkPayments(w *World) stage.Finding {
	var f stage.Finding
	paid, returned, right := 0, 0, 0
	for id, seen := range w.Orders {
		o := seen.Machine
		account, ok := w.Accounts[o.Plan.Account]
		if !ok {
			f.Wrongf("%s is not there", o.Plan.Account)
			continue
		}
		c, charged := account.Machine.Charges[id]
		switch {
		case !charged || c.Amount != o.Plan.Amount:
			f.Wrongf("%s: %s knows of %s, not of %s", id, o.Plan.Account, money(c.Amount), money(o.Plan.Amount))
		case o.Status == done && c.Applied == 1 && c.Refunded == 0:
			paid++
		case o.Status != done && c.Applied == c.Refunded && c.Applied <= 1:
			returned += c.Applied
		default:
			f.Wrongf("%s is %s, its payment was applied %d times and given back %d times", id, o.Status, c.Applied, c.Refunded)
		}
	}
	for id, seen := range w.Accounts {
		a := seen.Machine
		expected := int64(openingBalance)
		for order := range a.Charges {
			if o, ok := w.Orders[order]; ok && o.Machine.Status == done {
				expected -= o.Machine.Plan.Amount
			}
		}
		if a.Balance == expected {
			right++
		} else {
			f.Wrongf("%s has %s, not %s", id, money(a.Balance), money(expected))
		}
	}
	f.Text = fmt.Sprintf("each payment applied exactly once: %d taken, %d taken and given back, %d balances right to the cent", paid, returned, right)
	return f
}

// checkLedger: what came of the same payments outside. Delivery there is at least
// once; that each is booked once is the work of the entry's id.
func checkLedger(w *World) stage.Finding {
	type key struct{ kind, account, order string }
	var f stage.Finding
	open := map[key]int{} // postings that the accounts' own state asks for
	for id, seen := range w.Accounts {
		for order, c := range seen.Machine.Charges {
			open[key{payment, id, order}] += c.Applied
			open[key{refund, id, order}] += c.Refunded
		}
	}
	again := 0
	for _, p := range w.Ledger {
		k := key{p.Kind, p.Account, p.Order}
		open[k]--
		if o, ok := w.Orders[p.Order]; !ok || o.Machine.Plan.Amount != p.Amount {
			f.Wrongf("posting %s: %s of %s for %s is not the order's amount", p.ID, p.Kind, money(p.Amount), p.Order)
		}
		again += p.Attempts - 1
	}
	for k, n := range open {
		if n != 0 {
			f.Wrongf("%s for %s by %s: %+d postings missing or too many", k.kind, k.order, k.account, -n)
		}
	}
	f.Text = fmt.Sprintf("each posting in the ledger outside exactly once: %d, by entry id, out of %d attempts", len(w.Ledger), len(w.Ledger)+again)
	return f
}

// checkChildren: an order that was paid has its two children, each started and
// finished once, and joined each once; no other child exists.
func checkChildren(w *World) stage.Finding {
	var f stage.Finding
	expected := map[string]bool{}
	for id, seen := range w.Orders {
		o := seen.Machine
		if o.Status != done {
			continue
		}
		var regions []string
		for _, r := range o.Plan.Regions {
			regions = append(regions, r.Name)
			expected[parcelID(id, r.Name)] = true
		}
		joined := slices.Sorted(slices.Values(o.Packed))
		if !slices.Equal(joined, regions) {
			f.Wrongf("%s joined %q, not %q", id, joined, regions)
		}
	}
	for id := range expected {
		seen, ok := w.Parcels[id]
		if !ok {
			f.Wrongf("%s is not there", id)
			continue
		}
		p := seen.Machine
		if parcelID(p.ParentID, p.Region) != id {
			f.Wrongf("%s has parent %q", id, p.ParentID)
		}
		if p.Status != done || p.Starts != 1 || p.Version != 2 {
			f.Wrongf("%s is %s, was started %d times and committed %d times", id, p.Status, p.Starts, p.Version)
		}
	}
	for id := range w.Parcels {
		if !expected[id] {
			f.Wrongf("%s belongs to no paid order", id)
		}
	}
	f.Text = fmt.Sprintf("each child created exactly once: %d, started once, finished once, joined once", len(w.Parcels))
	return f
}

func checkPending(w *World) stage.Finding {
	var f stage.Finding
	documents := 0
	w.each(func(h *mongostore.Header, _ []TraceStep, p Pending) {
		documents++
		if p != (Pending{}) {
			f.Wrongf("%s owes %+v", h.ID, p)
		}
	})
	if w.Swept != (Pending{}) {
		f.Wrongf("the sweeps find %+v", w.Swept)
	}
	f.Text = fmt.Sprintf("nothing pending: no event, spawn or timer in %d documents, and none by the sweeps", documents)
	return f
}

// traceKept is the store's default for Config.TraceMax.
const traceKept = 200

// checkSteps: every commit left one step, numbered without a gap, no event was
// applied twice to one execution, and there are as many commits as the work needs.
func checkSteps(w *World) stage.Finding {
	var f stage.Finding
	commits, unneeded := int64(0), 0
	w.each(func(h *mongostore.Header, trace []TraceStep, _ Pending) {
		commits += h.Version
		if int64(len(trace)) != min(h.Version, traceKept) {
			f.Wrongf("%s: %d commits, %d steps", h.ID, h.Version, len(trace))
		}
		events := map[string]bool{}
		for i, step := range trace {
			if want := h.Version - int64(len(trace)-i); step.Index != want {
				f.Wrongf("%s: step %d has number %d", h.ID, want, step.Index)
			}
			if events[step.EventID] {
				f.Wrongf("%s applied %s twice", h.ID, step.EventID)
			}
			events[step.EventID] = true
			if slices.Contains(step.Did, noTransition) {
				unneeded++
			}
		}
	})
	if needed := neededCommits(w) + int64(unneeded); commits != needed {
		f.Wrongf("%d commits, where the orders need %d", commits, needed)
	}
	f.Text = fmt.Sprintf("%d commits, as many as the orders need, one step in a timeline each, no event applied twice; %d events came too late to matter", commits, unneeded)
	return f
}

// neededCommits counts what the orders as they ended must have taken.
func neededCommits(w *World) int64 {
	n := len(w.Accounts) // opened
	for _, seen := range w.Orders {
		o := seen.Machine
		n += 2 + 2*o.Reminders // start and charge, each reminder here and there
		if o.Status == done {
			n += 2 + 3*len(o.Plan.Regions) // paid, arrived; child started, done, joined
		} else {
			n += 2 // given up, voided
		}
	}
	return int64(n)
}
