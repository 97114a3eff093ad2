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

// toSeconds gives the double, in seconds since the epoch, that documents hold: the
// nearest to t's microsecond, so that it prints as people and harel write it.
func toSeconds(t time.Time) float64 {
	const exact = 9_000_000_000 // below it, in seconds, a double holds every microsecond count
	if s := t.Unix(); -exact < s && s < exact {
		return float64(t.UnixMicro()) / 1e6
	}
	return float64(t.Unix()) + float64(t.Nanosecond()/1000)/1e6
}

// fromSeconds rounds to the microsecond; the caller has checked fits.
func fromSeconds(s float64) time.Time {
	whole, fraction := math.Modf(s)
	return time.Unix(int64(whole), int64(math.Round(fraction*1e6))*1000).UTC()
}

// The years 1 to 9999 are the range of times that can be written and read, both
// ends left out: the zero time means none, and the last instants of 9999 would
// round up to the year 10000.
const (
	firstSecond = -62135596800
	lastSecond  = 253402300800
)

func fitsTime(t time.Time) bool {
	whole := t.Unix() // a time beyond the years of a microsecond count must not wrap around
	return whole >= firstSecond && whole < lastSecond && fitsSeconds(toSeconds(t))
}

func fitsSeconds(s float64) bool { return s > firstSecond && s < lastSecond }
