// Package runner is the one worker loop of the project: it claims leases from a
// source, works them, keeps them alive, and hands back what it cannot finish.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Source is what a Runner drains. T is a pointer to a lease. All methods are called
// concurrently, with ctx of their own that outlive the runner's by StopTimeout.
type Source[T comparable] interface {
	// Claim takes leases on what is due, at most limit.
	Claim(ctx context.Context, limit int) ([]T, error)
	// ClaimOne takes a lease on one thing that is said to be due; false: it is not.
	ClaimOne(ctx context.Context, id string) (T, bool, error)
	// Extend renews leases and names those that are lost.
	Extend(ctx context.Context, held []T) (lost []T, err error)
	// Work delivers and hands over, and calls done, once, when nothing of the lease is
	// left to do; it may return before, so that the worker takes the next one. Its ctx
	// ends with cause Config.Lost when the lease cannot be trusted any more, and with
	// cause ErrStopped when the runner is out of patience.
	Work(ctx context.Context, lease T, done func())
	// Release gives back leases that were not begun.
	Release(ctx context.Context, leases []T)
	// ID is what Wake calls what the lease is on.
	ID(lease T) string
}

// Config is how a Runner works. Everything must be set.
type Config struct {
	Workers, Batch                   int
	PollEvery, LeaseFor, StopTimeout time.Duration
	Lost                             error // the cause that a worker's ctx ends with when its lease is lost
	Logger                           *slog.Logger
}

// ErrStopped is the cause that a worker's ctx ends with StopTimeout after Run's.
var ErrStopped = errors.New("the relay stops")

// ErrRunning is returned where a Runner runs already.
var ErrRunning = errors.New("is running already")

// releaseTimeout is the least that giving back what was not begun may take.
const releaseTimeout = 2 * time.Second

// firstPoll is how soon the runner looks again after it had work.
const firstPoll = 50 * time.Millisecond

// Runner drains a source with some workers. One claimer feeds them all: many claimers
// would mostly meet each other.
type Runner[T comparable] struct {
	source Source[T]
	cfg    Config

	mu      sync.Mutex
	running bool
	held    map[T]*hold
	byID    map[string]*hold
	woken   []string      // what is said to be due, at most wakesKept
	wake    chan struct{} // holds one when woken is not empty, or more was left out
	freed   chan struct{} // holds one when a lease was let go since the claimer looked
}

// wakesKept bounds what a commit can leave behind while the claimer is busy: beyond
// it, a claim of what is longest due serves as well.
const wakesKept = 64

// hold is a lease that is queued or worked.
type hold struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	distrust *time.Timer
	woken    bool // while it was held: look again when it is let go
}

// New makes a Runner.
func New[T comparable](source Source[T], cfg Config) *Runner[T] {
	return &Runner[T]{
		source: source, cfg: cfg, held: map[T]*hold{}, byID: map[string]*hold{},
		wake: make(chan struct{}, 1), freed: make(chan struct{}, 1),
	}
}

// Wake says that something is due; by "" that there is, but not what. It never blocks.
// What is held is looked at again when it is let go.
func (r *Runner[T]) Wake(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		return
	}
	if h := r.byID[id]; h != nil && id != "" {
		h.woken = true
		return
	}
	r.wakeLocked(id)
}

func (r *Runner[T]) wakeLocked(id string) {
	if len(r.woken) < wakesKept {
		r.woken = append(r.woken, id)
	}
	signal(r.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, then releases what was not begun, gives what was begun
// StopTimeout, and waits for it.
func (r *Runner[T]) Run(ctx context.Context) error {
	return r.run(ctx, func(stage *stage[T]) error {
		stage.claimUntil(ctx)
		return nil
	})
}

// Drain works until nothing is due, and returns the first error of a claim.
func (r *Runner[T]) Drain(ctx context.Context) error {
	return r.run(ctx, func(stage *stage[T]) error { return stage.claimAll(ctx) })
}

// stage is one run.
type stage[T comparable] struct {
	*Runner[T]
	ended   context.Context // the run's: nothing is begun after it
	queue   chan T
	patient context.Context // the workers': outlives the run's
	leases  sync.WaitGroup  // that are held
}

func (r *Runner[T]) run(ctx context.Context, claims func(*stage[T]) error) error {
	if !r.begin() {
		return ErrRunning
	}
	defer r.end()
	patient, hurry := context.WithCancelCause(context.WithoutCancel(ctx))
	defer hurry(nil)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(r.cfg.StopTimeout, func() { hurry(ErrStopped) }) })
	defer stop()
	st := &stage[T]{Runner: r, ended: ctx, queue: make(chan T, r.capacity()), patient: patient}
	var workers, heart sync.WaitGroup
	for range r.cfg.Workers {
		workers.Go(st.work)
	}
	beating, still := context.WithCancel(context.WithoutCancel(ctx)) // a handler that goes on too long still holds its lease
	heart.Go(func() { st.heartbeat(beating) })

	err := claims(st)
	if ctx.Err() != nil {
		st.release(nil)
	}
	close(st.queue)
	workers.Wait()
	st.leases.Wait()
	still()
	heart.Wait()
	return err
}

func (r *Runner[T]) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		return false
	}
	r.running, r.woken = true, nil
	return true
}

func (r *Runner[T]) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = false
}

// capacity is how many leases are held at most: one for each worker, and a batch that
// waits for them.
func (r *Runner[T]) capacity() int { return r.cfg.Workers + r.cfg.Batch }

// room is how many more leases may be claimed.
func (r *Runner[T]) room() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.capacity() - len(r.held)
}

// claimUntil feeds the workers until ctx ends.
func (st *stage[T]) claimUntil(ctx context.Context) {
	pause, next := firstPoll, time.Now()
	poll := time.NewTimer(0)
	defer poll.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-st.wake:
		case <-poll.C:
		}
		polled := !time.Now().Before(next) // a process that commits all the time must not keep others waiting
		got, err := st.claimRound(ctx, polled)
		if err != nil {
			st.cfg.Logger.Warn("mongostore: a claim failed", "error", err)
		}
		switch soon := time.Now().Add(firstPoll); {
		case polled && (got == 0 || err != nil):
			pause = min(2*pause, st.cfg.PollEvery)
			next = time.Now().Add(pause)
		case polled || got > 0 && soon.Before(next):
			pause, next = min(firstPoll, st.cfg.PollEvery), soon
		}
		poll.Reset(time.Until(next))
	}
}

// claimRound claims as long as whole batches come; or, if it is not the time for that
// and there is one thing that it was woken for, that alone.
func (st *stage[T]) claimRound(ctx context.Context, polled bool) (got int, err error) {
	for st.awaitRoom(ctx) {
		ids := st.takeWakes()
		if len(ids) == 1 && ids[0] != "" && !polled {
			n, err := st.claimOne(ids[0])
			return got + n, err
		}
		n, err := st.claim()
		got += n
		if err != nil || n < st.cfg.Batch {
			return got, err
		}
	}
	return got, nil
}

// claimAll feeds the workers until nothing is due and nothing is being worked.
func (st *stage[T]) claimAll(ctx context.Context) error {
	for ctx.Err() == nil {
		if !st.awaitRoom(ctx) {
			break
		}
		st.takeWakes() // what is longest due is claimed until nothing is
		busy := st.room() < st.capacity()
		n, err := st.claim()
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if !busy {
			return nil
		}
		select { // what is being worked may leave something due behind
		case <-st.freed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// awaitRoom waits until a whole batch has room.
func (st *stage[T]) awaitRoom(ctx context.Context) bool {
	for st.room() < st.cfg.Batch {
		select {
		case <-st.freed:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// claim is not cut short: what it took on the server could not be released then.
func (st *stage[T]) claim() (int, error) {
	sent := time.Now()
	leases, err := st.source.Claim(st.patient, st.cfg.Batch)
	for _, l := range leases {
		st.enqueue(l, sent)
	}
	return len(leases), err
}

func (st *stage[T]) claimOne(id string) (int, error) {
	sent := time.Now()
	l, ok, err := st.source.ClaimOne(st.patient, id)
	if err != nil || !ok {
		return 0, err
	}
	st.enqueue(l, sent)
	return 1, nil
}

// enqueue holds a lease that was asked for at a time. It is trusted for half of what
// it was asked for, counted from before the question: clocks may differ by a quarter,
// and a cancelled handler needs the rest to notice.
func (st *stage[T]) enqueue(l T, sent time.Time) {
	ctx, cancel := context.WithCancelCause(st.patient)
	h := &hold{ctx: ctx, cancel: cancel}
	h.distrust = time.AfterFunc(st.cfg.LeaseFor/2-time.Since(sent), func() { cancel(st.cfg.Lost) })
	st.mu.Lock()
	st.held[l], st.byID[st.source.ID(l)] = h, h
	st.mu.Unlock()
	st.leases.Add(1)
	st.queue <- l // has room for all that is held
}

// letGo forgets a lease.
func (st *stage[T]) letGo(l T) {
	st.mu.Lock()
	h, id := st.held[l], st.source.ID(l)
	delete(st.held, l)
	if st.byID[id] == h {
		delete(st.byID, id)
	}
	if h.woken {
		st.wakeLocked(id)
	}
	st.mu.Unlock()
	h.distrust.Stop()
	h.cancel(nil)
	signal(st.freed)
	st.leases.Done()
}

// work takes one lease after the other. Once the run has ended it begins none.
func (st *stage[T]) work() {
	for l := range st.queue {
		if st.ended.Err() != nil {
			st.release([]T{l})
			continue
		}
		st.mu.Lock()
		ctx := st.held[l].ctx
		st.mu.Unlock()
		st.source.Work(ctx, l, func() { st.letGo(l) })
	}
}

// release gives back leases, and with them all that is queued.
func (st *stage[T]) release(leases []T) {
	for queued := true; queued; {
		select {
		case l, open := <-st.queue:
			if queued = open; open {
				leases = append(leases, l)
			}
		default:
			queued = false
		}
	}
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(st.patient), max(st.cfg.StopTimeout, releaseTimeout))
	defer cancel()
	st.source.Release(ctx, leases)
	for _, l := range leases {
		st.letGo(l)
	}
}

// heartbeat renews what is held, four times in the life of a lease.
func (st *stage[T]) heartbeat(ctx context.Context) {
	tick := time.NewTicker(max(st.cfg.LeaseFor/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			st.renew(ctx)
		}
	}
}

func (st *stage[T]) renew(ctx context.Context) {
	st.mu.Lock()
	leases := make([]T, 0, len(st.held))
	for l, h := range st.held {
		if h.ctx.Err() == nil {
			leases = append(leases, l)
		}
	}
	st.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	var lost []T
	var sent time.Time
	var err error
	for range 2 { // one reply may be lost
		sent = time.Now()
		if lost, err = st.extend(ctx, leases); err == nil {
			break
		}
	}
	if err != nil {
		st.cfg.Logger.Warn("mongostore: leases could not be extended", "leases", len(leases), "error", err)
		return // each ends by itself if this goes on
	}
	gone := make(map[T]bool, len(lost))
	for _, l := range lost {
		gone[l] = true
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, l := range leases {
		h, holding := st.held[l]
		switch {
		case !holding:
		case gone[l]:
			h.cancel(st.cfg.Lost)
		case h.distrust.Stop(): // else it has just been given up
			h.distrust.Reset(st.cfg.LeaseFor/2 - time.Since(sent))
		}
	}
}

// extend leaves time for a second try before the leases are given up.
func (st *stage[T]) extend(ctx context.Context, leases []T) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, st.cfg.LeaseFor/8)
	defer cancel()
	return st.source.Extend(ctx, leases)
}

func (r *Runner[T]) takeWakes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := r.woken
	r.woken = nil
	return ids
}
