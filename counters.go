package mongostore

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// seqKind names one of the two counters.
type seqKind int

const (
	outboxSeq seqKind = iota
	spawnSeq
)

func (k seqKind) String() string { return [...]string{"outbox", "spawn"}[k] }

// perKind is a number for each of the two counters.
type perKind [2]int64

// numbered is what one increment gave: the last number of each kind, or why not.
type numbered struct {
	last perKind
	errs [2]error
}

// allocator hands out runs of numbers from the counters. Callers that wait at the
// same time are served by one increment of their sums: at most one is in flight,
// and nobody joins a batch that has been sent. With a block above 1 it reserves
// ahead, and most callers wait for nothing.
type allocator struct {
	increment func(ctx context.Context, count, above perKind) numbered
	block     int64

	mu         sync.Mutex
	next, last perKind       // what is left of the reserved blocks
	gathering  *batch        // joins are welcome; sent when the one in flight returns
	flying     chan struct{} // closed when no call is in flight any more; nil: none is
}

// batch is what one increment serves.
type batch struct {
	count   perKind // numbers wanted
	above   perKind // every waiter's numbers must be higher
	waiting int     // waiters that have not left
	done    chan struct{}
	ctx     context.Context // of the call; detached from the waiters'
	cancel  context.CancelFunc
	first   perKind
	errs    [2]error
}

func newAllocator(increment func(context.Context, perKind, perKind) numbered, block int) *allocator {
	return &allocator{increment: increment, block: int64(block)}
}

// ticket is a caller's place in a batch, or numbers already had.
type ticket struct {
	count, first, offset perKind
	batch                *batch // nil: all had
}

// ask reserves numbers above given ones without waiting for them.
func (a *allocator) ask(ctx context.Context, count, above perKind) ticket {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := ticket{count: count}
	want := perKind{}
	for kind, n := range count {
		if n > 0 && !a.fromBlock(kind, n, above[kind], &t) {
			want[kind] = n
		}
	}
	if want == (perKind{}) {
		return t
	}
	b := a.gathering
	if b == nil {
		b = &batch{done: make(chan struct{})}
		a.gathering = b
	}
	t.batch, t.offset = b, b.count
	for kind, n := range want {
		b.count[kind] += n
		if n > 0 {
			b.above[kind] = max(b.above[kind], above[kind])
		}
	}
	b.waiting++
	if a.flying == nil {
		a.flying = make(chan struct{})
		go a.fly(outside(context.WithoutCancel(ctx)))
	}
	return t
}

// fromBlock takes numbers of a kind from what is reserved, if there are enough.
func (a *allocator) fromBlock(kind int, n, above int64, t *ticket) bool {
	if a.next[kind] <= above {
		a.next[kind], a.last[kind] = 0, -1 // another process numbered this execution since: order needs a fresh block
	}
	if a.next[kind] == 0 || a.last[kind]-a.next[kind]+1 < n {
		return false
	}
	t.first[kind] = a.next[kind]
	a.next[kind] += n
	return true
}

// wait gives the first of the numbers of each kind. A caller whose ctx ends leaves; its
// numbers are a gap.
func (a *allocator) wait(ctx context.Context, t ticket) (perKind, error) {
	if t.batch == nil {
		return t.first, nil
	}
	select {
	case <-t.batch.done:
	case <-ctx.Done():
		a.leave(t.batch)
		return perKind{}, ctx.Err()
	}
	for kind, n := range t.count {
		if n == 0 || t.first[kind] != 0 {
			continue
		}
		if err := t.batch.errs[kind]; err != nil {
			return perKind{}, err
		}
		t.first[kind] = t.batch.first[kind]
		if !repeatsNumbers() {
			t.first[kind] += t.offset[kind]
		}
	}
	return t.first, nil
}

// leave cancels a call that nobody waits for any more.
func (a *allocator) leave(b *batch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b.waiting--
	if b.waiting == 0 && b.cancel != nil {
		b.cancel()
	}
}

// fly serves one batch after the other until nobody waits.
func (a *allocator) fly(ctx context.Context) {
	for b := a.take(ctx); b != nil; b = a.take(ctx) {
		a.serve(b)
	}
}

// take closes the gathering batch for joins, or ends the flight.
func (a *allocator) take(ctx context.Context) *batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.gathering
	a.gathering = nil
	if b == nil || b.waiting == 0 {
		close(a.flying)
		a.flying = nil
		return nil
	}
	b.ctx, b.cancel = context.WithCancel(ctx)
	return b
}

func (a *allocator) serve(b *batch) {
	defer close(b.done)
	defer b.cancel()
	var size perKind
	for kind, n := range b.count {
		if n > 0 {
			size[kind] = max(n, a.block)
		}
	}
	got := a.increment(b.ctx, size, b.above)
	var again perKind
	for kind, err := range got.errs {
		if err != nil && isOpen(err) && b.ctx.Err() == nil {
			again[kind] = size[kind] // the lost numbers are a gap
		}
	}
	if again != (perKind{}) {
		second := a.increment(b.ctx, again, b.above)
		for kind, n := range again {
			if n > 0 {
				got.last[kind], got.errs[kind] = second.last[kind], second.errs[kind]
			}
		}
	}
	a.deal(b, size, got)
}

// deal gives a batch its numbers, and keeps what is left of a block.
func (a *allocator) deal(b *batch, size perKind, got numbered) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for kind, n := range size {
		if b.errs[kind] = got.errs[kind]; n == 0 || got.errs[kind] != nil {
			continue
		}
		b.first[kind] = got.last[kind] - n + 1
		if a.block > 1 && n > b.count[kind] {
			a.next[kind], a.last[kind] = b.first[kind]+b.count[kind], got.last[kind]
		}
	}
}

// idle waits until no call is in flight.
func (a *allocator) idle(ctx context.Context) error {
	a.mu.Lock()
	flying := a.flying
	a.mu.Unlock()
	if flying == nil {
		return nil
	}
	select {
	case <-flying:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counterPair increments the counter documents. Two of them are one command, as long
// as they stand where this process left them: a check of both values in place of
// reading them. The allocator calls it one at a time.
type counterPair struct {
	store *Store
	stood perKind // what they were at last; 0: not known
	// A wrong guess costs a round trip, so after one the counters must be found where they
	// were left this often, twice as often after each further one.
	penalty, wary int
}

// increment adds to the counters that are wanted and gives their new values, which are
// above the given numbers even if a counter had been lost.
func (c *counterPair) increment(ctx context.Context, count, above perKind) (got numbered) {
	if last, ok := c.both(ctx, count, above); ok {
		return numbered{last: last}
	}
	var wg sync.WaitGroup
	for kind, n := range count {
		if n == 0 {
			continue
		}
		wg.Go(func() { got.last[kind], got.errs[kind] = c.store.incrementAbove(ctx, seqKind(kind), n, above[kind]) })
	}
	wg.Wait()
	alone := true
	for kind, n := range count {
		if n == 0 {
			continue
		}
		alone = alone && got.errs[kind] == nil && got.last[kind]-n == c.stood[kind]
		c.stood[kind] = got.last[kind] // 0 after an error
	}
	if c.wary = max(c.wary-1, 0); !alone {
		c.wary = max(c.penalty, 1)
	}
	return got
}

// both moves both counters in one command if they stand where they were left. Where
// only one does, its numbers are a gap.
func (c *counterPair) both(ctx context.Context, count, above perKind) (last perKind, ok bool) {
	if c.wary > 0 || count[outboxSeq] == 0 || count[spawnSeq] == 0 {
		return last, false
	}
	writes := make([]mongo.WriteModel, 0, len(count))
	for kind, n := range count {
		if c.stood[kind] == 0 || c.stood[kind] < above[kind] {
			return last, false
		}
		last[kind] = c.stood[kind] + n
		writes = append(writes, mongo.NewUpdateOneModel().
			SetFilter(bson.D{{Key: "_id", Value: seqKind(kind).String()}, {Key: "n", Value: c.stood[kind]}}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: last[kind]}}}}))
	}
	ctx, cancel := c.store.bounded(ctx)
	defer cancel()
	res, err := c.store.counters.BulkWrite(ctx, writes)
	if err != nil || res.MatchedCount != int64(len(writes)) {
		const most = 1024
		c.penalty = min(max(2*c.penalty, 1), most)
		c.wary = c.penalty
		return last, false
	}
	c.stood, c.penalty = last, c.penalty/2
	return last, true
}

// incrementAbove adds to a counter document and returns its new value, which is above
// the given number even if the counter had been lost.
func (s *Store) incrementAbove(ctx context.Context, kind seqKind, count, above int64) (int64, error) {
	last, err := s.increment(ctx, kind, count)
	if err != nil || last-count >= above {
		return last, err
	}
	raise := bson.D{{Key: "$max", Value: bson.D{{Key: "n", Value: above}}}}
	raising, cancel := s.bounded(ctx)
	defer cancel()
	if _, err := s.counters.UpdateOne(raising, byID(kind.String()), raise); err != nil {
		return 0, err
	}
	return s.increment(ctx, kind, count)
}

func (s *Store) increment(ctx context.Context, kind seqKind, count int64) (int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	for tries := 0; ; tries++ {
		doc, err := s.counters.FindOneAndUpdate(ctx,
			bson.D{{Key: "_id", Value: kind.String()}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: count}}}},
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Raw()
		if mongo.IsDuplicateKeyError(err) && tries < 10 {
			continue // another writer made the counter first; it exists now
		}
		if err != nil {
			return 0, counterError(kind, err)
		}
		n, ok := wholeNumber(doc.Lookup("n"))
		if !ok {
			return 0, &DamagedError{ExecutionID: kind.String(), Field: "counters.n", Reason: "is not a whole number: " + doc.Lookup("n").String()}
		}
		return n, nil
	}
}

func counterError(kind seqKind, err error) error {
	if mongoerr.HasCode(err, mongoerr.TypeMismatch) {
		return &DamagedError{ExecutionID: kind.String(), Field: "counters.n", Reason: "is not a number", cause: err}
	}
	return wrapErr("allocate "+kind.String()+" numbers", "", err)
}
