package mongostore

import (
	"context"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/execstore/mongostore/internal/wait"
)

// Store keeps executions in one collection, one document each. It is safe for
// concurrent use, keeps no goroutine between calls, and owns nothing but what
// Connect opened.
type Store struct {
	cfg        Config
	client     *mongo.Client
	owned      bool // Connect opened the client
	executions *mongo.Collection
	counters   *mongo.Collection
	seqs       *allocator
	entriesPer [2]perDocument // by seqKind
	timersPer  perDocument
	finished   map[string]bool
	textCodec  bool // snapshots and events are JSON text
	relays     relaySet
}

// New makes a Store on client without network work; zero cfg works. The client's
// own encoding options, registry, concerns and read preference do not matter. It
// stays the caller's: Close leaves it connected.
// Returns ErrInvalid if client is nil or a field of cfg makes no sense.
func New(client *mongo.Client, cfg Config) (*Store, error) {
	if client == nil {
		return nil, invalid("client", "is nil")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, client: client, finished: make(map[string]bool, len(cfg.FinishedStatuses))}
	for _, status := range cfg.FinishedStatuses {
		s.finished[status] = true
	}
	_, s.textCodec = cfg.Codec.(jsonCodec)
	db := client.Database(cfg.Database, ownOptions(cfg))
	s.executions = db.Collection(cfg.Prefix + "executions")
	s.counters = db.Collection(cfg.Prefix + "counters")
	s.seqs = newAllocator((&counterPair{store: s}).increment, cfg.SeqBlock)
	return s, nil
}

// ownOptions are set on the store's own handle, whatever the client's defaults are.
func ownOptions(cfg Config) *options.DatabaseOptionsBuilder {
	opts := options.Database().
		SetWriteConcern(written(cfg.WriteConcern)).
		SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Local()).
		SetBSONOptions(&options.BSONOptions{UseJSONStructTags: true}).
		SetRegistry(ownRegistry)
	if cfg.WriteConcern.W == "majority" {
		// After a weaker write a majority read would be stale for about 100 ms.
		opts.SetReadConcern(readconcern.Majority())
	}
	return opts
}

// Connect makes a client from uri and a Store on it, and pings the server until it
// answers or ctx ends, so that a process may start beside its server. Without a
// deadline it tries for 30 s. Close disconnects the client.
// Returns ErrInvalid if uri or cfg makes no sense, else the last error of the ping.
func Connect(ctx context.Context, uri string, cfg Config) (*Store, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return nil, badURI(uri, err)
	}
	s, err := New(client, cfg)
	if err == nil {
		err = s.awaitServer(ctx)
	}
	if err != nil {
		_ = client.Disconnect(context.WithoutCancel(ctx))
		return nil, err
	}
	s.owned = true
	return s, nil
}

// badURI tells the driver's reason unless the string may hold a password.
func badURI(uri string, err error) error {
	reason := "is not a connection string that the driver accepts"
	if !mayHoldSecret(uri) {
		reason += ": " + err.Error()
	}
	return invalid("uri", reason)
}

// mayHoldSecret is whether something in uri could be a password, also where the rest of
// it was forgotten or is escaped: the driver's reason quotes parts of the string.
func mayHoldSecret(uri string) bool {
	_, rest, _ := strings.Cut(uri, "://")
	hosts, query, _ := strings.Cut(rest, "?")
	hosts, _, _ = strings.Cut(hosts, "/")
	for host := range strings.SplitSeq(hosts, ",") {
		if i := strings.LastIndex(host, ":"); i >= 0 && strings.Trim(host[i+1:], "0123456789") != "" {
			return true // no port: a password without a host, or with an escaped one
		}
	}
	query = strings.ToLower(query)
	return strings.Contains(uri, "@") || strings.Contains(uri, "%40") || strings.Contains(query, "password") || strings.Contains(query, "authmechanism")
}

// awaitServer pings until the server answers.
func (s *Store) awaitServer(ctx context.Context) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
	}
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.client.Ping(try, readpref.Primary())
		cancel()
		if err == nil {
			return nil
		}
		if !wait.For(ctx, 100*time.Millisecond) {
			return wrapErr("connect", "", err)
		}
	}
}

// Close waits until the store's calls to the server have ended, or ctx has, and
// disconnects the client if Connect opened it. An injected client stays connected.
// Returns ctx's error if it ends first.
func (s *Store) Close(ctx context.Context) error {
	if err := s.seqs.idle(ctx); err != nil {
		return wrapErr("close", "", err)
	}
	if !s.owned {
		return nil
	}
	return wrapErr("close", "", s.client.Disconnect(ctx))
}

// bounded limits one server command where ctx has no deadline of its own.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.cfg.OpTimeout)
}

// now is the store's clock in the seconds that documents hold.
func (s *Store) now() float64 { return toSeconds(s.cfg.Clock.Now()) }
