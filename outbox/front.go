package outbox

import (
	"strings"
	"sync"
	"time"
)

// front remembers where in the claim index the first delivery that is due was seen last.
// What was claimed and finished leaves deleted keys before it, which the server walks
// over for minutes: with much to do, each look from the beginning would cost more than
// the one before.
type front struct {
	mu    sync.Mutex
	marks map[string]*mark // by handlers
}

// mark is the front for some handlers.
type mark struct {
	front *front
	from  time.Time // nothing due is known before it; zero: not known
	low   time.Time // the first that came to be due since the last look began; zero: none
	began time.Time // when a look from the beginning was last made
}

const (
	frontTrust = time.Second // a mark knows nothing of what other processes do
	frontMarks = 64          // so many sets of handlers are remembered
)

// look begins a look for what is due: from is where.
func (f *front) look(handlers []string) (m *mark, from time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := strings.Join(handlers, ":")
	if m = f.marks[key]; m == nil {
		if f.marks == nil || len(f.marks) == frontMarks {
			f.marks = map[string]*mark{}
		}
		m = &mark{front: f}
		f.marks[key] = m
	}
	m.low = time.Time{}
	if now := time.Now(); now.Sub(m.began) >= frontTrust {
		m.began, m.from = now, time.Time{}
	}
	return m, m.from
}

// seen notes the first that the look has found. One that has come meanwhile may stand
// before it, and it may not have been seen.
func (m *mark) seen(first time.Time) {
	m.front.mu.Lock()
	defer m.front.mu.Unlock()
	m.from = first
	if !m.low.IsZero() && m.low.Before(first) {
		m.from = m.low
	}
}

// forget lets the next look start at the beginning.
func (m *mark) forget() {
	m.front.mu.Lock()
	defer m.front.mu.Unlock()
	m.from = time.Time{}
}

// lower is told from when a delivery is due that this process has put into the index;
// zero: not known.
func (f *front) lower(due time.Time) {
	if due.IsZero() {
		due = time.UnixMilli(1) // before all, and not zero
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.marks {
		if due.Before(m.from) {
			m.from = due
		}
		if m.low.IsZero() || due.Before(m.low) {
			m.low = due
		}
	}
}
