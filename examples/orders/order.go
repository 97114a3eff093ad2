package main

import "github.com/execstore/mongostore"

// Order is the workflow: pay, pack in two regions at once, ship.
//
//	start → Order.Pay ── paid ──→ Order.Pack ── packed, packed ──→ Order.Ship ── arrived ──→ DONE
//	            └ no answer: remind; none again: void, CANCELLED
type Order struct {
	mongostore.Header
	Plan      Plan `json:"plan"`
	Reminders int  `json:"reminders"`
	// Packed are the regions that have reported, in their order. No set: if a report
	// counted twice, the order would ship half packed, and check.go would see it.
	Packed []string `json:"packed"`
}

const (
	nodePay  = "Order.Pay"
	nodePack = "Order.Pack"
	nodeShip = "Order.Ship"

	waitPayment = "Order.Pay.Wait"
	waitTransit = "Order.Ship.Transit"
)

var orderTransitions = transitions[*Order]{
	"":       {"start": (*Order).start},
	nodePay:  {"paid": (*Order).paid, timeout(waitPayment): (*Order).unanswered},
	nodePack: {"packed": (*Order).packed},
	nodeShip: {timeout(waitTransit): (*Order).arrived},
}

// Handle implements Machine.
func (o *Order) Handle(s *Step) bool { return orderTransitions.apply(o, s) }

func (o *Order) start(s *Step) {
	o.Plan = *s.Event.Plan
	s.Go(nodePay)
	s.Send(o.Plan.Account, Event{Name: "charge", Order: o.ID, Amount: o.Plan.Amount, Payer: o.Plan.Payer})
	s.Wake(waitPayment, o.Plan.PayWait)
}

// paid forks: one child a region, both at work at once.
func (o *Order) paid(s *Step) {
	s.Forget(waitPayment)
	s.Go(nodePack)
	for _, r := range o.Plan.Regions {
		s.Spawn(parcelID(o.ID, r.Name), nodePack+"."+r.Name, Event{Name: "start", Order: o.ID, Region: r.Name, Takes: r.Takes})
	}
}

// packed joins: the order goes on when all regions have reported.
func (o *Order) packed(s *Step) {
	o.Packed = append(o.Packed, s.Event.Region)
	if len(o.Packed) < len(o.Plan.Regions) {
		return
	}
	s.Go(nodeShip)
	s.Wake(waitTransit, o.Plan.Transit)
}

// unanswered reminds once, then gives up. The payment may still be on its way, or
// the answer: void gives back what was taken, and a late answer finds no transition.
func (o *Order) unanswered(s *Step) {
	if o.Reminders == 0 {
		o.Reminders++
		s.Send(o.Plan.Account, Event{Name: "remind", Order: o.ID})
		s.Wake(waitPayment, o.Plan.PayWait)
		return
	}
	s.Send(o.Plan.Account, Event{Name: "void", Order: o.ID})
	s.Finish(cancelled, "unpaid")
}

func (o *Order) arrived(s *Step) { s.Finish(done, "shipped") }
