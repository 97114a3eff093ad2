package outbox_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// TestPropertyOrderAndNothingLost lets processes publish, claim, finish, requeue and
// purge at random, and die between any two commands, and checks from outside what they
// saw against the order of commits in the server's log. MONGOSTORE_TEST_DURATION is how
// long, MONGOSTORE_TEST_SEED chooses the same things again; how they interleave is up to
// the machine. It stops at the first violation.
func TestPropertyOrderAndNothingLost(t *testing.T) {
	t.Parallel()
	length, seed := propertySettings(t)
	t.Logf("seed %d (MONGOSTORE_TEST_SEED), for %s (MONGOSTORE_TEST_DURATION)", seed, length)
	server := mongotest.ReplicaSet(t)
	client, database := server.Database(t)
	store, err := outbox.New(client, outbox.Config{Database: database})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	require.NoError(t, client.Database(database).CreateCollection(t.Context(), "orders"))

	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	h := &propertyHistory{began: time.Now(), violated: cancel}
	w := &propertyWorld{
		t: t, uri: server.URI(), database: database, seed: seed, admin: client, h: h,
		heads: &heads{h: h, db: client.Database(database)}, errors: map[string]int{},
	}
	w.commits, err = commitsSince(t.Context(), client, database, h.violate)
	require.NoError(t, err)
	w.heads.commits = w.commits
	var watchers sync.WaitGroup
	watchers.Go(func() { w.heads.watch(ctx) })
	watchers.Go(func() { w.follow(ctx) })
	w.populate(ctx)
	<-ctx.Done()
	watchers.Wait()
	w.wg.Wait()
	w.killSessions(w.orphaned)
	ran := h.now()
	if len(h.violations) == 0 {
		w.drain(t.Context())
		w.wg.Wait()
		r := w.check(t.Context())
		statuses, err := w.statuses(t.Context())
		require.NoError(t, err)
		require.NoError(t, w.heads.pairs(t.Context()))
		for _, v := range checkEnd(r, w.commits, statuses) {
			h.violate("%s", v)
		}
	}
	w.report(ran)
	for i, v := range h.violations {
		if i == 5 {
			t.Errorf("and %d more", len(h.violations)-i)
			break
		}
		t.Errorf("violated after %s: %s", ran.Round(time.Second), v)
	}
}

// report logs what the run was.
func (w *propertyWorld) report(ran time.Duration) {
	cleaned := 0
	for _, n := range w.commits.epochs {
		cleaned += n
	}
	acknowledgedOnes := 0
	for _, p := range w.h.publications {
		if p.outcome == acknowledged {
			acknowledgedOnes++
		}
	}
	w.t.Logf("%s: %d deliveries claimed, %d publications of %d committed for sure, %d events and %d deliveries in the log, %d processes, %d crashes, %d ways given, %d requeued, %d purged, %d counters cleaned; longest waiting head %s in %d reads with %d gaps",
		ran.Round(100*time.Millisecond), w.claims.Load(), acknowledgedOnes, len(w.h.publications), len(w.commits.events), len(w.commits.deliveries),
		w.processes.Load(), w.crashes.Load(), w.giveWays.Load(), w.requeues.Load(), w.purged.Load(), cleaned, w.heads.longest.Round(time.Millisecond), w.heads.reads, w.heads.stalls)
	if lane := w.heads.stuck; lane != "" {
		w.t.Logf("the lane of the waiting head:\n%s", (&facts{record: w.h.copied(), commits: w.commits}).story(lane))
	}
	for text, n := range w.errors {
		w.t.Logf("%d x %s", n, text)
	}
}

func propertySettings(t *testing.T) (length time.Duration, seed uint64) {
	t.Helper()
	length, seed = time.Minute, uint64(rand.Uint32())
	if testing.Short() {
		length = 20 * time.Second
	}
	var err error
	if text := os.Getenv("MONGOSTORE_TEST_DURATION"); text != "" {
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "MONGOSTORE_TEST_DURATION")
	}
	if text := os.Getenv("MONGOSTORE_TEST_SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "MONGOSTORE_TEST_SEED")
	}
	return length, seed
}
