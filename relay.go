package mongostore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execstore/mongostore/internal/indexes"
	"github.com/execstore/mongostore/internal/runner"
)

// Handlers deliver what executions owe. A handler that returns nil has delivered; an
// error by Permanent buries the entry; one by RetryAfter, and any other, keeps back the
// entry and all that its execution owes after it. Handlers are called concurrently: never
// two at a time for the execution that owes the entry, but several may write to one
// target, so a handler shares no value with others. An entry is delivered at least once:
// deduplicate by EntryID, or consume it with Changes.Acks in the commit that handles it.
// ctx ends, with ErrLeaseLost as its cause, when the lease cannot be trusted any more,
// and with another cause when the relay stops; then the attempt does not count.
type Handlers struct {
	// Outbox delivers an event.
	Outbox func(ctx context.Context, e OutboxEntry) error
	// Spawn creates a child, by CreateChild.
	Spawn func(ctx context.Context, e SpawnEntry) error
	// Timer tells that a timer has fired.
	Timer func(ctx context.Context, t Timer) error
}

// RelayConfig says how a Relay works; zero is the default of each field, and negative
// is refused unless a field says otherwise.
type RelayConfig struct {
	// Workers is how many executions are delivered at a time. 0 is 4, most 10,000.
	Workers int
	// Batch is how many executions are claimed at a time, and wait for a worker at most.
	// 0 is 10, most 10,000.
	Batch int
	// MaxAttempts is after how many failed deliveries an entry is buried. One that a
	// process died of counts, one that an orderly stop cut off does not. 0 is 10; negative
	// buries only what is Permanent or cannot be read, so that the order is strict.
	MaxAttempts int
	// LeaseFor is how long a lease lasts that is not renewed, and it is renewed four
	// times in that. A quarter of it is the allowed difference between the clocks of two
	// processes. 0 is 30 s; less than 100 ms and more than a year are refused.
	LeaseFor time.Duration
	// PollEvery is the longest pause between two looks at what is due. 0 is 1 s.
	PollEvery time.Duration
	// StopTimeout is how long handlers may go on after Run's ctx has ended. 0 is 10 s.
	StopTimeout time.Duration
	// Backoff is how long a failed entry is kept back after attempt number 1, 2, ... Nil
	// is a random time up to 200 ms, doubling up to 1 minute (full jitter). The relay looks
	// again when it polls, so later by up to PollEvery.
	Backoff func(attempt int) time.Duration
	// Observe is told what happens, concurrently, and must not block. Nil: nobody.
	Observe func(RelayEvent)
}

// RelayEvent is something that happened to an entry, or to a lease.
type RelayEvent struct {
	// What is claimed, delivered, retried, buried or lease_lost.
	What string
	// ID is the EntryID; for lease_lost empty. Handler is outbox, spawn or timer. Key is
	// the execution.
	ID, Handler, Key string
	// Attempt counts, 1 the first.
	Attempt int
	// Duration is that of the handler; for claimed and lease_lost zero.
	Duration time.Duration
	// Err is why, for retried, buried and lease_lost.
	Err error
}

// Relay delivers what the executions of a store owe: any number of relays in any
// number of processes share the work, in order per execution. Make it by NewRelay.
type Relay struct {
	store    *Store
	handlers Handlers
	cfg      RelayConfig
	runner   *runner.Runner[*Lease]
	finisher finisher
	counted  atomic.Int64 // delivered entries
}

// NewRelay makes a Relay; Run or Drain starts it.
// Returns ErrInvalid if there is no handler for a kind in Config.RelayKinds, or a field
// of cfg makes no sense.
func (s *Store) NewRelay(h Handlers, cfg RelayConfig) (*Relay, error) {
	for _, k := range []struct {
		kind Kind
		name string
		is   bool
	}{{KindOutbox, "Outbox", h.Outbox != nil}, {KindSpawn, "Spawn", h.Spawn != nil}, {KindTimer, "Timer", h.Timer != nil}} {
		if s.cfg.RelayKinds&k.kind != 0 && !k.is {
			return nil, invalid("Handlers."+k.name, "is nil, and Config.RelayKinds makes executions due for it")
		}
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Relay{store: s, handlers: h, cfg: cfg}
	r.finisher.init(s)
	r.runner = runner.New[*Lease](relaySource{r}, runner.Config{
		Workers: cfg.Workers, Batch: cfg.Batch, PollEvery: cfg.PollEvery, LeaseFor: cfg.LeaseFor, StopTimeout: cfg.StopTimeout,
		Lost: ErrLeaseLost, Logger: s.cfg.Logger,
	})
	return r, nil
}

func (c RelayConfig) withDefaults() (RelayConfig, error) {
	for _, f := range []struct {
		name     string
		negative bool
	}{
		{"Workers", c.Workers < 0}, {"Batch", c.Batch < 0}, {"LeaseFor", c.LeaseFor < 0},
		{"PollEvery", c.PollEvery < 0}, {"StopTimeout", c.StopTimeout < 0},
	} {
		if f.negative {
			return c, invalid("RelayConfig."+f.name, "is negative")
		}
	}
	c.Workers, c.Batch, c.MaxAttempts = orElse(c.Workers, 4), orElse(c.Batch, defaultClaim), orElse(c.MaxAttempts, 10)
	c.LeaseFor, c.PollEvery = orElse(c.LeaseFor, defaultLeaseFor), orElse(c.PollEvery, time.Second)
	c.StopTimeout = orElse(c.StopTimeout, 10*time.Second)
	switch {
	case c.LeaseFor > maxLeaseFor:
		return c, invalid("RelayConfig.LeaseFor", "is above a year")
	case c.LeaseFor < minLeaseFor:
		return c, invalid("RelayConfig.LeaseFor", "is below 100 ms, no time to renew it")
	case c.Workers > mostLeases || c.Batch > mostLeases:
		return c, invalid("RelayConfig.Workers and Batch", fmt.Sprintf("are above %d", mostLeases))
	}
	if c.Backoff == nil {
		c.Backoff = runner.FullJitter
	}
	if c.Observe == nil {
		c.Observe = func(RelayEvent) {}
	}
	return c, nil
}

const (
	minLeaseFor = 100 * time.Millisecond
	maxLeaseFor = 365 * 24 * time.Hour
	mostLeases  = 10_000 // held by one process
)

// Run delivers until ctx ends, and returns nil then: what was claimed and not begun is
// released, handlers get StopTimeout, and those that go on longer have their ctx
// cancelled and are waited for. It goes on through errors of the server. It warns in
// the log if Setup was forgotten. At most one Run or Drain at a time.
// Returns ErrInvalid if the relay runs already, or ctx has an open transaction.
func (r *Relay) Run(ctx context.Context) error {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	r.warnWithoutSetup(ctx)
	leave := r.store.relays.add(r)
	defer leave()
	defer context.AfterFunc(ctx, leave)() // one that stops is not woken any more
	return running(r.runner.Run(ctx))
}

// Drain delivers until nothing is due by Config.Clock, and returns how many entries it
// delivered: for tests, and for jobs that run from time to time. What backs off or is
// leased by others is not due. At most one Run or Drain at a time.
// Returns ErrInvalid if the relay runs already, or ctx has an open transaction; else
// ctx's error, or that of a claim.
func (r *Relay) Drain(ctx context.Context) (int, error) {
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return 0, err
	}
	before := r.counted.Load()
	err = running(r.runner.Drain(ctx))
	return int(r.counted.Load() - before), wrapErr("drain", "", err)
}

func running(err error) error {
	if errors.Is(err, runner.ErrRunning) {
		return invalid("Relay", "runs already")
	}
	return err
}

// warnWithoutSetup looks for the index that every claim needs.
func (r *Relay) warnWithoutSetup(ctx context.Context) {
	bounded, cancel := r.store.bounded(outside(ctx))
	defer cancel()
	if missing := indexes.MissingNames(bounded, r.store.executions, executionIndexes); len(missing) > 0 {
		r.store.cfg.Logger.Warn("mongostore: Store.Setup was not called, every claim scans the collection",
			"collection", r.store.executions.Name(), "missing", missing)
	}
}

// relaySource is the Relay as the runner sees it.
type relaySource struct{ *Relay }

func (r relaySource) Claim(ctx context.Context, limit int) ([]*Lease, error) {
	leases, err := r.store.Claim(ctx, ClaimOptions{Limit: limit, LeaseFor: r.cfg.LeaseFor})
	for _, l := range leases {
		r.claimed(l)
	}
	return leases, err
}

func (r relaySource) ClaimOne(ctx context.Context, id string) (*Lease, bool, error) {
	until, err := r.store.leaseEnd(r.cfg.LeaseFor)
	if err != nil {
		return nil, false, err
	}
	l, err := r.store.claimOne(outside(ctx), id, until)
	if err != nil || l == nil {
		return nil, false, wrapErr("claim", id, err)
	}
	r.claimed(l)
	return l, true, nil
}

func (r relaySource) Extend(ctx context.Context, held []*Lease) (lost []*Lease, err error) {
	until, err := r.store.leaseEnd(r.cfg.LeaseFor)
	if err != nil {
		return nil, err
	}
	lost, err = r.store.extend(ctx, held, until)
	return lost, wrapErr("extend leases", "", err)
}

func (r relaySource) Work(ctx context.Context, l *Lease, done func()) { r.work(ctx, l, done) }

func (r relaySource) Release(ctx context.Context, leases []*Lease) {
	now, hs := r.store.now(), make([]handover, len(leases))
	for i := range hs {
		hs[i] = handover{lease: r.store.released(now)}
	}
	lost, err := r.store.handOver(ctx, leases, hs, now)
	if err != nil {
		lost = leases
	}
	for _, l := range lost {
		r.gaveUp(l, cmp.Or(err, error(&LeaseLostError{IDs: []string{l.ExecutionID}})))
	}
}

func (r relaySource) ID(l *Lease) string { return l.ExecutionID }

// relaySet are the relays that run in this process on one store.
type relaySet struct {
	mu     sync.Mutex
	relays atomic.Pointer[[]*Relay]
}

func (rs *relaySet) all() []*Relay {
	if p := rs.relays.Load(); p != nil {
		return *p
	}
	return nil
}

// add lets r be woken until leave is called.
func (rs *relaySet) add(r *Relay) (leave func()) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	all := append(slices.Clone(rs.all()), r)
	rs.relays.Store(&all)
	return sync.OnceFunc(func() { rs.remove(r) })
}

func (rs *relaySet) remove(r *Relay) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rest := slices.Clone(rs.all())
	if i := slices.Index(rest, r); i >= 0 { // once: a second Run of it is refused, and leaves too
		rest = slices.Delete(rest, i, i+1)
	}
	rs.relays.Store(&rest)
}

// wakeRelays tells one relay of this process that a commit has made its execution due.
func (s *Store) wakeRelays(a *attempt) {
	relays := s.relays.all()
	if len(relays) == 0 {
		return
	}
	if due, ok := s.dueAt(a); ok && due <= s.now() {
		relays[rand.IntN(len(relays))].runner.Wake(a.plan.id)
	}
}
