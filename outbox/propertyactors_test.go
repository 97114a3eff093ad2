package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

var errOnPurpose = errors.New("aborted on purpose")

// publisher publishes until it dies.
func publisher(p *process) {
	p.arm(someFate(p.rnd, 100))
	if p.chance(40) {
		p.arm(someFate(p.rnd, 10, "commitTransaction", "insert", "aggregate", "find"))
	}
	for p.ctx.Err() == nil {
		p.publish()
		p.pause(50*time.Millisecond, 500*time.Millisecond)
	}
}

// publish runs one transaction of a random kind.
func (p *process) publish() {
	msgs, again := p.messages()
	before, after, aborts := time.Duration(0), time.Duration(0), p.chance(10)
	switch slow := time.Duration(p.rnd.IntN(1000)) * time.Millisecond; p.rnd.IntN(6) {
	case 0:
		before = slow
	case 1:
		after = slow
	}
	parts := [][]outbox.Message{msgs}
	if n := p.rnd.IntN(2 * len(msgs)); n > 0 && n < len(msgs) {
		parts = [][]outbox.Message{msgs[:n], msgs[n:]}
	}
	ctx, cancel := context.WithTimeout(p.ctx, publishWithin)
	defer cancel()
	orders := p.client.Database(p.database).Collection("orders")
	work := func(ctx context.Context) error {
		if before > 0 { // the write opens the snapshot
			if _, err := orders.InsertOne(ctx, bson.D{{Key: "event", Value: msgs[0].ID}}); err != nil {
				return err
			}
			restFor(ctx, before)
		}
		for _, part := range parts {
			if err := p.store.Append(ctx, part...); err != nil {
				return err
			}
		}
		restFor(ctx, after)
		if aborts {
			return errOnPurpose
		}
		return nil
	}
	run := p.store.Transaction
	if p.chance(40) {
		run = p.ownTransaction
	}
	published := p.h.publishes(msgs, again)
	switch err := run(ctx, work); {
	case err == nil:
		published(acknowledged)
	case errors.Is(err, mongostore.ErrUnknownOutcome):
		p.met("publish", errors.New("unknown outcome"))
	default:
		published(refused)
		if !p.isDead() && !errors.Is(err, errOnPurpose) {
			p.met("publish", err)
		}
	}
}

// messages are some new events of mostly one key, and now and then one that was
// published already, with the handlers that it had, or more.
func (p *process) messages() (msgs []outbox.Message, again map[string]bool) {
	again = map[string]bool{}
	if p.chance(10) {
		if recent := p.h.recent(repeatedWithin); len(recent) > 0 {
			m := recent[p.rnd.IntN(len(recent))]
			if p.chance(50) {
				m.Handlers = slices.Clone(propertyHandlers)
			}
			msgs, again[m.ID] = append(msgs, m), true
		}
	}
	n, key := 1, p.key()
	if p.chance(55) {
		n = 2 + p.rnd.IntN(4)
	}
	for range n {
		if p.chance(5) {
			key = p.key()
		}
		m := outbox.Message{
			ID: fmt.Sprintf("e%d", p.propertyWorld.events.Add(1)), Type: "happened", Key: key,
			Payload: map[string]any{"by": p.name}, Handlers: p.handlers(70),
		}
		if p.chance(7) {
			m.NotBefore = time.Now().Add(time.Duration(p.rnd.IntN(800)) * time.Millisecond)
		}
		msgs = append(msgs, m)
	}
	return msgs, again
}

// ownTransaction is what a caller writes who has a session already.
func (p *process) ownTransaction(ctx context.Context, work func(ctx context.Context) error) error {
	sess, err := p.client.StartSession()
	if err != nil {
		return err
	}
	defer sess.EndSession(context.WithoutCancel(ctx))
	for {
		err := p.ownAttempt(ctx, sess, work)
		var labeled mongo.LabeledError
		if err == nil || ctx.Err() != nil || !errors.As(err, &labeled) || !labeled.HasErrorLabel("TransientTransactionError") {
			return err
		}
		p.pause(time.Millisecond, 30*time.Millisecond)
	}
}

func (p *process) ownAttempt(ctx context.Context, sess *mongo.Session, work func(ctx context.Context) error) error {
	opts := options.Transaction() // the client's defaults, or these
	if p.chance(50) {
		opts.SetReadConcern(readconcern.Snapshot())
	}
	if err := sess.StartTransaction(opts); err != nil {
		return err
	}
	if err := work(mongo.NewSessionContext(ctx, sess)); err != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = sess.AbortTransaction(ending) // the server would do it in the end
		return err
	}
	err := sess.CommitTransaction(ctx)
	var labeled mongo.LabeledError
	if err != nil && (!errors.As(err, &labeled) || !labeled.HasErrorLabel("TransientTransactionError")) {
		return fmt.Errorf("%w: %w", mongostore.ErrUnknownOutcome, err)
	}
	return err
}

// mortalClaimer is a claimer that dies in its time of the cycle, often while it finishes.
func mortalClaimer(p *process) {
	rnd := rand.New(rand.NewPCG(p.rnd.Uint64(), 0)) // the other one is the claimer's
	p.wg.Go(func() {
		for p.ctx.Err() == nil {
			at := claimersDie + time.Duration(rnd.Int64N(int64(claimersDying)))
			restFor(p.ctx, p.untilCycle(0, at))
			p.arm(someFate(rnd, 3, "update", "update", "update", "aggregate", ""))
			restFor(p.ctx, claimersDying)
			p.arm(fate{}) // too late for this cycle
			restFor(p.ctx, p.untilCycle(1, 0))
		}
	})
	claimer(p)
}

// claimer claims and does something with what it gets, until it dies.
func claimer(p *process) {
	for p.ctx.Err() == nil {
		called := p.h.now()
		ds, err := p.store.Claim(p.ctx, outbox.ClaimOptions{
			Handlers: p.handlers(60), Limit: 1 + p.rnd.IntN(10),
			LeaseFor: time.Duration(300+p.rnd.IntN(500)) * time.Millisecond,
		})
		if err != nil {
			if p.ctx.Err() == nil {
				p.met("claim", err)
			}
			p.pause(0, 20*time.Millisecond)
			continue
		}
		p.claims.Add(int64(len(ds)))
		holds := p.h.claimed(p.name, called, ds)
		p.pause(0, 40*time.Millisecond)
		for len(ds) > 0 && p.ctx.Err() == nil {
			n := 1 + p.rnd.IntN(len(ds))
			p.handle(ds[:n], holds[:n])
			ds, holds = ds[n:], holds[n:]
		}
	}
}

// handle ends what it holds in one way or another, or does not.
func (p *process) handle(ds []*outbox.Delivery, holds []*heldClaim) {
	switch n := p.rnd.IntN(100); {
	case n < 50:
		p.complete(ds, holds)
	case n < 65:
		p.completeInside(ds, holds)
	case n < 90:
		for i := range ds {
			p.handleOne(ds[i], holds[i])
		}
	case n < 96:
		p.pause(200*time.Millisecond, 1200*time.Millisecond) // past the lease, mostly
		p.complete(ds, holds)
	}
}

func (p *process) handleOne(d *outbox.Delivery, l *heldClaim) {
	cause := errors.New("on purpose")
	switch p.rnd.IntN(4) {
	case 0:
		p.lost("retry", p.ending("retry", l, func() error {
			return p.store.Retry(p.ctx, d, time.Duration(p.rnd.IntN(300))*time.Millisecond, cause)
		}), l)
	case 1:
		p.lost("release", p.ending("release", l, func() error { return p.store.Release(p.ctx, d) }), l)
	case 2:
		p.lost("bury", p.ending("bury", l, func() error { return p.store.Bury(p.ctx, d, cause) }), l)
	case 3:
		p.extend(d, l)
		p.pause(0, 100*time.Millisecond)
		p.complete([]*outbox.Delivery{d}, []*heldClaim{l})
	}
}

func (p *process) extend(d *outbox.Delivery, l *heldClaim) {
	err := p.store.Extend(p.ctx, d, time.Duration(300+p.rnd.IntN(500))*time.Millisecond)
	if err == nil {
		p.h.extended(l, d.Until)
	}
	p.lost("extend", err, l)
}

// lost complains if a lease that has not run out was lost. A requeue may end one: of the
// same delivery after a burial, of one before it between two looks.
func (p *process) lost(what string, err error, holds ...*heldClaim) {
	if err == nil {
		return
	}
	now := p.h.now()
	var lost *mongostore.LeaseLostError
	switch {
	case errors.As(err, &lost):
		for _, l := range holds {
			if slices.Contains(lost.IDs, l.id) && now < p.h.end(l)-20*time.Millisecond && !p.h.requeuedSince(l) {
				p.h.violate("lost: %s of %s, claimed at %s until %s, was refused at %s: %s", what, l.id, l.returned, p.h.end(l), now, err.Error())
			}
		}
	case p.ctx.Err() == nil:
		p.met(what, err)
	}
}

// ending calls what may end a lease.
func (p *process) ending(what string, l *heldClaim, call func() error) error {
	ended := p.h.finishes(what, l)
	err := call()
	switch {
	case err == nil:
		ended(acknowledged)
	case errors.Is(err, mongostore.ErrLeaseLost) && what != "bury": // a burial may be lost after a requeue
		ended(refused)
	}
	return err
}

// complete completes all at once, some of them from their id and token alone.
func (p *process) complete(ds []*outbox.Delivery, holds []*heldClaim) {
	if p.chance(15) {
		ds = slices.Clone(ds)
		for i, d := range ds {
			ds[i] = &outbox.Delivery{ID: d.ID, Token: d.Token}
		}
	}
	p.lost("complete", p.completes(holds, func() error { return p.store.Complete(p.ctx, ds...) }), holds...)
	if p.chance(5) {
		p.afterwards(ds[0], holds[0])
	}
}

// completes takes down how a completion of several ends.
func (p *process) completes(holds []*heldClaim, call func() error) error {
	ended := p.h.finishes("complete", holds...)
	err := call()
	var lost *mongostore.LeaseLostError
	switch {
	case err == nil:
		ended(acknowledged)
	case errors.As(err, &lost):
		ended(acknowledged, lost.IDs...)
	}
	return err
}

// afterwards uses a token again: only the same is no error, and has no effect.
func (p *process) afterwards(d *outbox.Delivery, l *heldClaim) {
	what := []string{"complete", "retry", "release", "bury"}[p.rnd.IntN(4)]
	_ = p.ending(what, l, func() error { // the checker judges what is acknowledged
		switch what {
		case "complete":
			return p.store.Complete(p.ctx, d)
		case "retry":
			return p.store.Retry(p.ctx, d, 0, nil)
		case "release":
			return p.store.Release(p.ctx, d)
		}
		return p.store.Bury(p.ctx, d, nil)
	})
}

// completeInside completes in a transaction, which may be slow, abort, and publish.
func (p *process) completeInside(ds []*outbox.Delivery, holds []*heldClaim) {
	aborts, slow := p.chance(15), time.Duration(0)
	if p.chance(50) {
		slow = time.Duration(p.rnd.IntN(150)) * time.Millisecond
	}
	var msgs []outbox.Message
	published := func(outcome) {}
	if p.chance(20) {
		var again map[string]bool
		msgs, again = p.messages()
		published = p.h.publishes(msgs, again)
	}
	run := p.store.Transaction
	if p.chance(30) {
		run = p.ownTransaction
	}
	ctx, cancel := context.WithTimeout(p.ctx, publishWithin)
	defer cancel()
	ended := p.h.finishes("complete", holds...)
	err := run(ctx, func(ctx context.Context) error {
		if err := p.store.Complete(ctx, ds...); err != nil {
			return err
		}
		if len(msgs) > 0 {
			if err := p.store.Append(ctx, msgs...); err != nil {
				return err
			}
		}
		restFor(ctx, slow)
		if aborts {
			return errOnPurpose
		}
		return nil
	})
	switch {
	case err == nil:
		ended(acknowledged)
		published(acknowledged)
	case !errors.Is(err, mongostore.ErrUnknownOutcome):
		ended(refused)
		published(refused)
	}
	if !errors.Is(err, errOnPurpose) {
		p.lost("complete inside", err, holds...)
	}
}

// requeuer puts back dead letters until it dies.
func requeuer(p *process) {
	p.arm(someFate(p.rnd, 60, "find", "update", "aggregate"))
	for p.ctx.Err() == nil {
		page, err := p.store.List(p.ctx, outbox.ListOptions{Status: "dead", Limit: 50})
		if err == nil && len(page.Items) > 0 {
			p.requeueOne(page.Items[p.rnd.IntN(len(page.Items))].ID)
		}
		p.pause(20*time.Millisecond, 150*time.Millisecond)
	}
}

func (p *process) requeueOne(id string) {
	requeued := p.h.requeues(id)
	n, err := p.store.Requeue(p.ctx, id)
	switch {
	case n == 1:
		requeued(acknowledged)
		p.requeues.Add(1)
	case err == nil:
		requeued(refused)
	}
	if p.ctx.Err() == nil {
		p.met("requeue", err)
	}
}

// purger deletes what was finished some time ago until it dies.
func purger(p *process) {
	p.arm(someFate(p.rnd, 150))
	for p.ctx.Err() == nil {
		before := time.Now().Add(-purgedAfter)
		n, err := p.store.Purge(p.ctx, outbox.PurgeOptions{CompletedBefore: before, DeadBefore: before, Batch: 1 + p.rnd.IntN(60)})
		p.purged.Add(n)
		if p.ctx.Err() == nil {
			p.met("purge", err)
		}
		p.pause(20*time.Millisecond, 400*time.Millisecond)
	}
}
