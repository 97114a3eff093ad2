package mongostoretest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/mongostoretest"
)

func TestClockZeroValue(t *testing.T) {
	t.Parallel()
	var clock mongostoretest.Clock
	start := time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)
	require.Equal(t, start, clock.Now())
	require.Equal(t, start, clock.Now(), "it stands still")
	require.Equal(t, start.Add(time.Hour), clock.Advance(time.Hour))
	require.Equal(t, start.Add(time.Hour), clock.Now())
	require.Equal(t, start.Add(30*time.Minute), clock.Advance(-30*time.Minute))
}

func TestNewClockStartsWhereItIsTold(t *testing.T) {
	t.Parallel()
	t0 := time.Unix(1_800_000_000, 123_000).UTC()
	clock := mongostoretest.NewClock(t0)
	require.Equal(t, t0, clock.Now())
	require.Equal(t, t0.Add(time.Second), clock.Advance(time.Second))
}

func TestClockIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var clock mongostoretest.Clock
	before := clock.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			clock.Advance(time.Second)
			_ = clock.Now()
		})
	}
	wg.Wait()
	require.Equal(t, 50*time.Second, clock.Now().Sub(before))
}
