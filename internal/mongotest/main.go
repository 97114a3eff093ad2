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
	if err := lookAtEnd(); err != nil {
		fmt.Fprintln(os.Stderr, "mongostore: at the end of the tests:", err)
		code = 1
	}
	stopShared()
	if code == 0 {
		// testcontainers keeps a line to its reaper until the process ends
		reaper := goleak.IgnoreAnyFunction("github.com/testcontainers/testcontainers-go.(*Reaper).connect.func1")
		if err := goleak.Find(reaper); err != nil {
			fmt.Fprintln(os.Stderr, "mongostore: goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
