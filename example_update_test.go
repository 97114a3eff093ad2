package mongostore_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/mongostoretest"
)

// Update is load, apply, commit, and all that again when another writer was first.
// With an EventID an event that was handled before is skipped.
func ExampleStore_Update() {
	ctx := context.Background()
	store, done := exampleStore(mongostore.Config{})
	defer done()

	add := func(eventID string, cents int) (skipped bool) {
		var order Order // each goroutine has a value of its own
		opts := mongostore.UpdateOptions{EventID: eventID, Create: true}
		res, err := store.Update(ctx, "order-1", &order, opts, func(ch *mongostore.Changes) error {
			order.Status = "OPEN" // may run again: set everything from what order holds now
			order.Total += cents
			return nil
		})
		check(err)
		return res.Deduplicated
	}

	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() { add(fmt.Sprint("evt-", i), 100) })
	}
	wg.Wait()
	fmt.Println("delivered again, skipped:", add("evt-3", 100))

	var order Order
	check(store.Load(ctx, "order-1", &order))
	fmt.Println("total", order.Total, "version", order.Version)
	// Output:
	// delivered again, skipped: true
	// total 1000 version 10
}

// Agent is an execution that one worker at a time may work on.
type Agent struct {
	mongostore.Header
	Owner string    `json:"owner"`
	Until time.Time `json:"until"` // after that anybody may take over
	Calls int       `json:"calls"`
}

// Exclusive work on one execution needs no lock: commit who owns it, and until
// when, before the work begins. The version decides between two who try.
func Example_exclusiveWork() {
	ctx := context.Background()
	clock := &mongostoretest.Clock{}
	store, done := exampleStore(mongostore.Config{Clock: clock})
	defer done()

	take := func(worker string) (mine bool) {
		var agent Agent
		_, err := store.Update(ctx, "agent-1", &agent, mongostore.UpdateOptions{Create: true}, func(*mongostore.Changes) error {
			if mine = !clock.Now().Before(agent.Until); mine {
				agent.Owner, agent.Until = worker, clock.Now().Add(time.Minute)
			}
			return nil
		})
		check(err)
		return mine
	}

	fmt.Println("anna:", take("anna"))
	fmt.Println("bert:", take("bert"))
	clock.Advance(time.Minute) // anna has died meanwhile
	fmt.Println("bert:", take("bert"))
	// Output:
	// anna: true
	// bert: false
	// bert: true
}
