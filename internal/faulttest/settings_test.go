//go:build faults

package faulttest_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var upsert = options.UpdateOne().SetUpsert(true)

// duration is how long a random fault goes on.
func duration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("MONGOSTORE_TEST_DURATION")
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "MONGOSTORE_TEST_DURATION")
	return d
}

// seed is printed; the same one makes the same choices.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := rand.Uint64() >> 32
	if text := os.Getenv("MONGOSTORE_TEST_SEED"); text != "" {
		var err error
		n, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "MONGOSTORE_TEST_SEED")
	}
	t.Logf("MONGOSTORE_TEST_SEED=%d", n)
	return n
}

// times scales how often a fault strikes: long runs strike more often.
func times(t *testing.T, short int) int {
	t.Helper()
	return max(short, int(duration(t).Seconds()/10)*short)
}
