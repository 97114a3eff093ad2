package outbox_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// The checker judges what is certain only: of two calls it knows which was first where
// one had returned before the other began, and no more.

// leaseMargin is by how much sooner than it says a lease is taken to end.
const leaseMargin = 5 * time.Millisecond

// record is a history to check.
type record struct {
	holds        []heldClaim
	finishings   []finishing
	requeueings  []requeueing
	publications []publication
}

const endless = time.Duration(math.MaxInt64)

// facts are a record, sorted for the checks, and what was committed.
type facts struct {
	record
	*commits
	first    map[string]time.Duration // when the first Claim of a delivery returned
	ended    map[string]time.Duration // when the first call began that may have finished it
	byID     map[string][]finishing
	byLane   map[string][]heldClaim // of those without a key: by id
	claims   map[string][]heldClaim // by id
	requeued map[string][]requeueing
	found    []string
}

// checkRecord gives what is violated. It may run while the processes go on.
func checkRecord(r record, c *commits) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &facts{
		record: r, commits: c, first: map[string]time.Duration{}, ended: map[string]time.Duration{},
		byID: map[string][]finishing{}, byLane: map[string][]heldClaim{}, claims: map[string][]heldClaim{}, requeued: map[string][]requeueing{},
	}
	for _, h := range r.holds {
		if t, there := f.first[h.id]; !there || h.returned < t {
			f.first[h.id] = h.returned
		}
		f.byLane[h.lane()], f.claims[h.id] = append(f.byLane[h.lane()], h), append(f.claims[h.id], h)
	}
	for _, e := range r.finishings {
		f.byID[e.id] = append(f.byID[e.id], e)
		if t, there := f.ended[e.id]; e.ends() && (!there || e.began < t) {
			f.ended[e.id] = e.began
		}
	}
	for _, q := range r.requeueings {
		f.requeued[q.id] = append(f.requeued[q.id], q)
	}
	for lane, ids := range c.lanes {
		f.order(lane, ids)
		f.overtaking(lane, ids)
	}
	for id := range f.requeued {
		f.overtakingRequeued(f.laneOf(id), id)
	}
	for lane, holds := range f.byLane {
		f.overlaps(lane, holds)
	}
	for id, all := range f.byID {
		f.outcomes(id, all)
	}
	f.published()
	return f.found
}

func (h heldClaim) lane() string {
	if h.key == "" {
		return h.id
	}
	return h.handler + ":" + h.key
}

func (f *facts) violate(lane, format string, args ...any) {
	f.found = append(f.found, fmt.Sprintf(format, args...)+"\n"+f.story(lane))
}

// order: first claims come in the order of commits.
func (f *facts) order(lane string, ids []string) {
	var unclaimed string
	var latest time.Duration
	var latestID string
	for _, id := range ids {
		at, claimed := f.first[id]
		switch {
		case !claimed:
			unclaimed = cmp.Or(unclaimed, id)
		case unclaimed != "":
			f.violate(lane, "order: %s was claimed before %s", id, unclaimed)
			return
		case at < latest:
			f.violate(lane, "order: the first claim of %s came before that of %s", id, latestID)
			return
		default:
			latest, latestID = at, id
		}
	}
}

// overtaking: whatever stands before a delivery was finished once before that is claimed.
func (f *facts) overtaking(lane string, ids []string) {
	latest, latestID := time.Duration(0), ""
	finishedBefore := make(map[string]time.Duration, len(ids))
	blocker := make(map[string]string, len(ids))
	for _, id := range ids {
		finishedBefore[id], blocker[id] = latest, latestID
		ended, there := f.ended[id]
		if !there {
			ended = endless
		}
		if ended > latest {
			latest, latestID = ended, id
		}
	}
	for _, h := range f.byLane[lane] {
		if t, known := finishedBefore[h.id]; known && t > h.returned {
			f.violate(lane, "overtaking: %s was claimed over %s", h.id, blocker[h.id])
			return
		}
	}
}

// overtakingRequeued: after a requeue has returned nothing overtakes what it put back.
func (f *facts) overtakingRequeued(lane, id string) {
	d := f.deliveries[id]
	for _, q := range f.requeued[id] {
		for _, h := range f.byLane[lane] {
			if q.outcome == acknowledged && h.called > q.ended && d.order(f.deliveries[h.id]) < 0 && h.returned < f.endedAfter(id, q.began) {
				f.violate(lane, "overtaking: %s was claimed over %s, which had been requeued", h.id, id)
				return
			}
		}
	}
}

// endedAfter is when the first call after t began that may have finished a delivery.
func (f *facts) endedAfter(id string, t time.Duration) time.Duration {
	first := endless
	for _, e := range f.byID[id] {
		if e.ends() && e.began > t {
			first = min(first, e.began)
		}
	}
	return first
}

// spans are when it was certainly held.
func (h heldClaim) spans() []timeSpan {
	all := []timeSpan{{h.returned, h.until - leaseMargin}}
	for _, e := range h.extended {
		if last := &all[len(all)-1]; e.from <= last.to {
			last.to = max(last.to, e.to-leaseMargin)
		} else {
			all = append(all, timeSpan{e.from, e.to - leaseMargin})
		}
	}
	if h.given != 0 {
		for i := range all {
			all[i].to = min(all[i].to, h.given)
		}
	}
	return all
}

// overlaps: no two heldClaim deliveries of one lane at once.
func (f *facts) overlaps(lane string, holds []heldClaim) {
	type held struct {
		timeSpan
		heldClaim
	}
	var all []held
	for _, h := range holds {
		for _, s := range h.spans() {
			if s.to > s.from {
				all = append(all, held{s, h})
			}
		}
	}
	slices.SortFunc(all, func(a, b held) int { return cmp.Compare(a.from, b.from) })
	var last held
	for _, h := range all {
		if h.from < last.to {
			f.violate(lane, "two at once: %s by %s and %s by %s, for %s", last.id, last.process, h.id, h.process, last.to-h.from)
			return
		}
		if h.to > last.to {
			last = h
		}
	}
}

// outcomes: a delivery is completed once, a token has one outcome, and what is finished
// is claimed again after a requeue only.
func (f *facts) outcomes(id string, all []finishing) {
	completed, tokens, buried := map[string]bool{}, map[string]string{}, map[string]bool{}
	for _, e := range all {
		if e.outcome != acknowledged {
			continue
		}
		if before, there := tokens[e.token]; there && before != e.what {
			f.violate(f.laneOf(id), "outcome: %s under one token: %s and %s", id, before, e.what)
		}
		tokens[e.token] = e.what
		switch e.what {
		case "complete":
			completed[e.token] = true
		case "bury":
			buried[e.token] = true
		}
		if e.what == "complete" || e.what == "bury" {
			f.claimedAfter(id, e)
		}
	}
	requeues := 0
	for _, q := range f.requeued[id] {
		if q.outcome != refused {
			requeues++
		}
	}
	if len(completed) > 1 || len(buried)+len(completed) > 1+requeues {
		f.violate(f.laneOf(id), "outcome: %s was completed %d times and buried %d times", id, len(completed), len(buried))
	}
}

func (f *facts) claimedAfter(id string, e finishing) {
	for _, h := range f.claims[id] {
		if h.called < e.ended || e.what == "bury" && f.requeuedBetween(id, e.began, h.returned) {
			continue
		}
		f.violate(f.laneOf(id), "outcome: %s was claimed after %s", id, e.what)
	}
}

func (f *facts) requeuedBetween(id string, from, to time.Duration) bool {
	return slices.ContainsFunc(f.requeued[id], func(q requeueing) bool {
		return q.outcome != refused && q.began < to && (q.outcome == unsettled || q.ended > from)
	})
}

func (f *facts) laneOf(id string) string {
	if d := f.deliveries[id]; d.key != "" {
		return d.lane()
	}
	return id
}

// published: an aborted transaction left nothing, and one that committed all of it, at
// once.
func (f *facts) published() {
	tried, again := map[string]bool{}, map[string]bool{}
	for _, p := range f.publications {
		for _, m := range p.messages {
			tried[m.ID] = true
			again[m.ID] = again[m.ID] || p.again[m.ID]
		}
	}
	for _, p := range f.publications {
		fresh := map[int]bool{}
		for _, m := range p.messages {
			commit, there := f.events[m.ID]
			if again[m.ID] {
				continue // another transaction may have stored it
			}
			fresh[commit] = true // 0: not there
			if there && p.outcome == refused {
				f.violate(m.ID, "publish: %s is stored, its transaction was aborted", m.ID)
			}
			for _, h := range m.Handlers {
				if d := f.deliveries[h+":"+m.ID]; there && d.commit != commit {
					f.violate(m.ID, "publish: %s is stored without its delivery to %s", m.ID, h)
				}
			}
		}
		if len(fresh) > 1 {
			f.violate("", "publish: parts of one transaction are stored: %v", p.messages)
		}
	}
	for id := range f.events {
		if !tried[id] {
			f.violate(id, "publish: nobody has published %s", id)
		}
	}
}

// checkEnd is for when all has come to an end: what the database holds, by status.
func checkEnd(r record, c *commits, status map[string]string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &facts{record: r, commits: c, ended: map[string]time.Duration{}}
	for _, e := range r.finishings {
		if e.ends() {
			f.ended[e.id] = e.began
		}
	}
	for id, d := range c.deliveries {
		_, ended := f.ended[id]
		switch s := status[id]; {
		case c.gone[id] && s != "":
			f.violate(d.lane(), "end: %s is stored and was deleted", id)
		case !c.gone[id] && s != "completed" && s != "dead":
			f.violate(d.lane(), "end: %s is lost, it is %q", id, s)
		case !ended:
			f.violate(d.lane(), "end: nobody has finished %s, it is %q", id, s)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(status)) {
		if _, there := c.deliveries[id]; !there {
			f.violate(id, "end: %s was never committed", id)
		}
	}
	for _, h := range r.holds {
		if d, there := c.deliveries[h.id]; !there || d.sequence != h.sequence || d.key != h.key {
			f.violate(h.lane(), "end: %s was claimed with number %d of key %q, committed was %+v", h.id, h.sequence, h.key, d)
		}
	}
	for _, p := range r.publications {
		for _, m := range p.messages {
			for _, h := range m.Handlers {
				if _, there := c.deliveries[h+":"+m.ID]; !there && p.outcome == acknowledged {
					f.violate(m.ID, "end: the publication of %s for %s was committed, and is not there", m.ID, h)
				}
			}
		}
	}
	return f.found
}

// story tells what happened to a lane, the last of it.
func (f *facts) story(lane string) string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	add := func(at time.Duration, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf("  %9.3f ", at.Seconds()) + fmt.Sprintf(format, args...)})
	}
	for _, h := range f.holds {
		if h.lane() == lane {
			add(h.returned, "claim %s #%d by %s, called %.3f, until %.3f, extended %v, token %.6s", h.id, h.sequence, h.process, h.called.Seconds(), h.until.Seconds(), h.extended, h.token)
		}
	}
	for _, e := range f.finishings {
		if f.laneOf(e.id) == lane {
			add(e.began, "%s %s, %s at %.3f, token %.6s", e.what, e.id, e.outcome, e.ended.Seconds(), e.token)
		}
	}
	for _, q := range f.requeueings {
		if f.laneOf(q.id) == lane {
			add(q.began, "requeue %s, %s at %.3f", q.id, q.outcome, q.ended.Seconds())
		}
	}
	for _, p := range f.publications {
		for _, m := range p.messages {
			for _, h := range m.Handlers {
				if m.ID == lane || h+":"+m.Key == lane {
					d := f.deliveries[h+":"+m.ID]
					add(p.began, "publish %s:%s, %s at %.3f, number %d in commit %d", h, m.ID, p.outcome, p.ended.Seconds(), d.sequence, d.commit)
				}
			}
		}
	}
	slices.SortFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var texts []string
	for _, l := range lines[max(0, len(lines)-60):] {
		texts = append(texts, l.text)
	}
	return strings.Join(texts, "\n")
}
