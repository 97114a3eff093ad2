package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/outbox"
)

const (
	propertyKeys   = 20
	keyTurn        = 2500 * time.Millisecond // how long a key has appends, of three times that: then nothing hides what is stuck
	purgedAfter    = 4 * time.Second
	publishWithin  = 2500 * time.Millisecond // of one transaction
	repeatedWithin = 500 * time.Millisecond  // with publishWithin less than purgedAfter: a purged id would be new

	// The rhythm of the claimers that die. All but the first part of it is without new
	// claimers, because a new Store walks all lanes once, and would hide what a crash left.
	claimersCycle = 3500 * time.Millisecond
	claimersDie   = 600 * time.Millisecond // into the cycle, and within claimersDying
	claimersDying = 500 * time.Millisecond
)

var propertyHandlers = []string{"a", "b", "c"}

// propertyWorld is all that runs.
type propertyWorld struct {
	t             *testing.T
	uri, database string
	seed          uint64
	admin         *mongo.Client
	h             *propertyHistory
	commits       *commits
	heads         *heads
	processes     atomic.Uint64
	events        atomic.Uint64
	wg            sync.WaitGroup

	crashes, giveWays, claims, requeues, purged atomic.Int64

	mu       sync.Mutex
	errors   map[string]int // of calls, by their text, to see what a run met
	orphaned bson.A         // sessions
}

// process is one simulated process.
type process struct {
	*propertyWorld
	*killable
	name  string
	rnd   *rand.Rand
	store *outbox.Store
	ctx   context.Context // ends with the run, or with the process
}

// live runs one process after the other in a place, until ctx ends. life returns when
// ctx has ended, or, some time after its end, when its process is dead. The next one
// does not wait for that; between, which may be nil, is called before it starts.
func (w *propertyWorld) live(ctx context.Context, kind string, life func(p *process), between func(rnd *rand.Rand)) {
	w.wg.Go(func() {
		rnd := rand.New(rand.NewPCG(w.seed, 1<<32+w.processes.Load()))
		for ctx.Err() == nil {
			p, end := w.start(ctx, kind)
			w.wg.Go(func() {
				life(p)
				end()
			})
			<-p.ctx.Done()
			if p.isDead() {
				w.crashes.Add(1)
			}
			after := time.Duration(rnd.IntN(500)) * time.Millisecond
			w.wg.Go(func() { w.endTransactions(p, after) })
			if between != nil {
				between(rnd)
			}
		}
	})
}

func (w *propertyWorld) start(ctx context.Context, kind string) (*process, func()) {
	number := w.processes.Add(1)
	p := &process{
		propertyWorld: w, killable: newKillable(w.t, w.uri, &w.giveWays),
		name: fmt.Sprintf("%s%d", kind, number), rnd: rand.New(rand.NewPCG(w.seed, number)),
	}
	store, err := outbox.New(p.client, outbox.Config{Database: w.database})
	require.NoError(w.t, err)
	p.store = store
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(p.died, cancel)
	return p, func() {
		stop()
		cancel()
		w.wg.Go(p.close)
	}
}

// endTransactions does what the server does after a minute: it aborts the transactions
// that a dead process has left open.
func (w *propertyWorld) endTransactions(p *process, after time.Duration) {
	time.Sleep(after) // they hold their locks till then
	left := p.orphans()
	w.mu.Lock()
	w.orphaned = append(w.orphaned, left...)
	w.mu.Unlock()
	w.killSessions(left)
}

// killSessions is also for the end: a command that was on its way may have come later.
func (w *propertyWorld) killSessions(left bson.A) {
	if len(left) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := w.admin.Database("admin").RunCommand(ctx, bson.D{{Key: "killSessions", Value: left}}).Err(); err != nil {
			w.h.violate("transactions of a dead process could not be ended: %s", err.Error())
		}
	}
}

var digits = regexp.MustCompile(`-?[0-9.]+`)

// met counts an error of a call.
func (w *propertyWorld) met(what string, err error) {
	if err == nil {
		return
	}
	text := digits.ReplaceAllString(fmt.Sprintf("%s: %.120s", what, err.Error()), "#")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errors[text]++
}

// pause is for between two things that a process does.
func (p *process) pause(from, to time.Duration) {
	restFor(p.ctx, from+time.Duration(p.rnd.Int64N(int64(to-from)+1)))
}

func (p *process) chance(percent int) bool { return p.rnd.IntN(100) < percent }

// handlers are some of them, mostly all.
func (p *process) handlers(all int) []string {
	if p.chance(all) {
		return slices.Clone(propertyHandlers)
	}
	some := slices.Clone(propertyHandlers)
	p.rnd.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	return some[:1+p.rnd.IntN(len(some))]
}

// key is one that has its turn, now and then one of two that always have; or none.
func (p *process) key() string {
	if p.chance(8) {
		return ""
	}
	turn := int(p.h.now() / keyTurn)
	if p.chance(10) {
		return fmt.Sprintf("key-%d", p.rnd.IntN(2))
	}
	for {
		if i := p.rnd.IntN(propertyKeys); (i+turn)%3 == 0 {
			return fmt.Sprintf("key-%d", i)
		}
	}
}

// populate starts the processes.
func (w *propertyWorld) populate(ctx context.Context) {
	for range 8 {
		w.live(ctx, "publisher", publisher, nil)
	}
	for range 4 {
		w.live(ctx, "claimer", func(p *process) { claimer(p) }, nil)
	}
	for range 8 {
		w.live(ctx, "mortal", mortalClaimer, func(rnd *rand.Rand) {
			if rnd.IntN(5) > 0 {
				restFor(ctx, w.untilCycle(1, 0))
			}
		})
	}
	w.live(ctx, "requeuer", requeuer, nil)
	for range 2 {
		w.live(ctx, "purger", purger, nil)
	}
}

// untilCycle is how long it is until a time into a coming cycle: 0 is this one.
func (w *propertyWorld) untilCycle(coming int, into time.Duration) time.Duration {
	now := w.h.now()
	return now.Truncate(claimersCycle) + time.Duration(coming)*claimersCycle + into - now
}

// follow reads the log and checks what is known so far, every now and then.
func (w *propertyWorld) follow(ctx context.Context) {
	for ctx.Err() == nil {
		restFor(ctx, time.Second)
		w.check(context.WithoutCancel(ctx))
	}
}

// check copies what was claimed before it reads the log, and what was published after:
// then each that is in the one is in the other.
func (w *propertyWorld) check(ctx context.Context) record {
	r := w.h.copied()
	if err := w.commits.read(ctx); err != nil {
		w.h.violate("the log could not be read: %s", err.Error())
	}
	r.publications = w.h.copied().publications
	for _, v := range checkRecord(r, w.commits) {
		w.h.violate("%s", v)
	}
	return r
}

// drain completes, with a Store of its own, all that is left.
func (w *propertyWorld) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	p, end := w.start(ctx, "drain")
	defer end()
	for ctx.Err() == nil {
		called := w.h.now()
		ds, err := p.store.Claim(ctx, outbox.ClaimOptions{Handlers: propertyHandlers, Limit: 100, LeaseFor: 20 * time.Second})
		w.met("drain: claim", err)
		holds := w.h.claimed(p.name, called, ds)
		if len(ds) > 0 {
			finished := w.h.finishes("complete", holds...)
			err := p.store.Complete(ctx, ds...)
			w.met("drain: complete", err)
			if err == nil {
				finished(acknowledged)
			}
			continue
		}
		if err := w.heads.read(ctx); err == nil && w.heads.unfinished == 0 {
			return
		}
		restFor(ctx, 50*time.Millisecond)
	}
	w.h.violate("the drain did not come to an end, %d deliveries are unfinished", w.heads.unfinished)
}

// statuses reads what the database holds at the end.
func (w *propertyWorld) statuses(ctx context.Context) (map[string]string, error) {
	docs, err := propertyDocs(ctx, w.admin.Database(w.database).Collection("outbox_deliveries"), bson.D{}, bson.D{{Key: "status", Value: 1}})
	all := make(map[string]string, len(docs))
	for _, doc := range docs {
		all[doc.Lookup("_id").StringValue()] = doc.Lookup("status").StringValue()
	}
	return all, err
}
