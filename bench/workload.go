package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/execstore/mongostore"
)

// What all sides write: an execution of about 1 KB of JSON, and for a full commit
// an event, a spawn, a timer, a trace step and the id of the event handled.

// order is an engine's own type.
type order struct {
	mongostore.Header
	Customer string `json:"customer"`
	Total    int    `json:"total"`
	Lines    []line `json:"lines"`
	Notes    string `json:"notes"`
}

type line struct {
	SKU      string `json:"sku"`
	Name     string `json:"name"`
	Quantity int    `json:"quantity"`
	Cents    int    `json:"cents"`
}

// newOrder is an order of about 1 KB, and with text of as many bytes more.
func newOrder(id string, text int) *order {
	o := &order{
		Header:   mongostore.Header{ID: id, DefinitionID: "orders.v1", Status: "RUNNING", ActivePath: "Fulfil.Pay"},
		Customer: "customer-4711", Total: 12900,
		Notes: prose(300 + text),
	}
	for i := range 6 {
		o.Lines = append(o.Lines, line{SKU: fmt.Sprintf("SKU-%04d", i), Name: "a thing that somebody wanted", Quantity: i + 1, Cents: 1995})
	}
	return o
}

// prose is text as a person or a model writes it.
func prose(size int) string {
	const sentence = "The parcel left the warehouse in the morning; the customer was told \"tomorrow\" & agreed. "
	return strings.Repeat(sentence, size/len(sentence)+1)[:size]
}

func encoded(o *order) string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // plain fields always encode
	}
	return string(text)
}

// newID is 32 hex digits, as harel's ids.
func newID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

func newIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = newID()
	}
	return ids
}

// eventIDs hands out ids that were made off the clock: an engine has the id of the
// event that it handles.
type eventIDs struct {
	ids  []string
	next atomic.Int64
}

func (e *eventIDs) refill(n int) {
	e.ids = newIDs(n)
	e.next.Store(0)
}

func (e *eventIDs) take() string { return e.ids[e.next.Add(1)-1] }

type event struct {
	ID   string    `json:"id"`
	Kind string    `json:"kind"`
	Data eventData `json:"data"`
}

type eventData struct {
	Order  string `json:"order"`
	Amount int    `json:"amount"`
	Text   string `json:"text"`
}

type childInput struct {
	Order   string `bson:"order"`
	Carrier string `bson:"carrier"`
	Weight  int    `bson:"weight"`
	Address string `bson:"address"`
}

type step struct {
	EventKind string   `bson:"event_kind"`
	FromPath  string   `bson:"from_path"`
	ToPath    string   `bson:"to_path"`
	Actions   []string `bson:"actions"`
	Text      string   `bson:"text"`
	Timestamp float64  `bson:"timestamp"`
}

const timerPath = "Fulfil.Pay"

// fireAt is far enough off that no timer of a commit is due.
var fireAt = time.Date(2100, 1, 2, 3, 4, 5, 0, time.UTC)

func anEvent() event {
	return event{ID: newID(), Kind: "PaymentRequested", Data: eventData{Order: "order-1", Amount: 12900, Text: prose(40)}}
}

func aChildInput() childInput {
	return childInput{Order: "order-1", Carrier: "post", Weight: 1200, Address: prose(40)}
}

func aStep() step {
	return step{EventKind: "Paid", FromPath: "Fulfil.Pay", ToPath: "Fulfil.Ship", Actions: []string{"app.reserve", "app.notify"},
		Text: prose(220), Timestamp: 1796053379.0389447}
}

// fullChanges is what a full commit writes beside the snapshot, less the event id.
func fullChanges() mongostore.Changes {
	return mongostore.Changes{
		Emits:  []mongostore.Emit{{TargetID: "billing-7", Event: anEvent()}},
		Spawns: []mongostore.Spawn{{ChildID: newID(), RootPath: "Fulfil.Ship", Input: aChildInput()}},
		Timers: []mongostore.TimerOp{{Path: timerPath, FireAt: fireAt}},
		Trace:  aStep(),
	}
}
