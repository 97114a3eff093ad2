package mongotest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests, stops the servers that they started, looks for
// leaked goroutines, and exits. It is the whole TestMain of a package:
//
//	func TestMain(m *testing.M) { mongotest.Main(m) }
func Main(m *testing.M) {
	code := m.Run()
	stopShared()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "mongostore: goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
