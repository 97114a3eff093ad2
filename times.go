package mongostore

import (
	"math"
	"time"
)

// nanosecond, in the seconds that documents hold: how far a time and its stored double
// may differ. Today's doubles are 238 ns apart, so it is room for those near 1970 only.
const nanosecond = 1e-9

// toSeconds gives the double, in seconds since the epoch, that documents hold: the
// nearest to t, so that it prints as people and harel write it.
func toSeconds(t time.Time) float64 {
	const exact = 9_000_000_000 // below it, in seconds, a double holds every microsecond count
	if s := t.Unix(); -exact < s && s < exact && t.Nanosecond()%1000 == 0 {
		return float64(t.UnixMicro()) / 1e6
	}
	return float64(t.Unix()) + float64(t.Nanosecond())/1e9
}

// fromSeconds gives the time whose double s is: the microsecond where one has it, so
// that what was written comes back equal, else the nanosecond, because harel compares
// such doubles for equality. The caller has checked fitsSeconds.
func fromSeconds(s float64) time.Time {
	whole, fraction := math.Modf(s)
	micro := time.Unix(int64(whole), int64(math.Round(fraction*1e6))*1000).UTC()
	if toSeconds(micro) == s {
		return micro
	}
	return time.Unix(int64(whole), int64(math.Round(fraction*1e9))).UTC()
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
