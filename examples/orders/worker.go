package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execstore/mongostore"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
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

func (c *Counts) add(d Counts) {
	c.Deliveries += d.Deliveries
	c.Repeats += d.Repeats
	c.Reruns += d.Reruns
	c.Failures += d.Failures
}

const reportEvery = 200 * time.Millisecond

// workerProcess is the life of a worker: it works until the pipe on stdin closes,
// which it also does when the parent dies, and reports its Counts on stdout.
func workerProcess(cfg config) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // they reach all processes; the parent decides
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
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
	reporter.Go(func() { report(ctx, engine.Stats) })
	err = relay.Run(ctx)
	reporter.Wait()
	return err
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// report writes the counts, one JSON document a line, and once more at the end.
func report(ctx context.Context, s *Stats) {
	out := json.NewEncoder(os.Stdout)
	for ctx.Err() == nil {
		_ = out.Encode(s.counts()) // a parent that is gone closes stdin too
		pause(ctx, reportEvery)
	}
	_ = out.Encode(s.counts())
}
