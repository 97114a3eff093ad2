//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// usage is what a process holds at one moment, garbage left out.
type usage struct{ heap, goroutines, files float64 }

func measure() usage {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := usage{heap: float64(m.HeapAlloc), goroutines: float64(runtime.NumGoroutine())}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.files = float64(len(files))
	}
	return u
}

func average(all []usage) (sum usage) {
	n := float64(len(all))
	for _, u := range all {
		sum.heap, sum.goroutines, sum.files = sum.heap+u.heap/n, sum.goroutines+u.goroutines/n, sum.files+u.files/n
	}
	return sum
}

// TestWhatIsHeldStaysFlat lets both stores work together, executions whose events a relay
// forwards to a bus, and compares what the process holds in the first and the last third.
// It is not parallel: that would count other tests too.
func TestWhatIsHeldStaysFlat(t *testing.T) {
	cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true})
	client, err := mongo.Connect(options.Client().ApplyURI(cluster.URI()).SetMaxPoolSize(20))
	require.NoError(t, err)
	s := newSoak(t, client)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	s.run(ctx, t, &all)

	const samples = 33
	pause := duration(t) / samples
	taken := make([]usage, 0, samples)
	for range samples {
		time.Sleep(pause)
		taken = append(taken, measure())
	}
	stop()
	all.Wait()
	taken = taken[samples/10:] // pools fill first
	third := len(taken) / 3
	first, last := average(taken[:third]), average(taken[len(taken)-third:])
	t.Logf("%d commits, %d handled; heap %.1f and %.1f MiB, %.0f and %.0f goroutines, %.0f and %.0f files", s.commits, s.handled,
		first.heap/(1<<20), last.heap/(1<<20), first.goroutines, last.goroutines, first.files, last.files)
	require.Positive(t, s.commits)
	require.Positive(t, s.handled)
	require.Less(t, last.heap, 1.5*first.heap+1<<20, "the heap grows")
	require.Less(t, last.goroutines, 1.3*first.goroutines+10, "goroutines are left behind")
	require.Less(t, last.files, 1.3*first.files+10, "files are left open")

	disconnecting, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	require.NoError(t, client.Disconnect(disconnecting))
	require.NoError(t, nothingOpen(disconnecting, cluster.URI(), true))
}

// soak is both stores at work.
type soak struct {
	db     *mongo.Database
	store  *mongostore.Store
	events *outbox.Store
	bus    *outbox.Bus
	relay  *mongostore.Relay

	mu               sync.Mutex
	commits, handled int
}

// soaked is what the relay forwards.
type soaked struct{ N int }

func (soaked) EventType() string { return "soaked" }

func newSoak(t *testing.T, client *mongo.Client) *soak {
	t.Helper()
	s := &soak{db: client.Database("soak")}
	var err error
	s.store, err = mongostore.New(client, mongostore.Config{Database: "soak"})
	require.NoError(t, err)
	require.NoError(t, s.store.Setup(t.Context()))
	s.events, err = outbox.New(client, outbox.Config{Database: "soak"})
	require.NoError(t, err)
	require.NoError(t, s.events.Setup(t.Context()))
	s.bus, err = outbox.NewBus(s.events, outbox.BusConfig{PurgeEvery: time.Second, KeepCompleted: time.Second})
	require.NoError(t, err)
	count := func(context.Context, outbox.Event[soaked]) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.handled++
		return nil
	}
	require.NoError(t, outbox.Subscribe(s.bus, "plain", count, outbox.SubscribeOptions{}))
	require.NoError(t, outbox.Subscribe(s.bus, "inside", func(ctx context.Context, e outbox.Event[soaked]) error {
		_, err := s.db.Collection("effects").UpdateOne(ctx, bson.D{{Key: "_id", Value: e.Key}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, upsert)
		return err
	}, outbox.SubscribeOptions{Transactional: true}))
	s.relay, err = s.store.NewRelay(mongostore.Handlers{
		Outbox: s.bus.Forward(func(mongostore.OutboxEntry) string { return "soaked" }),
		Spawn:  func(context.Context, mongostore.SpawnEntry) error { return nil },
		Timer:  func(context.Context, mongostore.Timer) error { return nil },
	}, mongostore.RelayConfig{})
	require.NoError(t, err)
	return s
}

func (s *soak) run(ctx context.Context, t *testing.T, all *sync.WaitGroup) {
	all.Go(func() { _ = s.relay.Run(ctx) })
	all.Go(func() { _ = s.bus.Run(ctx) })
	for w := range 3 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := s.step(ctx, w, n); err != nil && ctx.Err() == nil {
					t.Errorf("step %d of worker %d: %v", n, w, err)
					return
				}
			}
		})
	}
}

// step commits, reads in all ways, and deletes what is old, so that the database stays
// as it is.
func (s *soak) step(ctx context.Context, w, n int) error {
	id := fmt.Sprintf("x-%d-%d", w, n/20)
	_, err := s.store.Update(ctx, id, &counter{}, mongostore.UpdateOptions{Create: true, EventID: fmt.Sprint("ev-", n)}, func(ch *mongostore.Changes) error {
		ch.Emits = []mongostore.Emit{{Event: soaked{n}}}
		ch.Timers = []mongostore.TimerOp{{Path: "A", FireAt: time.Now()}}
		ch.Trace = bson.D{{Key: "n", Value: n}}
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.commits++
	s.mu.Unlock()
	if n%20 != 19 {
		return nil
	}
	for _, err := range s.store.All(ctx, mongostore.ListOptions{IDPrefix: fmt.Sprintf("x-%d", w), Limit: 2}) {
		if err != nil {
			return err
		}
	}
	if _, err := s.events.List(ctx, outbox.ListOptions{Limit: 5}); err != nil {
		return err
	}
	if _, err := s.store.PendingOutbox(ctx, 5); err != nil {
		return err
	}
	in, err := s.store.Inspect(ctx, fmt.Sprintf("x-%d-%d", w, n/20-3))
	if err != nil || len(in.Outbox)+len(in.Timers) > 0 {
		return nil // there is none yet, or it still owes something
	}
	_ = s.store.Delete(ctx, in.Summary.ID, in.Summary.Version) // the relay may hold it
	return nil
}

// leftOpen is nothingOpen for the end of each suite, where the server can be asked: one
// that is dead, or wants a password, can not.
func leftOpen(uri string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var open *openError
	if err := nothingOpen(ctx, uri, false); errors.As(err, &open) {
		return err
	}
	return nil
}

func init() { mongotest.AtEnd = leftOpen }

// openError tells what is open on a server.
type openError struct{ what string }

func (e *openError) Error() string { return "the server still has open " + e.what }

// nothingOpen waits until the server has no open cursor and no open transaction, and, if
// all clients have left, no session but the one that asks.
func nothingOpen(ctx context.Context, uri string, left bool) error {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(2 * time.Second))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	for {
		err := opened(ctx, client, left)
		var open *openError
		if !errors.As(err, &open) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func opened(ctx context.Context, client *mongo.Client, left bool) error {
	admin := client.Database("admin")
	if err := admin.RunCommand(ctx, bson.D{{Key: "refreshLogicalSessionCacheNow", Value: 1}}).Err(); err != nil {
		return err
	}
	status, err := admin.RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Raw()
	if err != nil {
		return err
	}
	var open []string
	for what, path := range map[string][]string{
		"cursors": {"metrics", "cursor", "open", "total"}, "transactions": {"transactions", "currentOpen"}, "sessions": {"logicalSessionRecordCache", "activeSessionsCount"},
	} {
		n, _ := status.Lookup(path...).AsInt64OK()
		if what == "sessions" {
			n-- // this one
			if !left {
				n = 0
			}
		}
		if n > 0 {
			open = append(open, fmt.Sprintf("%s: %d", what, n))
		}
	}
	if len(open) > 0 {
		return &openError{strings.Join(open, ", ")}
	}
	return nil
}

// TestEveryPackageLooksForLeaks finds packages with tests whose TestMain looks for no
// goroutines that are left.
func TestEveryPackageLooksForLeaks(t *testing.T) {
	t.Parallel()
	looks := regexp.MustCompile(`mongotest\.Main\(m\b|goleak\.VerifyTestMain\(m\b|\bMain\(m\)`)
	found := map[string]bool{}
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || strings.Contains(path, string(filepath.Separator)+"_") {
			return err
		}
		text, err := os.ReadFile(path)
		found[filepath.Dir(path)] = found[filepath.Dir(path)] || looks.Match(text)
		return err
	})
	require.NoError(t, err)
	require.Greater(t, len(found), 10)
	for dir, does := range found {
		if !does {
			t.Errorf("%s has tests and no TestMain with mongotest.Main or goleak.VerifyTestMain", dir)
		}
	}
}
