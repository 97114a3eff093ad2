package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/examples/internal/stage"
)

// Stats count what one worker did. A killed worker's last moments are not in them.
type Stats struct {
	Deliveries atomic.Int64 // entries done
	Repeats    atomic.Int64 // of these, done before: recognised and not applied again
	Reruns     atomic.Int64 // transitions run again after losing a race
	Failures   atomic.Int64 // deliveries that ended in an error and were left for later
	LostLeases atomic.Int64 // executions that another worker took over meanwhile
}

func (s *Stats) delivered(first bool) {
	s.Deliveries.Add(1)
	if !first {
		s.Repeats.Add(1)
	}
}

// Counts are Stats at one moment, as a worker reports them.
type Counts struct{ Deliveries, Repeats, Reruns, Failures int64 }

func (s *Stats) counts() Counts {
	return Counts{s.Deliveries.Load(), s.Repeats.Load(), s.Reruns.Load(), s.Failures.Load()}
}

// Plus adds another worker's.
func (c Counts) Plus(d Counts) Counts {
	return Counts{c.Deliveries + d.Deliveries, c.Repeats + d.Repeats, c.Reruns + d.Reruns, c.Failures + d.Failures}
}

func newFleet(cfg config) *stage.Fleet[Counts] {
	return stage.NewFleet[Counts](cfg.workers, cfg.uri, "-workers", strconv.Itoa(cfg.workers), "-database", cfg.database)
}

// workerProcess is the life of a worker: it works until the pipe on stdin closes,
// which it also does when the parent dies, and reports its Counts on stdout.
func workerProcess(cfg config) error {
	ctx, cancel := stage.ByParent()
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI(cfg.uri))
	if err != nil {
		return fmt.Errorf("-uri: %w", err)
	}
	store, err := mongostore.New(client, mongostore.Config{Database: cfg.database})
	if err != nil {
		return err
	}
	engine := &Engine{Store: store, Name: fmt.Sprintf("worker %d (pid %d)", cfg.worker, os.Getpid()), Stats: new(Stats)}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("worker", cfg.worker)
	relay, err := newRelay(engine, newLedger(client.Database(cfg.database)), log)
	if err != nil {
		return err
	}
	var reporter sync.WaitGroup
	reporter.Go(func() { stage.Report(ctx, engine.Stats.counts) })
	err = relay.Run(ctx)
	reporter.Wait()
	return err
}
