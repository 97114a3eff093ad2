// Shop is a whole program on package outbox, and the proof that it loses nothing and
// sends nothing twice: several processes take orders, each written together with its
// event in one transaction, and run two handlers, while they are killed with SIGKILL. Of
// one order the mail always fails, until its cause is mended and the dead letter put back.
//
// Read order.go (orders and events in one transaction) and handlers.go (a projection that
// is transactional, and a mailer that is not) for what to take along; the rest runs and
// checks the demo.
//
//	go run ./examples/shop -uri 'mongodb://localhost:27017/?replicaSet=rs0'
//
// or `make demo/shop`, which finds or fetches a server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/examples/internal/stage"
)

type config struct {
	uri, database          string
	orders, workers, kills int
	seed                   uint64
	pace                   time.Duration
	keep                   bool
	worker                 int // -1: not a worker
}

func main() {
	cfg, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(2)
	}
	if cfg.worker >= 0 {
		stage.Exit("shop", workerProcess(cfg))
	}
	stage.Exit("shop", stage.Run(func(ctx context.Context, out *stage.Screen) error { return demo(ctx, cfg, out) }))
}

func parse(args []string) (config, error) {
	cfg := config{worker: -1}
	flags := flag.NewFlagSet("shop", flag.ExitOnError)
	flags.StringVar(&cfg.uri, "uri", os.Getenv("MONGOSTORE_TEST_RS_URI"), "the MongoDB `replica set`; default: MONGOSTORE_TEST_RS_URI")
	flags.StringVar(&cfg.database, "database", "", "the database `name`; default: a new one, dropped at the end")
	flags.IntVar(&cfg.orders, "orders", 1000, "how many orders")
	flags.IntVar(&cfg.workers, "workers", 4, "how many processes")
	flags.IntVar(&cfg.kills, "kills", 8, "how many times one of them is killed")
	flags.Uint64Var(&cfg.seed, "seed", 0, "of the orders and the choice of whom to kill; default: random")
	flags.DurationVar(&cfg.pace, "pace", 25*time.Millisecond, "how long a process waits between two orders")
	flags.BoolVar(&cfg.keep, "keep", false, "keep the database")
	flags.IntVar(&cfg.worker, "worker", -1, "be this process (the demo starts its processes so)")
	_ = flags.Parse(args)
	if cfg.worker >= 0 {
		cfg.uri = stage.URI()
	}
	if cfg.seed == 0 {
		cfg.seed = uint64(rand.Uint32()) + 1
	}
	if cfg.database == "" {
		cfg.database = fmt.Sprintf("shop_demo_%06x", rand.Uint32()>>8)
	} else {
		cfg.keep = true
	}
	switch {
	case cfg.uri == "":
		return cfg, errors.New("which replica set? Give -uri, set MONGOSTORE_TEST_RS_URI, or run make demo/shop, which finds or fetches one")
	case cfg.orders < 1 || cfg.workers < 1 || cfg.kills < 0 || cfg.pace < 0:
		return cfg, errors.New("-orders and -workers want at least 1, -kills and -pace at least 0")
	}
	return cfg, nil
}

// args are what a process of the run needs to know.
func (c config) args() []string {
	return []string{
		"-database", c.database, "-orders", strconv.Itoa(c.orders), "-workers", strconv.Itoa(c.workers),
		"-seed", strconv.FormatUint(c.seed, 10), "-pace", c.pace.String(),
	}
}

// demo runs the shop, checks what it left behind and prints it.
func demo(ctx context.Context, cfg config, out *stage.Screen) (err error) {
	client, err := connectAs(ctx, cfg, os.Getpid())
	if err != nil {
		return err
	}
	db := client.Database(cfg.database)
	defer func() { stage.Leave(ctx, db, cfg.keep || err != nil && ctx.Err() == nil, "shop", out) }()
	out.Line("shop: %d orders, %d customers, %d processes, %d kills, seed %d, database %s",
		cfg.orders, customers(cfg.orders), cfg.workers, cfg.kills, cfg.seed, cfg.database)
	s, err := openShop(ctx, cfg, client, out)
	if err != nil {
		return err
	}
	if err := s.run(ctx); err != nil {
		return err
	}
	world, err := readWorld(ctx, db, s.store)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nChecked, on what is stored:\n")
	good := stage.Print(out, check(world, cfg, s.requeued))
	s.tell(out, world)
	if !good {
		return errors.New("the checks marked FAIL do not hold")
	}
	return nil
}

// connectAs waits a little for the server to answer, and tells it which process this is.
func connectAs(ctx context.Context, cfg config, pid int) (*mongo.Client, error) {
	return stage.Connect(ctx, cfg.uri, options.Client().SetAppName(appName(cfg, pid)))
}
