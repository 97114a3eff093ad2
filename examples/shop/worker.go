package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/examples/internal/stage"
	"github.com/execstore/mongostore/outbox"
)

// Counts are what a process did, as it reports it. A killed one's last moments are not
// in them.
type Counts struct{ Delivered, Retried, Buried, LostLeases int64 }

// Plus adds another process's.
func (c Counts) Plus(d Counts) Counts {
	return Counts{c.Delivered + d.Delivered, c.Retried + d.Retried, c.Buried + d.Buried, c.LostLeases + d.LostLeases}
}

func newFleet(cfg config) *stage.Fleet[Counts] {
	return stage.NewFleet[Counts](cfg.workers, cfg.uri, cfg.args()...)
}

// tally counts what the bus tells.
type tally struct{ delivered, retried, buried, lost atomic.Int64 }

func (t *tally) observe(ev mongostore.RelayEvent) {
	switch ev.What {
	case "delivered":
		t.delivered.Add(1)
	case "retried":
		t.retried.Add(1)
	case "buried":
		t.buried.Add(1)
	case "lease_lost":
		t.lost.Add(1)
	}
}

func (t *tally) counts() Counts {
	return Counts{t.delivered.Load(), t.retried.Load(), t.buried.Load(), t.lost.Load()}
}

// openStore is the store of each process of a run.
func openStore(cfg config, client *mongo.Client) (*outbox.Store, error) {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	return outbox.New(client, outbox.Config{Database: cfg.database, Logger: logger})
}

// workerProcess is the life of a process: it takes its share of the orders and runs the
// handlers, until the pipe on stdin closes, which it also does when the parent dies. It
// reports its Counts on stdout.
func workerProcess(cfg config) error {
	ctx, cancel := stage.ByParent()
	defer cancel()
	client, err := connectAs(ctx, cfg, os.Getpid())
	if err != nil {
		return err
	}
	store, err := openStore(cfg, client)
	if err != nil {
		return err
	}
	var done tally
	db := client.Database(cfg.database)
	bus, err := newBus(store, db, done.observe)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	var deskErr error
	all.Go(func() { stage.Report(ctx, done.counts) })
	all.Go(func() {
		if deskErr = newDesk(cfg, cfg.worker, db, store, bus).open(ctx); deskErr != nil {
			cancel()
		}
	})
	err = bus.Run(ctx)
	all.Wait()
	if errors.Is(deskErr, context.Canceled) {
		deskErr = nil // told to stop
	}
	return errors.Join(err, deskErr)
}
