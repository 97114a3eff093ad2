//go:build mutants

package outbox_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestThePropertyTestNotices runs the property test in processes of their own with one
// rule of the store broken: within a minute it must find a violation.
func TestThePropertyTestNotices(t *testing.T) {
	for _, rule := range []string{"no second look", "no suspect mark", "finish before promote"} {
		t.Run(rule, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestPropertyOrderAndNothingLost$", "-test.v")
			cmd.Env = append(os.Environ(), "MONGOSTORE_MUTANT=outbox: "+rule, "MONGOSTORE_TEST_DURATION=60s")
			began := time.Now()
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "the store without its rule passed:\n%s", out)
			_, found, _ := strings.Cut(string(out), "violated after ")
			require.NotEmpty(t, found, "it failed for another reason:\n%s", out)
			first, _, _ := strings.Cut(found, "\n")
			t.Logf("noticed after %s: %s", time.Since(began).Round(100*time.Millisecond), first)
		})
	}
}
