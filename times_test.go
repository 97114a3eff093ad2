package mongostore

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimesToTheMicrosecondComeBackEqual(t *testing.T) {
	t.Parallel()
	for range 100_000 {
		at := time.UnixMicro(rand.Int64N(4_000_000_000_000_000)).UTC()
		require.Equal(t, at, fromSeconds(toSeconds(at)))
	}
	for _, at := range []time.Time{time.Unix(0, 0).UTC(), time.UnixMicro(25).UTC(), time.UnixMicro(-1).UTC(), time.Date(1900, 1, 1, 0, 0, 0, 1000, time.UTC)} {
		require.Equal(t, at, fromSeconds(toSeconds(at)))
	}
}

// harel compares the double in a timer with the one in its snapshot.
func TestDoublesOfOtherWritersComeBackExact(t *testing.T) {
	t.Parallel()
	for range 100_000 {
		s := 1.6e9 + 0.6e9*rand.Float64()
		require.Equal(t, s, toSeconds(fromSeconds(s)))
	}
	require.Equal(t, 1746053379.0389442, toSeconds(fromSeconds(1746053379.0389442)))
}

func TestTimesOfNowComeBackAsTheDoubleTheyBecame(t *testing.T) {
	t.Parallel()
	for range 1000 {
		now := time.Now()
		s := toSeconds(now)
		require.Equal(t, s, toSeconds(fromSeconds(s)))
		require.InDelta(t, 0, now.Sub(fromSeconds(s)), float64(time.Microsecond/4))
	}
}

func TestTimesThatDoNotFit(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{{}, time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
		time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(1<<62, 0)} {
		require.False(t, fitsTime(at), at)
	}
	require.True(t, fitsTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)))
}
