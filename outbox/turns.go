package outbox

import (
	"context"
	"hash/maphash"
	"maps"
	"sync"
)

// turns lets the claims of one process that want the same choose one after the other, and
// past what the others have chosen: together they would all want the front, and most of
// them come home with little.
type turns struct {
	once sync.Once
	seed maphash.Seed
	of   [64]turn
}

// turn is that of the claims for the same handlers, and at times of some others.
type turn struct {
	choosing chan struct{}

	mu     sync.Mutex
	chosen map[string]bool // by id; their leases are under way
}

// take waits for the turn of claims for these handlers, or for ctx. It ends with end.
func (ts *turns) take(ctx context.Context, handlers []string) (*turn, error) {
	ts.once.Do(func() {
		ts.seed = maphash.MakeSeed()
		for i := range ts.of {
			ts.of[i] = turn{choosing: make(chan struct{}, 1), chosen: map[string]bool{}}
		}
	})
	var h maphash.Hash
	h.SetSeed(ts.seed)
	for _, handler := range handlers {
		_, _ = h.WriteString(handler)
		_ = h.WriteByte(':')
	}
	t := &ts.of[h.Sum64()%uint64(len(ts.of))]
	select {
	case t.choosing <- struct{}{}:
		return t, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *turn) end() { <-t.choosing }

// others are what is chosen now.
func (t *turn) others() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.chosen)
}

// choose keeps candidates from the next ones until leave is called, once their leases
// have landed or failed.
func (t *turn) choose(candidates []stored) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range candidates {
		t.chosen[d.id] = true
	}
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, d := range candidates {
			delete(t.chosen, d.id)
		}
	})
}
