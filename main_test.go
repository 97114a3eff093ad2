package mongostore_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/execstore/mongostore/internal/mongotest"
)

func TestMain(m *testing.M) {
	if os.Getenv(envRelayURI) != "" {
		if err := relayProcess(); err != nil {
			fmt.Fprintln(os.Stderr, "relay process:", err)
			os.Exit(1)
		}
		return
	}
	mongotest.Main(m)
}
