package main

import (
	"context"
	"errors"
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
	gauge  func() float64                                          // in place of the measure's value: what the op has read
}

// measure runs its sides in turn, in pairs. A pair is short, and in it the sides
// alternate in chunks of a few ops, each time in reverse order, so that a noisy
// machine hurts all sides alike.
type measure struct {
	workers int
	ops     int // of one side in a pair, shared by the workers
	chunks  int // that they are cut into; 0: one
	pairs   int
	sides   []side
	value   func(segment) float64
}

const (
	// warmUps is how many pairs run before those that count.
	warmUps = 1
	// leastPairs and patience: a measure that takes longer than this on a busy machine
	// ends with fewer pairs, which its note tells.
	leastPairs = 7
	patience   = 45 * time.Second
)

// segment is what one side did in one pair.
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

// add takes what a side did in a pair.
func (s *samples) add(m measure, of side, seg segment) {
	if of.gauge != nil {
		s.values = append(s.values, of.gauge())
		return
	}
	s.values = append(s.values, m.value(seg))
	s.latencies = append(s.latencies, seg.latencies...)
}

func (s samples) p99() float64 { return micros(quantile(s.latencies, 0.99)) }

func (m measure) run(ctx context.Context) (map[string]*samples, error) {
	got := map[string]*samples{}
	for _, s := range m.sides {
		got[s.name] = &samples{}
	}
	start := time.Now()
	for pair := -warmUps; pair < m.pairs; pair++ {
		if pair >= leastPairs && time.Since(start) > patience {
			break
		}
		segments, err := m.pair(ctx)
		if err != nil {
			return nil, err
		}
		for i, s := range m.sides {
			if pair >= 0 {
				got[s.name].add(m, s, segments[i])
			}
		}
		slices.Reverse(m.sides)
	}
	return got, nil
}

// pair runs all sides once; the segments are in the order of m.sides.
func (m measure) pair(ctx context.Context) ([]segment, error) {
	segments := make([]segment, len(m.sides))
	chunks := max(m.chunks, 1)
	for i, s := range m.sides {
		segments[i].latencies = make([]time.Duration, m.ops)
		if s.before == nil {
			continue
		}
		if err := s.before(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for chunk := range chunks {
		for i := range m.sides {
			if chunk%2 == 1 {
				i = len(m.sides) - 1 - i
			}
			from, to := m.ops*chunk/chunks, m.ops*(chunk+1)/chunks
			if err := m.chunk(ctx, m.sides[i], &segments[i], from, to); err != nil {
				return nil, fmt.Errorf("%s: %w", m.sides[i].name, err)
			}
		}
	}
	return segments, nil
}

// chunk runs the ops of one side from one number to another.
func (m measure) chunk(ctx context.Context, s side, seg *segment, from, to int) error {
	var before, after runtime.MemStats
	if m.chunks <= 1 {
		runtime.GC() // what the other side left behind is not this one's to collect
	}
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := m.work(ctx, s, seg.latencies, from, to)
	seg.elapsed += time.Since(start)
	runtime.ReadMemStats(&after)
	seg.mallocs += after.Mallocs - before.Mallocs
	return err
}

// work runs the ops. Each worker takes the next one until none is left.
func (m measure) work(ctx context.Context, s side, latencies []time.Duration, from, to int) (err error) {
	if m.workers == 1 {
		for i := from; i < to && err == nil; i++ {
			latencies[i], err = s.one(ctx, 0, i)
		}
		return err
	}
	next := atomic.Int64{}
	next.Store(int64(from))
	errs := make([]error, m.workers)
	var wg sync.WaitGroup
	for w := range m.workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < to && errs[w] == nil; i = int(next.Add(1)) - 1 {
				latencies[i], errs[w] = s.one(ctx, w, i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
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
