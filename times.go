package mongostore

import (
	"math"
	"time"
)

// microsecond, in the seconds that documents hold.
const microsecond = 1e-6

// halfStep is how far a stored double may be from the time read from it: half a
// microsecond of rounding and a little for the double itself.
const halfStep = 0.6 * microsecond

// toSeconds gives the double, in seconds since the epoch, that documents hold.
func toSeconds(t time.Time) float64 {
	return float64(t.Unix()) + float64(t.Nanosecond()/1000)*microsecond
}

// fromSeconds rounds to the microsecond; the caller has checked fits.
func fromSeconds(s float64) time.Time {
	whole, fraction := math.Modf(s)
	return time.Unix(int64(whole), int64(math.Round(fraction/microsecond))*1000).UTC()
}

// The years 1 to 9999, the range of times that can be written and read.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
)

func fitsTime(t time.Time) bool { return !t.Before(firstTime) && !t.After(lastTime) }

func fitsSeconds(s float64) bool {
	return s >= float64(firstTime.Unix()) && s <= float64(lastTime.Unix())
}
