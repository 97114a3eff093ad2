package mongostore

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore/internal/names"
)

// The defaults of Config, for what is left zero.
const (
	defaultDatabase       = "harel"
	defaultProcessedMax   = 1000
	defaultTraceMax       = 200
	defaultWarnBytes      = 4 << 20
	defaultOpTimeout      = 10 * time.Second
	defaultOutcomeTimeout = 2 * time.Second
)

// Config says how a Store works. The zero value works: every field has a default,
// and New refuses what makes no sense with a *ValidationError that names the
// field. Processes that share a database must agree on Prefix, Codec,
// ProcessedMax, TraceMax, SeqBlock (above 1 or not), WriteConcern and RelayKinds.
type Config struct {
	// Database is the name of the database. Defaults to "harel".
	Database string
	// Prefix goes before the collection names executions and counters. Defaults to
	// none; "harel_" is what harel 0.9.0 uses.
	Prefix string
	// Codec makes and reads the snapshot and the events. Nil is JSON, stored as
	// text; the bytes of any other codec are stored as BSON binary. It must give the
	// same bytes for the same value, so that a repeated Commit is known again.
	Codec Codec
	// Clock is where the store reads time. Nil is time.Now.
	Clock Clock
	// Logger gets what no returned error tells. Nil is silent.
	Logger *slog.Logger
	// OnDamaged is called for each document that a sweep, a page or Adopt went past
	// because it cannot be read. It must not block. Nil ignores them.
	OnDamaged func(*DamagedError)
	// FinishedStatuses are the statuses that set finished_at. Nil is DONE,
	// CANCELLED, FAILED; empty and not nil is none.
	FinishedStatuses []string
	// ProcessedMax is how many event ids an execution remembers, the newest. 0 is
	// 1000; negative keeps all, which grows the document for ever.
	ProcessedMax int
	// TraceMax is how many trace steps an execution keeps, the newest. 0 is 200;
	// negative keeps all.
	TraceMax int
	// SeqBlock is how many outbox and spawn numbers are reserved ahead at a time. 0
	// and 1 reserve none: numbers then rise across executions in the order of
	// allocation, for one more round trip. Negative is refused.
	SeqBlock int
	// WarnBytes is the size of the encoded contents of one commit, in bytes, above
	// which a warning is logged. 0 is 4 MiB; negative never warns. The size of a whole
	// document is told by Inspect.
	WarnBytes int
	// WriteConcern of every write. Nil is majority, journaled. An unacknowledged one
	// is refused. Anything less than majority can lose acknowledged commits on a
	// failover, and reads are then local.
	WriteConcern *writeconcern.WriteConcern
	// RelayKinds says which of outbox, spawns and timers make an execution due for a
	// claim and a relay. 0 is all three.
	RelayKinds Kind
	// OpTimeout bounds each server command where ctx has no deadline. 0 is 10 s;
	// negative is refused.
	OpTimeout time.Duration
	// OutcomeTimeout is how long Commit asks what became of a write whose reply was
	// lost, even when ctx has ended. 0 is 2 s; negative is refused.
	OutcomeTimeout time.Duration
}

// Clock tells the time. It is used concurrently.
type Clock interface{ Now() time.Time }

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

// Kind is a set of kinds of work: what a relay delivers.
type Kind uint8

// The kinds of work that an execution can owe.
const (
	KindOutbox Kind = 1 << iota
	KindSpawn
	KindTimer

	kindAll = KindOutbox | KindSpawn | KindTimer
)

func (c Config) withDefaults() Config {
	c.Database = orElse(c.Database, defaultDatabase)
	if c.Codec == nil {
		c.Codec = jsonCodec{}
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.OnDamaged == nil {
		c.OnDamaged = func(*DamagedError) {}
	}
	if c.FinishedStatuses == nil {
		c.FinishedStatuses = []string{"DONE", "CANCELLED", "FAILED"}
	}
	c.ProcessedMax = orElse(c.ProcessedMax, defaultProcessedMax)
	c.TraceMax = orElse(c.TraceMax, defaultTraceMax)
	c.SeqBlock = orElse(c.SeqBlock, 1)
	c.WarnBytes = orElse(c.WarnBytes, defaultWarnBytes)
	if c.WriteConcern == nil {
		journal := true
		c.WriteConcern = &writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}
	}
	c.RelayKinds = orElse(c.RelayKinds, kindAll)
	c.OpTimeout = orElse(c.OpTimeout, defaultOpTimeout)
	c.OutcomeTimeout = orElse(c.OutcomeTimeout, defaultOutcomeTimeout)
	return c
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// validate checks a Config that has its defaults.
func (c Config) validate() error {
	if reason := names.Database(c.Database); reason != "" {
		return invalid("Config.Database", reason)
	}
	if reason := names.Prefix(c.Database, c.Prefix, "executions"); reason != "" {
		return invalid("Config.Prefix", reason)
	}
	if !c.WriteConcern.Acknowledged() {
		return invalid("Config.WriteConcern", "is unacknowledged, a commit could not be told from a loss")
	}
	if c.RelayKinds&^kindAll != 0 {
		return invalid("Config.RelayKinds", fmt.Sprintf("has unknown kinds %#x", uint8(c.RelayKinds&^kindAll)))
	}
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"Config.SeqBlock", c.SeqBlock < 0},
		{"Config.OpTimeout", c.OpTimeout < 0},
		{"Config.OutcomeTimeout", c.OutcomeTimeout < 0},
	} {
		if f.bad {
			return invalid(f.name, "is negative")
		}
	}
	for _, f := range []struct {
		name  string
		limit int
	}{{"Config.ProcessedMax", c.ProcessedMax}, {"Config.TraceMax", c.TraceMax}} {
		if f.limit > math.MaxInt32 {
			return invalid(f.name, "is above what the server counts in 32 bits")
		}
	}
	const million = 1_000_000
	if c.SeqBlock > million {
		return invalid("Config.SeqBlock", "is above 1,000,000")
	}
	for i, s := range c.FinishedStatuses {
		if err := validText(fmt.Sprintf("Config.FinishedStatuses[%d]", i), s); err != nil {
			return err
		}
	}
	return nil
}
