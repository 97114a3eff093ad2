package runner

import "sync"

// Combiner sends many things in one command: what comes while a command is on its way
// goes into the next one, and nobody waits for it.
type Combiner[T any] struct {
	// Send takes a batch of at least one. It is never called twice at a time.
	Send func(batch []T)
	// Most is the largest batch.
	Most int

	mu      sync.Mutex
	waiting []T
	flying  bool
}

// Add lets one be sent, soon.
func (c *Combiner[T]) Add(one T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, one)
	if !c.flying {
		c.flying = true
		go c.fly()
	}
}

// fly sends until nothing waits.
func (c *Combiner[T]) fly() {
	for batch := c.take(); len(batch) > 0; batch = c.take() {
		c.Send(batch)
	}
}

func (c *Combiner[T]) take() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.waiting), c.Most)
	batch := c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	c.flying = n > 0
	return batch
}
