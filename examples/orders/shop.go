package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/examples/internal/stage"
)

const (
	tick       = 100 * time.Millisecond
	openAtOnce = 100              // orders open at one time
	stallTime  = 30 * time.Second // without an order finishing, the run has failed
)

// shop runs the demo: it takes orders as fast as they are finished, and kills
// workers on the way.
type shop struct {
	cfg    config
	engine *Engine
	fleet  *stage.Fleet[Counts]
	screen *stage.Screen
	rng    *rand.Rand

	started, finished, kills int
	moved                    time.Time // when finished last grew
}

// openAccounts makes the accounts that the orders will charge.
func (s *shop) openAccounts(ctx context.Context) error {
	return parallel(accounts(s.cfg.orders), func(n int) error {
		id := accountID(n)
		_, err := s.engine.Start(ctx, id, "open:"+id, Event{Name: "open", Amount: openingBalance})
		return err
	})
}

// run returns when all orders have finished.
func (s *shop) run(ctx context.Context) error {
	s.moved = time.Now()
	for {
		open, err := s.open(ctx)
		if err != nil {
			return err
		}
		if before := s.finished; s.started-len(open) > before {
			s.finished, s.moved = s.started-len(open), time.Now()
		}
		s.show(open)
		if err := s.killSome(); err != nil {
			return err
		}
		if s.finished == s.cfg.orders {
			return nil
		}
		if time.Since(s.moved) > stallTime {
			return stalled(open)
		}
		if err := s.start(ctx, openAtOnce-len(open)); err != nil {
			return err
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// open lists the orders that have not finished.
func (s *shop) open(ctx context.Context) ([]mongostore.Summary, error) {
	var open []mongostore.Summary
	for row, err := range s.engine.Store.All(ctx, mongostore.ListOptions{DefinitionID: "order", Statuses: []string{active}}) {
		if err != nil {
			return nil, err
		}
		open = append(open, row)
	}
	return open, nil
}

// start places up to n more orders.
func (s *shop) start(ctx context.Context, n int) error {
	first := s.started
	n = min(n, s.cfg.orders-first)
	err := parallel(n, func(i int) error {
		id := orderID(first + i)
		plan := planOrder(s.cfg.seed, first+i, s.cfg.orders, s.cfg.payWait)
		_, err := s.engine.Start(ctx, id, "start:"+id, Event{Name: "start", Order: id, Plan: &plan})
		return err
	})
	s.started += max(0, n)
	return err
}

// killSome kills a random worker each time that another part of the orders is done.
func (s *shop) killSome() error {
	for s.kills < s.cfg.kills && s.finished >= (s.kills+1)*s.cfg.orders/(s.cfg.kills+1) {
		slot := s.rng.IntN(s.cfg.workers)
		pid, err := s.fleet.Kill(slot)
		if err != nil {
			return err
		}
		s.kills++
		s.screen.Line("  kill %d of %d: worker %d (pid %d) with SIGKILL after %d orders, and another in its place", s.kills, s.cfg.kills, slot, pid, s.finished)
	}
	return nil
}

func (s *shop) show(open []mongostore.Summary) {
	at := map[string]int{}
	for _, row := range open {
		at[row.ActivePath]++
	}
	s.screen.Progress("  %d/%d done · paying %d, packing %d, shipping %d · %d deliveries",
		s.finished, s.cfg.orders, at[nodePay], at[nodePack], at[nodeShip], s.fleet.Counts().Deliveries)
}

// wait lasts a tick.
func (s *shop) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.fleet.Broken():
		return err
	case <-time.After(tick):
		return nil
	}
}

func stalled(open []mongostore.Summary) error {
	err := fmt.Errorf("no order has finished for %v, %d are open", stallTime, len(open))
	for _, row := range open[:min(5, len(open))] {
		err = errors.Join(err, fmt.Errorf("  %s at %s, version %d, since %s", row.ID, row.ActivePath, row.Version, row.UpdatedAt.Format(time.TimeOnly)))
	}
	return err
}

// settle waits until nothing is pending: the last postings and voids are under way
// when the last order has finished.
func (s *shop) settle(ctx context.Context) error {
	for until := time.Now().Add(stallTime); ; {
		p, err := sweep(ctx, s.engine.Store, 1)
		if err != nil {
			return err
		}
		if p == (Pending{}) {
			return nil
		}
		if time.Now().After(until) {
			return nil // the check tells what is left
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// parallel runs do(0) to do(n-1), a few at a time, and joins their errors.
func parallel(n int, do func(i int) error) error {
	errs := make([]error, max(0, n))
	free := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range errs {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			errs[i] = do(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
