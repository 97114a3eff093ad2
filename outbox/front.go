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

	minute        time.Time // when the count of taken began
	taken, before int       // how many were taken in this minute, and in the one before
}

const (
	frontTrust = time.Second // a mark knows nothing of what other processes do
	frontSlack = time.Second // what is committed now may be due since its transaction wrote it
	frontWorth = 1000        // taken in a minute: fewer leave little behind
	frontMarks = 64          // so many sets of handlers are remembered
)

// look begins a look for what is due: from is where; zero: at the beginning.
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
	now := time.Now()
	m.roll(now)
	if now.Sub(m.began) >= frontTrust || max(m.taken, m.before) < frontWorth {
		m.began, m.from = now, time.Time{}
	}
	return m, m.from
}

// roll lets a new minute begin.
func (m *mark) roll(now time.Time) {
	switch passed := now.Sub(m.minute); {
	case passed >= 2*time.Minute:
		m.minute, m.taken, m.before = now, 0, 0
	case passed >= time.Minute:
		m.minute, m.taken, m.before = now, 0, m.taken
	}
}

// took counts what was chosen to be leased.
func (m *mark) took(n int) {
	m.front.mu.Lock()
	defer m.front.mu.Unlock()
	m.taken += n
}

// seen notes the first that a look at a time of the store's clock has found. One that has
// come meanwhile may stand before it, and it may not have been seen.
func (m *mark) seen(first, now time.Time) {
	m.front.mu.Lock()
	defer m.front.mu.Unlock()
	m.from = earlier(first, now.Add(-frontSlack))
	if !m.low.IsZero() {
		m.from = earlier(m.from, m.low)
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
		due = time.UnixMilli(0) // no NotBefore is before it
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.marks {
		m.from = earlier(m.from, due) // zero stays
		if m.low.IsZero() || due.Before(m.low) {
			m.low = due
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
