package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// handle applies ev to m as the engine does, without a store.
func handle(m Machine, ev Event) (ch mongostore.Changes, handled bool) {
	s := &Step{Event: ev, Now: noon, header: m.ExecutionHeader(), changes: &ch}
	return ch, m.Handle(s)
}

// expect applies ev, which m must have a transition for.
func expect(t *testing.T, m Machine, ev Event) mongostore.Changes {
	t.Helper()
	ch, handled := handle(m, ev)
	require.True(t, handled, "no transition for %q at %q", ev.Name, m.ExecutionHeader().ActivePath)
	return ch
}

func somePlan(payer string) *Plan {
	return &Plan{
		Account: "account:01", Amount: 250, Payer: payer, PayWait: time.Second,
		Regions: []Region{{"North", time.Second}, {"South", 2 * time.Second}}, Transit: time.Minute,
	}
}

func startedOrder(t *testing.T) *Order {
	t.Helper()
	o := &Order{Header: mongostore.Header{ID: "order:1"}}
	expect(t, o, Event{Name: "start", Plan: somePlan(prompt)})
	return o
}

func TestOrderIsPaidPackedAndShipped(t *testing.T) {
	t.Parallel()
	o := &Order{Header: mongostore.Header{ID: "order:1"}}

	ch := expect(t, o, Event{Name: "start", Plan: somePlan(prompt)})
	require.Equal(t, []mongostore.Emit{{TargetID: "account:01", Event: Event{Name: "charge", Order: "order:1", From: "order:1", Amount: 250, Payer: prompt}}}, ch.Emits)
	require.Equal(t, []mongostore.TimerOp{{Path: waitPayment, FireAt: noon.Add(time.Second)}}, ch.Timers)

	ch = expect(t, o, Event{Name: "paid"})
	require.Equal(t, []mongostore.TimerOp{{Path: waitPayment, Cancel: true}}, ch.Timers)
	require.Equal(t, []mongostore.Spawn{
		{ChildID: "parcel:order:1:North", RootPath: "Order.Pack.North", Input: Event{Name: "start", Order: "order:1", Region: "North", Takes: time.Second}},
		{ChildID: "parcel:order:1:South", RootPath: "Order.Pack.South", Input: Event{Name: "start", Order: "order:1", Region: "South", Takes: 2 * time.Second}},
	}, ch.Spawns)

	expect(t, o, Event{Name: "packed", Region: "South"})
	require.Equal(t, nodePack, o.ActivePath, "it waits for the other region")
	ch = expect(t, o, Event{Name: "packed", Region: "North"})
	require.Equal(t, nodeShip, o.ActivePath)
	require.Equal(t, []mongostore.TimerOp{{Path: waitTransit, FireAt: noon.Add(time.Minute)}}, ch.Timers)

	expect(t, o, Event{Name: timeout(waitTransit)})
	require.Equal(t, []string{done, "shipped", ""}, []string{o.Status, o.Outcome, o.ActivePath})
}

func TestOrderRemindsOnceThenGivesUp(t *testing.T) {
	t.Parallel()
	o := startedOrder(t)

	ch := expect(t, o, Event{Name: timeout(waitPayment)})
	require.Equal(t, "remind", ch.Emits[0].Event.(Event).Name)
	require.Equal(t, waitPayment, ch.Timers[0].Path)
	require.Equal(t, active, o.Status)

	ch = expect(t, o, Event{Name: timeout(waitPayment)})
	require.Equal(t, "void", ch.Emits[0].Event.(Event).Name)
	require.Empty(t, ch.Timers)
	require.Equal(t, []string{cancelled, "unpaid"}, []string{o.Status, o.Outcome})

	_, handled := handle(o, Event{Name: "paid"})
	require.False(t, handled, "an answer after the end changes nothing: void gives the money back")
}

func TestOrderIgnoresATimerThatFiredWhileItWasCancelled(t *testing.T) {
	t.Parallel()
	o := startedOrder(t)
	expect(t, o, Event{Name: "paid"})
	_, handled := handle(o, Event{Name: timeout(waitPayment)})
	require.False(t, handled)
	require.Equal(t, nodePack, o.ActivePath)
}

func openAccount(t *testing.T) *Account {
	t.Helper()
	a := &Account{Header: mongostore.Header{ID: "account:01"}}
	expect(t, a, Event{Name: "open", Amount: 1000})
	return a
}

func TestAccountPaysAtOnce(t *testing.T) {
	t.Parallel()
	a := openAccount(t)
	ch := expect(t, a, Event{Name: "charge", Order: "order:1", Amount: 250, Payer: prompt})
	require.EqualValues(t, 750, a.Balance)
	require.Equal(t, []mongostore.Emit{
		{Event: Event{Name: payment, Order: "order:1", From: "account:01", Amount: 250}},
		{TargetID: "order:1", Event: Event{Name: "paid", Order: "order:1", From: "account:01"}},
	}, ch.Emits)
	require.Empty(t, expect(t, a, Event{Name: "remind", Order: "order:1"}).Emits, "it has answered already")
}

func TestAccountPaysWhenReminded(t *testing.T) {
	t.Parallel()
	a := openAccount(t)
	require.Empty(t, expect(t, a, Event{Name: "charge", Order: "order:1", Amount: 250, Payer: forgetful}).Emits)
	require.Len(t, expect(t, a, Event{Name: "remind", Order: "order:1"}).Emits, 2)
	require.Equal(t, Charge{Amount: 250, Payer: forgetful, Applied: 1}, a.Charges["order:1"])
}

func TestAccountGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	a := openAccount(t)
	expect(t, a, Event{Name: "charge", Order: "order:1", Amount: 250, Payer: prompt})
	expect(t, a, Event{Name: "charge", Order: "order:2", Amount: 100, Payer: gone})

	ch := expect(t, a, Event{Name: "void", Order: "order:1"})
	require.Equal(t, []mongostore.Emit{{Event: Event{Name: refund, Order: "order:1", From: "account:01", Amount: 250}}}, ch.Emits)
	require.Empty(t, expect(t, a, Event{Name: "void", Order: "order:2"}).Emits, "nothing was taken")
	require.EqualValues(t, 1000, a.Balance)
}

// The machines do not guard against repeats themselves, or the checks of the demo
// could not see whether the engine does.
func TestRepeatedEventShowsInTheCounts(t *testing.T) {
	t.Parallel()
	a := openAccount(t)
	for range 2 {
		expect(t, a, Event{Name: "charge", Order: "order:1", Amount: 250, Payer: prompt})
	}
	require.Equal(t, 2, a.Charges["order:1"].Applied)
	require.EqualValues(t, 500, a.Balance)
}

func TestParcelPacksAndReports(t *testing.T) {
	t.Parallel()
	p := &Parcel{Header: mongostore.Header{ID: "parcel:order:1:North", ParentID: "order:1"}}
	ch := expect(t, p, Event{Name: "start", Region: "North", Takes: time.Second})
	require.Equal(t, []mongostore.TimerOp{{Path: packTime, FireAt: noon.Add(time.Second)}}, ch.Timers)
	ch = expect(t, p, Event{Name: timeout(packTime)})
	require.Equal(t, []mongostore.Emit{{TargetID: "order:1", Event: Event{Name: "packed", Order: "order:1", From: p.ID, Region: "North"}}}, ch.Emits)
	require.Equal(t, done, p.Status)
}

func TestNewMachineRefusesAnUnknownKind(t *testing.T) {
	t.Parallel()
	_, err := newMachine("invoice:1")
	require.ErrorContains(t, err, `no machine for execution "invoice:1"`)
}

func TestPlanComesFromTheSeed(t *testing.T) {
	t.Parallel()
	require.Equal(t, planOrder(7, 3, 100, time.Second), planOrder(7, 3, 100, time.Second))
	require.NotEqual(t, planOrder(7, 3, 100, time.Second), planOrder(8, 3, 100, time.Second))
	payers := map[string]int{}
	for n := range 100 {
		payers[planOrder(7, n, 100, time.Second).Payer]++
	}
	require.Equal(t, map[string]int{prompt: 92, forgetful: 5, gone: 3}, payers)
}
