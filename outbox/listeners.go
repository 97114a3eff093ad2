package outbox

import "sync"

// listeners are who works in this process, by handler. A commit here wakes them; for
// those in other processes there is the poll.
type listeners struct {
	mu  sync.Mutex
	all map[string][]*listener
}

type listener struct{ wake func() }

// add lets wake be called, which must not block, until leave is.
func (ls *listeners) add(handler string, wake func()) (leave func()) {
	l := &listener{wake}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.all == nil {
		ls.all = make(map[string][]*listener)
	}
	ls.all[handler] = append(ls.all[handler], l)
	return sync.OnceFunc(func() { ls.remove(handler, l) })
}

func (ls *listeners) remove(handler string, gone *listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var rest []*listener
	for _, l := range ls.all[handler] {
		if l != gone {
			rest = append(rest, l)
		}
	}
	ls.all[handler] = rest
}

func (ls *listeners) wake(handlers []string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, h := range handlers {
		for _, l := range ls.all[h] {
			l.wake()
		}
	}
}
