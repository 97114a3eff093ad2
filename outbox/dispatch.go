package outbox

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/runner"
)

// How the bus works one delivery. A subscription is the source of a runner.

const (
	finishBatch  = 100                     // deliveries in one command
	transactRoom = 2500 * time.Millisecond // of a lease, beyond a transactional run's timeout
)

var errExhausted = errors.New("attempts exhausted")

// Claim is for the runner.
func (sub *subscription) Claim(ctx context.Context, limit int) ([]*Delivery, error) {
	ds, err := sub.bus.store.Claim(ctx, ClaimOptions{Handlers: []string{sub.id}, Limit: limit, LeaseFor: sub.bus.cfg.LeaseFor})
	sub.claims.Add(int64(len(ds)))
	for _, d := range ds {
		sub.bus.observe("claimed", d, 0, nil)
	}
	return ds, err
}

// ClaimOne is not used: the bus wakes without saying what is due.
func (sub *subscription) ClaimOne(context.Context, string) (*Delivery, bool, error) {
	return nil, false, nil
}

// Extend is for the runner. What is inside its transaction is not renewed: it would
// conflict with the completion, and ends by its timeout before its lease does.
func (sub *subscription) Extend(ctx context.Context, held []*Delivery) (lost []*Delivery, err error) {
	sub.mu.Lock()
	var outside []*Delivery // copies: the worker of one may begin meanwhile
	of := make(map[*Delivery]*Delivery)
	for _, d := range held {
		if !sub.inside[d] {
			copied := &Delivery{ID: d.ID, Token: d.Token, Until: d.Until}
			outside, of[copied] = append(outside, copied), d
		}
	}
	sub.mu.Unlock()
	if len(outside) == 0 {
		return nil, nil
	}
	gone, err := sub.bus.store.extend(ctx, outside, sub.bus.cfg.LeaseFor)
	sub.mu.Lock()
	defer sub.mu.Unlock()
	for copied, d := range of {
		d.lasts(copied.Until)
	}
	for _, copied := range gone {
		lost = append(lost, of[copied])
	}
	return lost, wrapErr("extend leases", err)
}

// lasts notes the end of a lease.
func (d *Delivery) lasts(until time.Time) {
	if until.After(d.Until) {
		d.Until = until
	}
}

// Release is for the runner.
func (sub *subscription) Release(ctx context.Context, ds []*Delivery) {
	lost, err := sub.bus.store.putBackAll(ctx, ds, released())
	if err != nil {
		lost = ds
	}
	for _, d := range lost {
		sub.bus.gaveUp(d, orElse(err, leaseLost(d.ID)))
	}
}

// ID is for the runner.
func (sub *subscription) ID(d *Delivery) string { return d.ID }

// Work runs the handler and hands the delivery over.
func (sub *subscription) Work(ctx context.Context, d *Delivery, done func()) {
	if sub.exhausted(d.runs) {
		d.Attempt-- // it is not tried this time
		sub.bury(d, errExhausted, 0, done)
		return
	}
	if err := sub.begin(ctx, d); err != nil {
		sub.bus.gaveUp(d, err)
		done()
		return
	}
	start := time.Now()
	err := sub.run(ctx, d)
	took := time.Since(start)
	var lost *mongostore.LeaseLostError
	switch {
	case err == nil && sub.opts.Transactional:
		sub.bus.counted.Add(1)
		sub.bus.observe("delivered", d, took, nil)
		done()
	case err == nil:
		sub.complete(d, took, done)
	case errors.As(err, &lost) && len(lost.IDs) == 1 && lost.IDs[0] == d.ID, errors.Is(err, mongostore.ErrUnknownOutcome) && sub.opts.Transactional:
		sub.bus.gaveUp(d, err)
		done()
	case context.Cause(ctx) != nil:
		sub.breakOff(ctx, d, done)
	case runner.IsPermanent(err) || sub.exhausted(d.runs):
		sub.bury(d, err, took, done)
	default:
		sub.retry(d, err, took, done)
	}
}

func (sub *subscription) exhausted(runs int) bool {
	return sub.opts.MaxAttempts > 0 && runs >= sub.opts.MaxAttempts
}

// begin counts the run of a delivery that was claimed before: what only waited in the
// queue of a process that died must not be buried with what it died of. A first run is
// counted when it fails, so that it costs nothing.
func (sub *subscription) begin(ctx context.Context, d *Delivery) error {
	d.runs++
	if d.Attempt <= 1 || sub.opts.MaxAttempts < 0 {
		return nil
	}
	ctx, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	res, err := sub.bus.store.deliveries.UpdateOne(ctx, heldBy([]string{d.ID}, d.Token), op("$set", op("runs", int64(d.runs))))
	if err == nil && res.MatchedCount == 0 {
		err = leaseLost(d.ID)
	}
	return err
}

// run calls the handler, a transactional one together with the completion.
func (sub *subscription) run(ctx context.Context, d *Delivery) error {
	if sub.opts.Transactional {
		if err := sub.enter(ctx, d); err != nil {
			return err
		}
		defer sub.leave(d)
	}
	if sub.opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, sub.opts.Timeout)
		defer cancel()
	}
	handler := func(ctx context.Context) error {
		return runner.Handle(sub.bus.store.cfg.Logger, d.ID, func() error { return sub.handle(ctx, d) })
	}
	if !sub.opts.Transactional {
		return handler(ctx)
	}
	return sub.bus.store.Transaction(ctx, func(ctx context.Context) error {
		if err := handler(ctx); err != nil {
			return err
		}
		return sub.bus.store.Complete(ctx, d)
	})
}

// enter stops the renewal, after one more if the run could outlast the lease.
func (sub *subscription) enter(ctx context.Context, d *Delivery) error {
	sub.mu.Lock()
	until := d.Until
	sub.mu.Unlock()
	renewed := &Delivery{ID: d.ID, Token: d.Token, Until: until}
	if need := sub.opts.Timeout + transactRoom; until.Sub(sub.bus.store.now()) < need {
		if err := sub.bus.store.Extend(ctx, renewed, max(need, sub.bus.cfg.LeaseFor)); err != nil {
			return err
		}
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	d.lasts(renewed.Until)
	sub.inside[d] = true
	return nil
}

func (sub *subscription) leave(d *Delivery) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	delete(sub.inside, d)
}

// complete ends the delivery in the background, with others.
func (sub *subscription) complete(d *Delivery, took time.Duration, done func()) {
	sub.bus.finisher.Add(finishing{finish: finish{d: d, status: completed}, sub: sub, done: func(err error) {
		defer done()
		if err != nil {
			sub.bus.gaveUp(d, err)
			return
		}
		sub.bus.counted.Add(1)
		sub.bus.observe("delivered", d, took, nil)
	}})
}

func (sub *subscription) bury(d *Delivery, cause error, took time.Duration, done func()) {
	sub.bus.finisher.Add(finishing{finish: finish{d: d, status: dead, cause: causeText(cause)}, sub: sub, done: func(err error) {
		defer done()
		if err != nil {
			sub.bus.gaveUp(d, err)
			return
		}
		sub.bus.store.cfg.Logger.Warn("outbox: a delivery is buried", "delivery", d.ID, "attempt", d.Attempt, "error", cause)
		sub.bus.observe("buried", d, took, cause)
	}})
}

func (sub *subscription) retry(d *Delivery, cause error, took time.Duration, done func()) {
	defer done()
	logger := sub.bus.store.cfg.Logger
	after := runner.Pause(logger, sub.opts.Backoff, d.Attempt, cause)
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	if err := sub.bus.store.retry(ctx, d, after, cause, bson.E{Key: "runs", Value: int64(d.runs)}); err != nil {
		sub.bus.gaveUp(d, err)
		return
	}
	logger.Info("outbox: a delivery failed", "delivery", d.ID, "attempt", d.Attempt, "again_in", after, "error", cause)
	sub.bus.observe("retried", d, took, cause)
}

// breakOff ends the work on a lease that cannot be trusted any more, or that has to stop:
// as if never claimed, if the token still holds.
func (sub *subscription) breakOff(ctx context.Context, d *Delivery, done func()) {
	defer done()
	if !errors.Is(context.Cause(ctx), runner.ErrStopped) {
		sub.bus.gaveUp(d, mongostore.ErrLeaseLost)
	}
	ctx, cancel := patient(ctx, settleFor)
	defer cancel()
	_, _ = sub.bus.store.putBackAll(ctx, []*Delivery{d}, released()) // it runs out by itself
}

// finishing is one delivery that the bus ends.
type finishing struct {
	finish
	sub  *subscription
	done func(err error)
}

// sendFinished ends many in one command, and wakes those whose next is due now.
func (b *Bus) sendFinished(batch []finishing) {
	fs := make([]finish, 0, len(batch))
	for _, one := range batch {
		fs = append(fs, one.finish)
	}
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout) // all of it: a stop waits for it
	defer cancel()
	err := b.store.finish(ctx, fs)
	var lost *mongostore.LeaseLostError
	gone := map[string]bool{}
	if errors.As(err, &lost) {
		for _, id := range lost.IDs {
			gone[id] = true
		}
		err = nil
	}
	woken := map[*subscription]bool{}
	for _, one := range batch {
		switch {
		case err != nil:
			one.done(wrapErr("finish deliveries", err))
		case gone[one.d.ID]:
			one.done(leaseLost(one.d.ID))
		default:
			one.done(nil)
		}
		if one.d.next != "" {
			woken[one.sub] = true
		}
	}
	for sub := range woken {
		sub.runner.Wake("")
	}
}

// gaveUp is the end of a lease that could not be handed over: it runs out by itself.
func (b *Bus) gaveUp(d *Delivery, err error) {
	b.store.cfg.Logger.Warn("outbox: a lease is given up", "delivery", d.ID, "error", err)
	b.observe("lease_lost", d, 0, err)
}

// observe tells Observe, which is the user's code.
func (b *Bus) observe(what string, d *Delivery, took time.Duration, err error) {
	event := mongostore.RelayEvent{What: what, ID: d.ID, Handler: d.Handler, Key: d.Message.Key, Attempt: d.Attempt, Duration: took, Err: err}
	runner.Guarded(b.store.cfg.Logger, "BusConfig.Observe", func() { b.cfg.Observe(event) })
}
