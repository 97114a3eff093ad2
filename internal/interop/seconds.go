package interop

import (
	"math"
	"time"
)

// Seconds gives the double that harel has for a time that the store gave.
func Seconds(t time.Time) float64 { return float64(t.Unix()) + float64(t.Nanosecond())/1e9 }

// TimeOf gives the time of a double of harel's, such that Seconds gives the double
// back to the last digit: today's are 238 ns apart.
func TimeOf(seconds float64) time.Time {
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(math.Round(fraction*1e9))).UTC()
}
