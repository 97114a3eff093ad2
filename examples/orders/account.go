package main

import "github.com/execstore/mongostore"

// The ways to pay. A forgetful payer answers the reminder, a gone one nothing.
const (
	prompt    = "prompt"
	forgetful = "forgetful"
	gone      = "gone"
)

// Account is where payments are applied: many orders charge it, from all workers at
// once, and the money is in the same document as the mark of the event that moved it.
type Account struct {
	mongostore.Header
	Balance int64             `json:"balance"` // cents
	Charges map[string]Charge `json:"charges"` // by order
}

// Charge is what an account knows of one order. Applied and Refunded are counts that
// trust each event to come once: a repeat that slips through shows in them, and in
// the balance.
type Charge struct {
	Amount   int64  `json:"amount"`
	Payer    string `json:"payer"`
	Applied  int    `json:"applied"`
	Refunded int    `json:"refunded"`
}

const nodeOpen = "Account.Open"

var accountTransitions = transitions[*Account]{
	"": {"open": (*Account).open},
	nodeOpen: {
		"charge": (*Account).charge,
		"remind": (*Account).remind,
		"void":   (*Account).void,
	},
}

// Handle implements Machine.
func (a *Account) Handle(s *Step) bool { return accountTransitions.apply(a, s) }

func (a *Account) open(s *Step) {
	a.Balance = s.Event.Amount
	a.Charges = map[string]Charge{}
	s.Go(nodeOpen)
}

func (a *Account) charge(s *Step) {
	c := a.Charges[s.Event.Order]
	c.Amount, c.Payer = s.Event.Amount, s.Event.Payer
	a.Charges[s.Event.Order] = c
	if c.Payer == prompt {
		a.pay(s)
	} else {
		s.note("nobody answers")
	}
}

func (a *Account) remind(s *Step) {
	if c := a.Charges[s.Event.Order]; c.Payer == forgetful && c.Applied == 0 {
		a.pay(s)
	}
}

// pay takes the money, tells the ledger and answers the order: one commit.
func (a *Account) pay(s *Step) {
	c := a.Charges[s.Event.Order]
	c.Applied++
	a.Balance -= c.Amount
	a.Charges[s.Event.Order] = c
	s.Post(Event{Name: payment, Order: s.Event.Order, Amount: c.Amount})
	s.Send(s.Event.Order, Event{Name: "paid", Order: s.Event.Order})
}

func (a *Account) void(s *Step) {
	c := a.Charges[s.Event.Order]
	if c.Applied == c.Refunded {
		return
	}
	c.Refunded++
	a.Balance += c.Amount
	a.Charges[s.Event.Order] = c
	s.Post(Event{Name: refund, Order: s.Event.Order, Amount: c.Amount})
}
