//go:build faults && mutants

package faulttest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The mutants, each with the test that has to catch it.
var mutants = []struct{ name, pkg, test string }{
	{"cas filter without version", "faulttest", "TestHistoriesWithLostReplies/standalone"},
	{"old version is final after a lost reply", "faulttest", "TestAWriteArrivesAfterItsClientHasGone"},
	{"no commits in the filter", "faulttest", "TestExecutionsAreMadeAnew"},
	{"ack without token", "faulttest", "TestHistoriesOfLeases"},
	{"claim without read-back", "faulttest", "TestHistoriesOfLeases"},
	{"counter that repeats", "faulttest", "TestHistoriesWithLostReplies/standalone"},
	{"w:1", "faulttest", "TestTheLastWritesAreRolledBack"},
	{"outbox: no suspect mark", "outbox", "TestPropertyOrderAndNothingLost"},
	{"outbox: no second look", "outbox", "TestPropertyOrderAndNothingLost"},
	{"outbox: finish before promote", "outbox", "TestPropertyOrderAndNothingLost"},
}

// mutantTime is how long a test has to catch a mutant.
const mutantTime = time.Minute

// bred is a line of the report: a broken rule, and what became of it.
type bred struct {
	Mutant  string  `json:"mutant"`
	Test    string  `json:"test"`
	Caught  bool    `json:"caught"`
	Seconds float64 `json:"seconds"`
}

// caught is what the suite says when something is wrong with the store, and not with
// the machine.
var caught = regexp.MustCompile(`\b[1-9]\d* (lost|doubled|reordered|told wrongly)\b|no order explains|which is not what became of it|violated after`)

// TestMutants breaks one rule of the stores after the other, and sees that the suite
// notices in time; and that it notices nothing where no rule is broken.
func TestMutants(t *testing.T) {
	binaries := map[string]string{}
	var err error
	binaries["faulttest"], err = os.Executable()
	require.NoError(t, err)
	binaries["outbox"] = built(t, "../../outbox")
	controls := map[string]bool{}
	for _, m := range mutants {
		if controls[m.test] {
			continue
		}
		controls[m.test] = true
		t.Run("none in "+m.test, func(t *testing.T) {
			out, _, err := breed(t, binaries[m.pkg], m.pkg, m.test, "", "5s")
			require.NotRegexp(t, caught, out)
			if m.pkg == "faulttest" { // the other one is held to the rest by its own package
				require.NoError(t, err, "%s", out)
				require.Contains(t, out, "--- PASS: ")
			}
		})
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			length := "5s"
			if m.pkg == "outbox" {
				length = mutantTime.String() // it stops at the first violation
			}
			out, took, err := breed(t, binaries[m.pkg], m.pkg, m.test, m.name, length)
			b := bred{Mutant: m.name, Test: m.test, Seconds: took.Seconds(), Caught: err != nil && caught.MatchString(out)}
			require.NoError(t, report(os.Getenv(envReport), b))
			t.Logf("mutant %q: caught %t by %s in %.1f s", b.Mutant, b.Caught, b.Test, b.Seconds)
			if assert.True(t, b.Caught, "%v: %s", err, out) {
				t.Log(caught.FindString(out))
			}
		})
	}
}

// built compiles the tests of another package with its mutants.
func built(t *testing.T, folder string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "tests")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mutants", "-o", binary, ".")
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// breed runs one test in a process of its own, in which a rule is broken.
func breed(t *testing.T, binary, pkg, test, mutant, length string) (out string, took time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mutantTime+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.v", "-test.count", "1", "-test.run", "^"+strings.ReplaceAll(test, "/", "$/^")+"$")
	cmd.Dir = filepath.Join("..", pkg)
	if pkg == "outbox" {
		cmd.Dir = "../../outbox"
	}
	cmd.Env = append(os.Environ(), "MONGOSTORE_MUTANT="+mutant, envReport+"=", "MONGOSTORE_TEST_DURATION="+length)
	began := time.Now()
	raw, err := cmd.CombinedOutput()
	took = time.Since(began)
	if took > mutantTime {
		err = errors.New("it took longer than a minute") // not caught in time
		return "", took, err
	}
	return string(raw), took, err
}
