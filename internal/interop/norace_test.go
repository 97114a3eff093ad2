//go:build !race

package interop

// raceFlag builds the bridge as the tests are built.
var raceFlag []string
