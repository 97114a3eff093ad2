package outbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ClaimOptions say what to claim and for how long.
type ClaimOptions struct {
	// Handlers are whose deliveries are claimed; at least one.
	Handlers []string
	// Limit is the most deliveries. 0 is 10; negative, and more than 10,000, is refused.
	Limit int
	// LeaseFor is how long the leases last without Extend. 0 is 30 s; negative, and more
	// than a year, is refused.
	LeaseFor time.Duration
}

const (
	defaultClaim = 10
	mostClaimed  = 10_000
	leaseFor     = 30 * time.Second
	minLeaseFor  = 100 * time.Millisecond // there must be time to renew it
	maxLeaseFor  = 365 * 24 * time.Hour
	claimPages   = 8                      // that give nothing
	claimLooks   = 1000                   // deliveries that one page looks at, at most
	lockPatience = 250 * time.Millisecond // with deliveries that an open transaction may have locked
	lockPause    = 2 * time.Second        // until they are tried again
)

// Claim leases deliveries that are due, the longest due first as far as no other claimer
// is faster; none is no error. Where much is due, one that another process, or a session
// of the caller's own, makes due before all of it may come a second after its turn. Of one
// handler and key it never takes two, nor one behind an unfinished one, nor any while
// another is under a live lease: so each handler gets the events of a key one after the
// other, in the order of their commits. What waits costs nothing. Four commands in the
// steady state, two of them side by side, and one when nothing is due; once a second it
// first looks for lanes that a crash has left behind. A delivery that cannot be read is
// buried at once. With an error it gives none; what was leased then comes back when its
// lease ends.
// Returns ErrInvalid if opts make no sense or ctx has an open transaction.
func (s *Store) Claim(ctx context.Context, opts ClaimOptions) ([]*Delivery, error) {
	if err := opts.valid(); err != nil {
		return nil, err
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return nil, err
	}
	s.repairIfDue(ctx)
	opts.Limit, opts.LeaseFor = orElse(opts.Limit, defaultClaim), orElse(opts.LeaseFor, leaseFor)
	c := &claim{Store: s, opts: opts, taken: map[string]bool{}}
	err = c.run(ctx)
	if err != nil && len(c.out) > 0 { // they are leased: who gets an error would let them wait
		c.cfg.Logger.Warn("outbox: a claim ended early", "claimed", len(c.out), "error", err)
		err = nil
	}
	return c.out, wrapErr("claim", err)
}

func (o ClaimOptions) valid() error {
	switch {
	case o.Limit < 0:
		return invalid("ClaimOptions.Limit", "is negative")
	case o.Limit > mostClaimed:
		return invalid("ClaimOptions.Limit", fmt.Sprintf("is above %d", mostClaimed))
	case o.LeaseFor < 0:
		return invalid("ClaimOptions.LeaseFor", "is negative")
	case o.LeaseFor > maxLeaseFor:
		return invalid("ClaimOptions.LeaseFor", "is above a year")
	}
	return validHandlers("ClaimOptions.Handlers", o.Handlers)
}

// claim is one call.
type claim struct {
	*Store
	opts  ClaimOptions
	out   []*Delivery
	taken map[string]bool // lanes that are leased by this call, or known to be blocked
}

// page is what one look at what is due has given.
type page struct {
	whole bool // it was not cut by its size
	stay  int  // those that are due still: blocked
	lost  int  // those that others took
}

// run claims page after page while blocked deliveries use up the limit. Claimers that
// meet at the front start somewhere behind it the next time.
func (c *claim) run(ctx context.Context) error {
	skip := 0
	if c.contended.Swap(false) {
		skip = c.opts.Limit * mrand.IntN(4)
	}
	for empty, size := 0, 0; empty < claimPages; {
		want := min(c.opts.Limit-len(c.out), claimLooks)
		size = max(size, want)
		before := len(c.out)
		p, err := c.page(ctx, skip, size, want)
		if err != nil {
			return err
		}
		if len(c.out) == before { // what stands in front may be blocked for long
			empty, size = empty+1, min(4*size, claimLooks)
		}
		if p.lost > 0 {
			c.contended.Store(true)
		}
		more := want == claimLooks && len(c.out) > before // of a limit that is larger than a page
		switch {
		case len(c.out) == c.opts.Limit:
			return nil
		case p.whole && skip > 0:
			skip = 0 // that was the end: what is left is in front
		case p.whole, p.stay == 0 && len(c.out) > 0 && !more:
			return nil
		default:
			skip += p.stay
		}
	}
	return nil
}

// page leases first and looks second: of two that overlap, the later one sees the other.
func (c *claim) page(ctx context.Context, skip, size, want int) (page, error) {
	now := c.now()
	candidates, p, leave, err := c.candidates(ctx, now, skip, size, want)
	if err != nil || len(candidates) == 0 {
		return p, err
	}
	defer leave()
	events := c.startEvents(ctx, candidates)
	token, until := rand.Text(), c.now().Add(c.opts.LeaseFor).Truncate(time.Millisecond)
	leaseErr := c.lease(ctx, candidates, now, until, token)
	leave() // the next one does not find these any more
	var held, blocked []held
	if err = leaseErr; err == nil || isOpen(err) {
		held, blocked, err = c.secondLook(ctx, candidates, now, token)
	}
	if err == nil && leaseErr != nil {
		held, err = c.durable(ctx, held, leaseErr)
	}
	found, eventsErr := events()
	if err != nil {
		return p, err
	}
	p.lost = len(candidates) - len(held) - len(blocked)
	p.stay += len(blocked)
	if err := c.giveWay(ctx, blocked, token, now); err != nil {
		return p, err
	}
	if eventsErr != nil && len(held) > 0 {
		return p, eventsErr
	}
	return p, c.keep(ctx, held, found)
}

// candidates chooses at most want of what is due, past what other claims of this process
// have chosen, who are told when leave is called.
func (c *claim) candidates(ctx context.Context, now time.Time, skip, size, want int) (_ []stored, p page, leave func(), err error) {
	turn, err := c.turns.take(ctx, c.opts.Handlers)
	if err != nil {
		return nil, p, nil, err
	}
	defer turn.end()
	others := turn.others() // before the look, which may still see what they lease meanwhile
	size += len(others)
	mark, from := c.front.look(c.opts.Handlers)
	due, err := c.due(ctx, mark, from, now, skip, size)
	if err != nil {
		return nil, p, nil, err
	}
	p.whole = len(due) < size
	due = slices.DeleteFunc(due, func(d stored) bool { return others[d.id] })
	chosen, err := c.choose(ctx, due, now)
	if err != nil {
		return nil, p, nil, err
	}
	p.stay = len(due) - len(chosen)
	if len(chosen) > want {
		chosen, p.whole = chosen[:want], false
	}
	mark.took(len(chosen))
	return chosen, p, turn.choose(chosen), nil
}

// readMissing reads again the events that were not there beside the lease: one can have
// been purged and published anew between.
func (c *claim) readMissing(ctx context.Context, all []held, events map[string]bson.Raw) error {
	var ids []string
	for _, h := range all {
		if events[h.now.eventID] == nil {
			ids = append(ids, h.now.eventID)
		}
	}
	late, err := c.eventsOf(ctx, ids)
	maps.Copy(events, late)
	return err
}

// startEvents reads the events of candidates beside their lease. What it returns waits.
func (c *claim) startEvents(ctx context.Context, candidates []stored) func() (map[string]bson.Raw, error) {
	ids := make([]string, 0, len(candidates))
	for _, d := range candidates {
		ids = append(ids, d.eventID)
	}
	var events map[string]bson.Raw
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		events, err = c.eventsOf(ctx, ids)
	}()
	return func() (map[string]bson.Raw, error) {
		<-ended
		return events, err
	}
}

// due reads what looks due, the longest due first, over all handlers.
func (c *claim) due(ctx context.Context, mark *mark, from, now time.Time, skip, want int) ([]stored, error) {
	due, err := c.dueFrom(ctx, from, now, skip, want+1)
	if err == nil && len(due) < want && !from.IsZero() { // that was the end: there may be more before
		due, err = c.dueFrom(ctx, time.Time{}, now, skip, want+1)
	}
	switch {
	case err != nil || len(due) <= want: // nothing is left after these
		mark.forget()
	case skip == 0:
		mark.seen(due[0].dueAt, now)
	}
	return due[:min(len(due), want)], err
}

// dueFrom is due without what was due before from; zero: all.
func (c *claim) dueFrom(ctx context.Context, from, now time.Time, skip, want int) ([]stored, error) {
	when := op("$lte", now)
	if !from.IsZero() {
		when = append(when, bson.E{Key: "$gte", Value: from})
	}
	docs, err := c.find(ctx, c.deliveries,
		bson.D{{Key: "handler", Value: op("$in", c.opts.Handlers)}, {Key: "due_at", Value: when}},
		options.Find().SetSort(bson.D{{Key: "due_at", Value: 1}, {Key: "_id", Value: 1}}).
			SetSkip(int64(skip)).SetLimit(int64(want)).SetBatchSize(int32(want+1)))
	due := make([]stored, 0, len(docs))
	for _, doc := range docs {
		due = append(due, readStored(doc))
	}
	return due, err
}

// choose leaves of each lane the lowest, of those that were not taken yet. Where a lease
// has run out, or an operator has put something back, the lanes are looked at before: not
// for safety, but because such a one may stay blocked for long. What is damaged is buried.
func (c *claim) choose(ctx context.Context, due []stored, now time.Time) ([]stored, error) {
	lowest := make(map[string]stored, len(due))
	doubtful := make(map[string]bool)
	for _, d := range due {
		if d.damaged != "" {
			if err := c.shelve(ctx, d); err != nil {
				return nil, err
			}
			continue
		}
		at := orElse(d.lane, "\x00"+d.id) // without a key: alone
		if first, there := lowest[at]; c.taken[at] || c.passesBy(d) || there && first.sequence < d.sequence {
			continue
		}
		lowest[at] = d
		if d.lane != "" && (d.status == processing || d.requeues > 0) {
			doubtful[d.lane] = true
		}
	}
	lanes := make([]string, 0, len(doubtful))
	for lane := range doubtful {
		lanes = append(lanes, lane)
	}
	views, _, err := c.look(ctx, lanes, nil, "")
	if err != nil {
		return nil, err
	}
	var chosen []stored
	for _, d := range due {
		at := orElse(d.lane, "\x00"+d.id)
		if lowest[at].id != d.id || d.damaged != "" {
			continue
		}
		if v := views[d.lane]; v != nil && v.blocks(d, now) != free {
			continue
		}
		chosen = append(chosen, d)
	}
	return chosen, nil
}

// lease takes candidates. Leases that have run out are taken apart, and with little
// patience: a holder that died inside its transaction keeps its delivery locked until
// the server ends that, and nobody else must wait for it.
func (c *claim) lease(ctx context.Context, candidates []stored, now, until time.Time, token string) error {
	var fresh, expired []stored
	for _, d := range candidates {
		if d.status == processing {
			expired = append(expired, d)
		} else {
			fresh = append(fresh, d)
		}
	}
	if err := c.take(ctx, fresh, now, until, token); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	err := c.take(short, expired, now, until, token)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		c.locked.Store(time.Now().Add(lockPause).UnixNano())
	}
	return err // an open one: the look tells what is held
}

// passesBy is whether an expired lease is left for later, because one was locked just now.
func (c *claim) passesBy(d stored) bool {
	return d.status == processing && time.Now().UnixNano() < c.locked.Load()
}

// take leases those that are still due: a live lease is due later, a finished one never.
func (c *claim) take(ctx context.Context, candidates []stored, now, until time.Time, token string) error {
	if len(candidates) == 0 {
		return nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := c.deliveries.UpdateMany(ctx,
		bson.D{{Key: "_id", Value: op("$in", idsOf(candidates))}, {Key: "due_at", Value: op("$lte", now)}},
		bson.D{
			{Key: "$set", Value: bson.D{{Key: "status", Value: processing}, {Key: "token", Value: token}, {Key: "due_at", Value: until}}},
			{Key: "$inc", Value: op("attempts", int64(1))},
		})
	return err
}

// keep gives out what is held, with its event.
func (c *claim) keep(ctx context.Context, all []held, events map[string]bson.Raw) error {
	if err := c.readMissing(ctx, all, events); err != nil {
		return err
	}
	for _, h := range all {
		d := h.now.delivery()
		d.looked = true
		if h.view != nil {
			d.next, d.nextDue = h.view.next, h.view.due
		}
		if damage := d.event(events[h.now.eventID]); damage != "" {
			c.cfg.Logger.Error("outbox: a delivery is buried, it cannot be read", "delivery", d.ID, "reason", damage)
			if err := c.finish(ctx, []finish{{d: d, status: dead, cause: "damaged: " + damage}}); err != nil {
				return err
			}
			continue
		}
		c.out = append(c.out, d)
	}
	return nil
}

// shelve buries a delivery that cannot be read, whatever its fields hold.
func (s *Store) shelve(ctx context.Context, d stored) error {
	s.cfg.Logger.Error("outbox: a delivery is buried, it cannot be read", "delivery", d.idValue.String(), "reason", d.damaged)
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := s.deliveries.UpdateOne(ctx,
		bson.D{{Key: "_id", Value: d.idValue}, {Key: "due_at", Value: op("$lte", s.now())}},
		bson.D{
			{Key: "$set", Value: bson.D{
				{Key: "status", Value: dead}, {Key: "finished_at", Value: s.now()}, {Key: "last_error", Value: "damaged: " + d.damaged},
			}},
			{Key: "$unset", Value: bson.D{
				{Key: "due_at", Value: ""}, {Key: "active_lane", Value: ""}, {Key: "waiting_lane", Value: ""}, {Key: "suspect_since", Value: ""},
			}},
		})
	if err != nil {
		return err
	}
	return s.promoteHeads(ctx, []string{d.lane, laneOf(d.handler, d.key)}) // which of them is damaged is not known
}

func idsOf(all []stored) []string {
	ids := make([]string, 0, len(all))
	for _, d := range all {
		ids = append(ids, d.id)
	}
	return ids
}
