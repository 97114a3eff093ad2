package mongostore

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// seqKind names one of the two counters.
type seqKind int

const (
	outboxSeq seqKind = iota
	spawnSeq
)

func (k seqKind) String() string { return [...]string{"outbox", "spawn"}[k] }

// allocator hands out runs of numbers from one counter. Callers that wait at the
// same time are served by one increment of their sum: at most one is in flight,
// and nobody joins a batch that has been sent. With a block above 1 it reserves
// ahead, and most callers wait for nothing.
type allocator struct {
	increment func(ctx context.Context, count, above int64) (last int64, err error)
	block     int64

	mu         sync.Mutex
	next, last int64         // what is left of the reserved block
	gathering  *batch        // joins are welcome; sent when the one in flight returns
	flying     chan struct{} // closed when no call is in flight any more; nil: none is
}

// batch is what one increment serves.
type batch struct {
	count   int64 // numbers wanted
	above   int64 // every waiter's numbers must be higher
	waiting int   // waiters that have not left
	done    chan struct{}
	ctx     context.Context // of the call; detached from the waiters'
	cancel  context.CancelFunc
	first   int64
	err     error
}

func newAllocator(increment func(context.Context, int64, int64) (int64, error), block int) *allocator {
	return &allocator{increment: increment, block: int64(block)}
}

// ticket is a caller's place in a batch, or numbers already had.
type ticket struct {
	first  int64
	batch  *batch
	offset int64
}

// ask reserves count numbers above a given one without waiting for them.
func (a *allocator) ask(ctx context.Context, count, above int64) ticket {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next <= above {
		a.next, a.last = 0, -1 // another process numbered this execution since: order needs a fresh block
	}
	if a.next != 0 && a.last-a.next+1 >= count {
		first := a.next
		a.next += count
		return ticket{first: first}
	}
	b := a.gathering
	if b == nil {
		b = &batch{done: make(chan struct{})}
		a.gathering = b
	}
	t := ticket{batch: b, offset: b.count}
	b.count += count
	b.above = max(b.above, above)
	b.waiting++
	if a.flying == nil {
		a.flying = make(chan struct{})
		go a.fly(outside(context.WithoutCancel(ctx)))
	}
	return t
}

// wait gives the first of the numbers. A caller whose ctx ends leaves; its numbers
// are a gap.
func (a *allocator) wait(ctx context.Context, t ticket) (int64, error) {
	if t.batch == nil {
		return t.first, nil
	}
	select {
	case <-t.batch.done:
		return t.batch.first + t.offset, t.batch.err
	case <-ctx.Done():
		a.leave(t.batch)
		return 0, ctx.Err()
	}
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
	size := max(b.count, a.block)
	last, err := a.increment(b.ctx, size, b.above)
	if err != nil && isOpen(err) && b.ctx.Err() == nil {
		last, err = a.increment(b.ctx, size, b.above) // the lost numbers are a gap
	}
	if err != nil {
		b.err = err
		return
	}
	b.first = last - size + 1
	if a.block > 1 && size > b.count {
		a.mu.Lock()
		a.next, a.last = b.first+b.count, last
		a.mu.Unlock()
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

// incrementer adds to the counter document and returns its new value, which is
// above the given number even if the counter had been lost.
func (s *Store) incrementer(kind seqKind) func(context.Context, int64, int64) (int64, error) {
	return func(ctx context.Context, count, above int64) (int64, error) {
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
	if hasCode(err, codeTypeMismatch) {
		return &DamagedError{ExecutionID: kind.String(), Field: "counters.n", Reason: "is not a number", cause: err}
	}
	return wrapErr("allocate "+kind.String()+" numbers", "", err)
}
