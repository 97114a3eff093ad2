package outbox

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/names"
	"github.com/execstore/mongostore/internal/wait"
)

// Config says where a Store keeps its collections and what it uses; the zero Config
// works.
type Config struct {
	// Database holds the collections. Empty is harel, as in the root package.
	Database string
	// Prefix stands in front of the names of the collections events, deliveries and
	// keys. Empty is outbox_.
	Prefix string
	// Clock tells the time, for everything that is stored or compared with it; the
	// server's clock is never used. Nil is the system's.
	Clock mongostore.Clock
	// Logger is told what no error tells. Nil: nobody.
	Logger *slog.Logger
}

const (
	defaultDatabase = "harel"
	defaultPrefix   = "outbox_"

	opTimeout = 10 * time.Second // of one command, where ctx has no deadline
)

// Store keeps events and their deliveries. It is safe for concurrent use, and keeps no
// goroutine between calls.
type Store struct {
	cfg        Config
	client     *mongo.Client
	events     *mongo.Collection
	deliveries *mongo.Collection
	durables   *mongo.Collection // the deliveries as the majority has them
	keys       *mongo.Collection

	turns     turns // of claims that want the same
	front     front
	contended atomic.Bool  // the last claim met other claimers
	locked    atomic.Int64 // until then expired leases are passed by; real time, in nanoseconds
	repairs   repairs
	listeners listeners
}

// New makes a Store on client without network work. Writes are acknowledged by the
// majority and journaled, and reads go to the primary, whatever the client's defaults
// are. The client stays the caller's.
// Returns ErrInvalid if client is nil or a field of cfg makes no sense.
func New(client *mongo.Client, cfg Config) (*Store, error) {
	if client == nil {
		return nil, invalid("client", "is nil")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	journal := true
	db := client.Database(cfg.Database, options.Database().
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}).
		SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Local()). // who acts on what is read writes by majority, later in the same log
		SetBSONOptions(&options.BSONOptions{}).
		SetRegistry(registry))
	return &Store{
		cfg: cfg, client: client,
		events:     db.Collection(cfg.Prefix + "events"),
		deliveries: db.Collection(cfg.Prefix + "deliveries"),
		durables:   db.Collection(cfg.Prefix+"deliveries", options.Collection().SetReadConcern(readconcern.Majority())),
		keys:       db.Collection(cfg.Prefix + "keys"),
	}, nil
}

var registry = bson.NewRegistry()

func (c Config) withDefaults() (Config, error) {
	if c.Database == "" {
		c.Database = defaultDatabase
	}
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if reason := names.Database(c.Database); reason != "" {
		return c, invalid("Config.Database", reason)
	}
	if reason := names.Prefix(c.Database, c.Prefix, "deliveries"); reason != "" {
		return c, invalid("Config.Prefix", reason)
	}
	return c, nil
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

// now is the store's clock as BSON holds it: to the millisecond.
func (s *Store) now() time.Time { return s.cfg.Clock.Now().UTC().Truncate(time.Millisecond) }

// bounded limits one command where ctx has no deadline of its own.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, opTimeout)
}

// patient outlives ctx's cancellation, for what must be seen through; it ends by itself.
func patient(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// lingering outlives ctx by settleFor, for what should be seen through and need not be.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := patient(ctx, opTimeout)
	stop := context.AfterFunc(ctx, func() {
		if wait.For(out, settleFor) {
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func op(name string, v any) bson.D { return bson.D{{Key: name, Value: v}} }
