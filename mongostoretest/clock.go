package mongostoretest

import (
	"sync"
	"time"
)

// start is the time of a zero [Clock] before its first Advance.
var start = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// Clock is a mongostore.Clock that stands still until it is advanced. The zero
// value is ready and shows 2024-01-01 00:00:00 UTC; [NewClock] starts at
// another time. A Clock is safe for concurrent use and must not be copied.
type Clock struct {
	mu     sync.Mutex
	origin time.Time // zero: start
	passed time.Duration
}

// NewClock returns a clock that shows t.
func NewClock(t time.Time) *Clock { return &Clock{origin: t} }

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// Advance moves the clock by d and returns the time that it shows then. A
// negative d moves it back, as a clock that was set does.
func (c *Clock) Advance(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed += d
	return c.now()
}

func (c *Clock) now() time.Time {
	origin := c.origin
	if origin.IsZero() {
		origin = start
	}
	return origin.Add(c.passed)
}
