package outbox_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/execstore/mongostore/internal/mongotest"
)

func TestMain(m *testing.M) {
	if os.Getenv(envBusURI) != "" {
		if err := busProcess(); err != nil {
			fmt.Fprintln(os.Stderr, "bus process:", err)
			os.Exit(1)
		}
		return
	}
	mongotest.Main(m)
}
