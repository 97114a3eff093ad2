package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/examples/internal/stage"
	"github.com/execstore/mongostore/outbox"
)

const (
	tick      = 100 * time.Millisecond
	stallTime = 30 * time.Second // without a delivery, the run has failed
)

// shop runs the demo: it watches the processes, kills some, and puts the dead letter
// back.
type shop struct {
	cfg    config
	db     *mongo.Database
	store  *outbox.Store
	fleet  *stage.Fleet[Counts]
	screen *stage.Screen
	rng    *rand.Rand
	reaper *reaper

	kills    int
	requeued outbox.Delivery // the dead letter, as it was listed
	moved    time.Time       // when something was last delivered
	done     int64
	placed   int64
	waited   int64 // the most deliveries that waited behind another
}

// brokenOrder is the one whose mail fails, half way through; it is not declined.
func brokenOrder(cfg config) int {
	n := cfg.orders / 2
	for range 2 {
		if _, declined := planOrder(cfg, n); !declined {
			break
		}
		n--
	}
	return n
}

func openShop(ctx context.Context, cfg config, client *mongo.Client, out *stage.Screen) (*shop, error) {
	store, err := openStore(cfg, client)
	if err != nil {
		return nil, err
	}
	if err := store.Setup(ctx); err != nil {
		return nil, err
	}
	db := client.Database(cfg.database)
	// collections that transactions make at the same time conflict
	for _, name := range []string{"orders", "customers", "revenue", "mailboxes"} {
		if err := db.CreateCollection(ctx, name); err != nil {
			return nil, err
		}
	}
	_, err = db.Collection("orders").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "desk", Value: 1}, {Key: "_id", Value: 1}}})
	if err != nil {
		return nil, err
	}
	if _, err := db.Collection("broken").InsertOne(ctx, bson.D{{Key: "_id", Value: orderID(brokenOrder(cfg))}}); err != nil {
		return nil, err
	}
	return &shop{cfg: cfg, db: db, store: store, fleet: newFleet(cfg), screen: out, rng: rand.New(rand.NewPCG(cfg.seed, 0)), reaper: &reaper{admin: client.Database("admin")}}, nil
}

// run returns when all is delivered. The processes are gone then.
func (s *shop) run(ctx context.Context) error {
	began := time.Now()
	err := s.fleet.Start()
	if err == nil {
		err = s.watch(ctx, s.workedOff)
	}
	if err == nil {
		err = s.mend(ctx)
	}
	if err == nil {
		err = s.watch(ctx, s.nothingLeft)
	}
	s.fleet.Stop()
	if err != nil {
		s.screen.Line("  stopped after %d deliveries; the processes are gone", s.done)
		return err
	}
	s.screen.Line("  all %d deliveries are made in %.1f s; the processes are gone", s.done, time.Since(began).Seconds())
	return nil
}

// watch looks on, and kills, until the numbers say that something is reached.
func (s *shop) watch(ctx context.Context, reached func(outbox.Stats) bool) error {
	s.moved = time.Now()
	for {
		stats, err := s.store.Stats(ctx)
		if err != nil {
			return err
		}
		if s.placed, err = s.db.Collection("orders").CountDocuments(ctx, bson.D{}); err != nil {
			return err
		}
		if stats.Completed > s.done {
			s.done, s.moved = stats.Completed, time.Now()
		}
		s.waited = max(s.waited, stats.Waiting)
		s.screen.Progress("  %d/%d orders placed · %d delivered, %d due or running, %d waiting behind others, %d dead",
			s.placed, accepted(s.cfg), stats.Completed, stats.Pending+stats.Processing, stats.Waiting, stats.Dead)
		if reached(stats) {
			return nil
		}
		if time.Since(s.moved) > stallTime {
			return fmt.Errorf("nothing was delivered for %v: %d of %d orders placed, %+v", stallTime, s.placed, accepted(s.cfg), stats)
		}
		if err := s.killSome(); err != nil {
			return err
		}
		if err := s.reaper.reap(ctx); err != nil {
			return err
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// workedOff: everything was delivered, but for the mail that fails.
func (s *shop) workedOff(stats outbox.Stats) bool {
	return s.placed == int64(accepted(s.cfg)) && stats.Pending+stats.Waiting+stats.Processing == 0 && stats.Dead > 0
}

func (s *shop) nothingLeft(stats outbox.Stats) bool {
	return stats.Pending+stats.Waiting+stats.Processing+stats.Dead == 0
}

// accepted is how many orders are not declined.
func accepted(cfg config) (n int) {
	for i := range cfg.orders {
		if _, declined := planOrder(cfg, i); !declined {
			n++
		}
	}
	return n
}

// mend looks at the dead letter, does away with its cause and puts it back.
func (s *shop) mend(ctx context.Context) error {
	page, err := s.store.List(ctx, outbox.ListOptions{Status: "dead"})
	if err != nil {
		return err
	}
	for _, d := range page.Items {
		s.screen.Line("  dead letter %s after %d attempts: %s", d.ID, d.Attempt, d.LastError)
		if d.ID == mailerID+":"+eventID(brokenOrder(s.cfg)) {
			s.requeued = d
		}
	}
	if s.requeued.ID == "" {
		return fmt.Errorf("%d dead letters, none of the order that must fail", len(page.Items))
	}
	if _, err := s.db.Collection("broken").DeleteMany(ctx, bson.D{}); err != nil {
		return err
	}
	n, err := s.store.Requeue(ctx, s.requeued.ID)
	s.screen.Line("  its cause is mended, and %d put back", n)
	return err
}

// killSome kills a random process each time that another part of the work is done.
func (s *shop) killSome() error {
	all := int64(2 * accepted(s.cfg)) // two handlers
	for s.kills < s.cfg.kills && s.done >= int64(s.kills+1)*all/int64(s.cfg.kills+1) {
		slot := s.rng.IntN(s.cfg.workers)
		pid, err := s.fleet.Kill(slot)
		if err != nil {
			return err
		}
		s.kills++
		s.reaper.dead = append(s.reaper.dead, appName(s.cfg, pid))
		s.screen.Line("  kill %d of %d: process %d (pid %d) with SIGKILL after %d deliveries, and another in its place", s.kills, s.cfg.kills, slot, pid, s.done)
	}
	return nil
}

// wait lasts a tick.
func (s *shop) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.fleet.Broken():
		return err
	case <-time.After(tick):
		return nil
	}
}

// tell prints the statistics.
func (s *shop) tell(out io.Writer, w *World) {
	c := s.fleet.Counts()
	fmt.Fprintf(out, "  %d kills, %d of them in the middle of transactions; %d deliveries told of, %d failures tried again, %d dead letters, %d leases lost; at most %d waited behind others\n",
		s.kills, s.reaper.ended, c.Delivered, c.Retried, c.Buried, c.LostLeases, s.waited)
	fmt.Fprintf(out, "  the store: %d completed, %d pending, %d waiting, %d processing, %d dead\n",
		w.Stats.Completed, w.Stats.Pending, w.Stats.Waiting, w.Stats.Processing, w.Stats.Dead)
}
