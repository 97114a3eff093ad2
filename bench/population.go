package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// population is a collection of n executions: 100 of them with a pending event,
// 100 with a pending spawn, n/10 with an armed timer of which 100 are due, and one
// in 1,000 in a status of its own.
type population struct {
	n       int
	first   int // size of the smallest
	label   string
	t       *target
	db      string
	store   *mongostore.Store
	seed    *seedStore
	entries []mongo.WriteModel       // put the pending events back
	outbox  []mongostore.OutboxEntry // the pending events
	deep    string                   // cursor of the page at 90 %
	offset  int64                    // the same for the seed

	watched *mongostore.Store // another handle, whose commands are recorded
	sent    *mongotest.Commands
}

const (
	owing      = 100 // executions with an event, with a spawn, with a due timer
	rareStatus = "PARKED"
	pageSize   = 50
)

// past and sweepTime bracket the due timers.
var (
	past      = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	sweepTime = past.AddDate(1, 0, 0)
)

func populate(ctx context.Context, t *target, n int, label string) (*population, error) {
	start := time.Now()
	p := &population{n: n, label: label, t: t, db: t.database("sweep_" + label), seed: &seedStore{natural: true}}
	p.seed.exes = t.raw(p.db, "executions")
	coll := fastCollection(t, p.db)
	var err error
	if p.store, err = t.store(ctx, p.db, mongostore.Config{}); err != nil { // indexes first: half the time of indexes last
		return nil, err
	}
	shapes, err := p.shapes(ctx, coll)
	if err != nil {
		return nil, err
	}
	if err := insertAll(ctx, coll, n, shapes.document); err != nil {
		return nil, err
	}
	inserted := time.Since(start)
	if err := p.look(ctx); err != nil {
		return nil, err
	}
	fmt.Printf("# %d executions: inserted in %s, walked in %s\n", n,
		inserted.Round(time.Millisecond), (time.Since(start) - inserted).Round(time.Millisecond))
	return p, nil
}

func (p *population) drop() { p.t.drop(p.db) }

// shapes are the moulds of a population.
type shapes struct {
	n                                      int
	plain, rare, outbox, spawn, due, armed *mould
}

func (p *population) shapes(ctx context.Context, coll *mongo.Collection) (_ *shapes, err error) {
	full := fullChanges()
	timer := func(at time.Time) mongostore.Changes {
		return mongostore.Changes{Timers: []mongostore.TimerOp{{Path: timerPath, FireAt: at}}}
	}
	s := &shapes{n: p.n}
	for _, m := range []struct {
		to     **mould
		status string
		ch     mongostore.Changes
	}{
		{&s.plain, "RUNNING", mongostore.Changes{}}, {&s.rare, rareStatus, mongostore.Changes{}},
		{&s.outbox, "RUNNING", mongostore.Changes{Emits: full.Emits}}, {&s.spawn, "RUNNING", mongostore.Changes{Spawns: full.Spawns}},
		{&s.due, "RUNNING", timer(past)}, {&s.armed, "RUNNING", timer(fireAt)},
	} {
		o := newOrder(newID(), 0)
		o.Status = m.status
		if *m.to, err = mouldOf(ctx, coll, p.store, o, m.ch); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// document makes the k-th. The kinds are spread evenly and never meet, because n
// is a multiple of 1,000.
func (s *shapes) document(k int) (bson.Raw, error) {
	id, apart := idOf(k), s.n/owing
	number := int64(k/apart + 1)
	switch {
	case k%apart == 0:
		return withNumbers(s.outbox.pour(id), number)
	case k%apart == 1:
		return withNumbers(s.spawn.pour(id), number)
	case k%apart == 2:
		return s.due.pourAt(id, float64(past.Unix()+number)), nil
	case k%10 == 3:
		return s.armed.pourAt(id, float64(fireAt.Unix())+float64(k)), nil
	case k%1000 == 5:
		return s.rare.pour(id), nil
	default:
		return s.plain.pour(id), nil
	}
}

// look remembers what the questions need: the pending events, and the cursor at
// 90 % by walking there.
func (p *population) look(ctx context.Context) (err error) {
	if p.outbox, err = p.store.PendingOutbox(ctx, owing); err != nil {
		return err
	}
	if len(p.outbox) != owing {
		return fmt.Errorf("%d pending events, not %d", len(p.outbox), owing)
	}
	for _, e := range p.outbox {
		var doc struct{ Outbox bson.RawValue }
		if err := p.seed.exes.FindOne(ctx, bson.D{{Key: "_id", Value: e.ExecutionID}}).Decode(&doc); err != nil {
			return err
		}
		p.entries = append(p.entries, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: e.ExecutionID}}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "outbox", Value: doc.Outbox}}}}))
	}
	p.offset = int64(p.n / 10 * 9)
	for walked := 0; walked < int(p.offset); {
		page, err := p.store.List(ctx, mongostore.ListOptions{Limit: p.n / 100, Cursor: p.deep})
		if err != nil {
			return err
		}
		p.deep = page.Next
		walked += len(page.Items)
	}
	return nil
}

// refill puts the pending events back that were acked.
func (p *population) refill(ctx context.Context) error {
	_, err := p.seed.exes.BulkWrite(ctx, p.entries, options.BulkWrite().SetOrdered(false))
	return err
}

// watch opens the handle whose commands are recorded.
func (p *population) watch() (done func(), err error) {
	p.sent = &mongotest.Commands{}
	other, err := newTarget(p.t.topology, p.t.uri, options.Client().SetMonitor(p.sent.Monitor()))
	if err != nil {
		return nil, err
	}
	p.watched, err = mongostore.New(other.client, mongostore.Config{Database: p.db, WriteConcern: p.t.concern})
	return other.close, err
}
