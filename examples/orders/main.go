// Orders is a small workflow engine on mongostore, and the proof that it loses
// nothing: a shop takes orders, worker processes carry them through payment, packing
// in two regions at once and shipping, and are killed with SIGKILL on the way.
//
// Read machine.go (what a machine is), order.go, account.go and parcel.go (the three
// machines), engine.go (an event becomes one commit) and relay.go (the work that
// executions owe) for what to take along; the rest runs and checks the demo.
//
//	go run ./examples/orders -uri mongodb://localhost:27017
//
// or `make demo`, which finds or fetches a server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/examples/internal/stage"
)

type config struct {
	uri, database          string
	orders, workers, kills int
	seed                   uint64
	payWait                time.Duration
	keep                   bool
	worker                 int // -1: not a worker
}

func main() {
	cfg, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(2)
	}
	if cfg.worker >= 0 {
		stage.Exit("orders", workerProcess(cfg))
	}
	stage.Exit("orders", stage.Run(func(ctx context.Context, out *stage.Screen) error { return demo(ctx, cfg, out) }))
}

func parse(args []string) (config, error) {
	cfg := config{worker: -1}
	flags := flag.NewFlagSet("orders", flag.ExitOnError)
	flags.StringVar(&cfg.uri, "uri", os.Getenv("MONGOSTORE_TEST_URI"), "the MongoDB `server`; default: MONGOSTORE_TEST_URI")
	flags.StringVar(&cfg.database, "database", "", "the database `name`; default: a new one, dropped at the end")
	flags.IntVar(&cfg.orders, "orders", 1000, "how many orders")
	flags.IntVar(&cfg.workers, "workers", 4, "how many worker processes")
	flags.IntVar(&cfg.kills, "kills", 16, "how many times one of them is killed")
	flags.Uint64Var(&cfg.seed, "seed", 0, "of the orders and the choice of whom to kill; default: random")
	flags.DurationVar(&cfg.payWait, "pay-wait", 2*time.Second, "how long an order waits for its payment before it reminds, and again before it gives up")
	flags.BoolVar(&cfg.keep, "keep", false, "keep the database")
	flags.IntVar(&cfg.worker, "worker", -1, "be this worker (the demo starts its workers so)")
	_ = flags.Parse(args)
	if cfg.worker >= 0 {
		cfg.uri = stage.URI()
	}
	if cfg.seed == 0 {
		cfg.seed = uint64(rand.Uint32()) + 1
	}
	if cfg.database == "" {
		cfg.database = fmt.Sprintf("orders_demo_%06x", rand.Uint32()>>8)
	} else {
		cfg.keep = true
	}
	switch {
	case cfg.uri == "":
		return cfg, errors.New("which server? Give -uri, set MONGOSTORE_TEST_URI, or run make demo, which finds or fetches one")
	case cfg.orders < 1 || cfg.workers < 1 || cfg.kills < 0:
		return cfg, errors.New("-orders and -workers want at least 1, -kills at least 0")
	}
	return cfg, nil
}

// demo runs the orders, checks what they left behind and prints it.
func demo(ctx context.Context, cfg config, out *stage.Screen) (err error) {
	client, err := stage.Connect(ctx, cfg.uri)
	if err != nil {
		return err
	}
	db := client.Database(cfg.database)
	defer func() { stage.Leave(ctx, db, cfg.keep || err != nil && ctx.Err() == nil, "orders", out) }()
	store, err := mongostore.New(client, mongostore.Config{Database: cfg.database})
	if err != nil {
		return err
	}
	if err := store.Setup(ctx); err != nil {
		return err
	}
	out.Line("orders: %d orders, %d accounts, %d workers, %d kills, seed %d, database %s",
		cfg.orders, accounts(cfg.orders), cfg.workers, cfg.kills, cfg.seed, cfg.database)
	ran, err := runOrders(ctx, cfg, store, out)
	if err != nil {
		return err
	}
	world, err := readWorld(ctx, store, newLedger(db))
	if err != nil {
		return err
	}
	return tell(out, cfg, ran, world)
}

// outcome is what a run tells of itself.
type outcome struct {
	counts Counts
	kills  int
}

// runOrders runs the shop and its workers until all orders are through. The workers
// are gone when it returns.
func runOrders(ctx context.Context, cfg config, store *mongostore.Store, out *stage.Screen) (outcome, error) {
	began := time.Now()
	workers := newFleet(cfg)
	s := &shop{
		cfg:    cfg,
		engine: &Engine{Store: store, Name: "shop", Stats: new(Stats)},
		fleet:  workers,
		screen: out,
		rng:    rand.New(rand.NewPCG(cfg.seed, 0)),
	}
	err := s.openAccounts(ctx)
	if err == nil {
		err = workers.Start()
	}
	if err == nil {
		err = s.run(ctx)
	}
	if err == nil {
		err = s.settle(ctx)
	}
	workers.Stop()
	if err != nil {
		out.Line("  stopped after %d of %d orders; the workers are gone", s.finished, cfg.orders)
		return outcome{}, err
	}
	out.Line("  all %d orders have come to an end in %.1f s; the workers are gone", s.finished, time.Since(began).Seconds())
	return outcome{workers.Counts(), s.kills}, nil
}

// tell prints what was checked.
func tell(out *stage.Screen, cfg config, ran outcome, world *World) error {
	c := ran.counts
	fmt.Fprintf(out, "\nChecked, on what is stored:\n")
	good := stage.Print(out, check(world, cfg))
	fmt.Fprintf(out, "  %d kills; %d deliveries told of, %d of them repeats that were recognised; %d transitions run again after a lost race; %d failures\n",
		ran.kills, c.Deliveries, c.Repeats, c.Reruns, c.Failures)
	printTimeline(out, world, mostTold(world))
	if !good {
		return errors.New("the checks marked FAIL do not hold")
	}
	return nil
}
