package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// side is one of the things that a measure compares: ours, the floor, the seed.
type side struct {
	name   string
	before func(ctx context.Context) error // off the clock, before each segment
	op     func(ctx context.Context, worker, i int) error
	timed  func(ctx context.Context, i int) (time.Duration, error) // in place of op: tells its own time
	probe  func(ctx context.Context) (float64, error)              // in place of a segment: gives the value
}

// measure runs its sides in turn: one short segment of each makes a pair, and
// every other pair runs in reverse order, so that a noisy machine hurts all sides
// alike.
type measure struct {
	workers int
	ops     int // of one segment, shared by the workers
	pairs   int
	sides   []side
	value   func(segment) float64
}

// segment is one run of one side.
type segment struct {
	elapsed   time.Duration
	latencies []time.Duration
	mallocs   uint64
}

// samples is what a side showed: a value for each pair, and every latency.
type samples struct {
	values    []float64
	latencies []time.Duration
}

func (s samples) p99() float64 { return micros(quantile(s.latencies, 0.99)) }

// warmUps is how many pairs run before those that count.
const warmUps = 1

func (m measure) run(ctx context.Context) (map[string]*samples, error) {
	got := map[string]*samples{}
	order := slices.Clone(m.sides)
	for pair := -warmUps; pair < m.pairs; pair++ {
		for _, s := range order {
			value, latencies, err := m.turn(ctx, s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			if pair < 0 {
				continue
			}
			if got[s.name] == nil {
				got[s.name] = &samples{}
			}
			got[s.name].values = append(got[s.name].values, value)
			got[s.name].latencies = append(got[s.name].latencies, latencies...)
		}
		slices.Reverse(order)
	}
	return got, nil
}

// turn is one side's part of a pair.
func (m measure) turn(ctx context.Context, s side) (value float64, latencies []time.Duration, err error) {
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return 0, nil, err
		}
	}
	if s.probe != nil {
		value, err = s.probe(ctx)
		return value, nil, err
	}
	seg, err := m.segment(ctx, s)
	if err != nil {
		return 0, nil, err
	}
	return m.value(seg), seg.latencies, nil
}

func (m measure) segment(ctx context.Context, s side) (segment, error) {
	latencies := make([]time.Duration, m.ops)
	var before, after runtime.MemStats
	runtime.GC() // what the other side left behind is not this one's to collect
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := m.work(ctx, s, latencies)
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	return segment{elapsed, latencies, after.Mallocs - before.Mallocs}, err
}

// work runs the ops of one segment. Each worker takes the next one until none is left.
func (m measure) work(ctx context.Context, s side, latencies []time.Duration) error {
	if m.workers == 1 {
		for i := range latencies {
			took, err := s.one(ctx, 0, i)
			if err != nil {
				return err
			}
			latencies[i] = took
		}
		return nil
	}
	var next atomic.Int64
	errs := make([]error, m.workers)
	var wg sync.WaitGroup
	for w := range m.workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(latencies) && errs[w] == nil; i = int(next.Add(1)) - 1 {
				latencies[i], errs[w] = s.one(ctx, w, i)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s side) one(ctx context.Context, worker, i int) (time.Duration, error) {
	if s.timed != nil {
		return s.timed(ctx, i)
	}
	start := time.Now()
	err := s.op(ctx, worker, i)
	return time.Since(start), err
}

// The values that a segment can give.

func p50(s segment) float64 { return micros(quantile(s.latencies, 0.5)) }

func perSecond(s segment) float64 { return float64(len(s.latencies)) / s.elapsed.Seconds() }

func mallocsPerOp(s segment) float64 { return float64(s.mallocs) / float64(len(s.latencies)) }

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// quantile gives the value below which the share q of all lies; of an even number
// the middle is the mean of two.
func quantile[T ~int64 | ~float64](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	at := q * float64(len(sorted)-1)
	low, high := sorted[int(math.Floor(at))], sorted[int(math.Ceil(at))]
	return low + T(float64(high-low)*(at-math.Floor(at)))
}

// ratios divides pair by pair.
func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}
