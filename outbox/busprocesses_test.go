package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

const (
	busProcesses = 4
	eventsOfKey  = 20
	clockRate    = 10 // so that a lease of 30 s ends after 3 s
	busLease     = 30 * time.Second

	envBusURI      = "MONGOSTORE_TEST_BUS_URI" // set: this process is a bus, not a test
	envBusDatabase = "MONGOSTORE_TEST_BUS_DATABASE"
	envBusSkew     = "MONGOSTORE_TEST_BUS_SKEW"
	envBusStart    = "MONGOSTORE_TEST_BUS_START"
)

// fastClock is a clock that runs fast, and differs.
type fastClock struct {
	start time.Time
	skew  time.Duration
}

func (c fastClock) Now() time.Time { return c.start.Add(time.Since(c.start)*clockRate + c.skew) }

// busRun is one run of a handler, as its process wrote it down when it began.
type busRun struct {
	Handler  string `bson:"handler"`
	Key      string `bson:"key"`
	Sequence int64  `bson:"sequence"`
	PID      int    `bson:"pid"`
	Start    int64  `bson:"start"` // nanoseconds, by the clock of the machine
}

// busProcess is the life of a child: a bus with a handler of each sort.
func busProcess() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	skew, err := time.ParseDuration(os.Getenv(envBusSkew))
	if err != nil {
		return err
	}
	start, err := strconv.ParseInt(os.Getenv(envBusStart), 10, 64)
	if err != nil {
		return err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(os.Getenv(envBusURI)))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	db := client.Database(os.Getenv(envBusDatabase))
	store, err := outbox.New(client, outbox.Config{Database: db.Name(), Clock: fastClock{time.Unix(0, start), skew}})
	if err != nil {
		return err
	}
	bus, err := outbox.NewBus(store, outbox.BusConfig{PollEvery: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	if err := subscribeBoth(bus, db); err != nil {
		return err
	}
	return bus.Run(ctx)
}

// subscribeBoth adds a handler that notes its runs, and one that also has an effect in
// the transaction that completes its delivery; with a nil db they run elsewhere.
func subscribeBoth(bus *outbox.Bus, db *mongo.Database) error {
	opts := outbox.SubscribeOptions{MaxAttempts: -1, Backoff: func(int) time.Duration { return 500 * time.Millisecond }}
	transactional := opts
	transactional.Transactional = true
	if db == nil {
		return errors.Join(outbox.Subscribe[placed](bus, "plain", nil, opts), outbox.Subscribe[placed](bus, "effect", nil, transactional))
	}
	begin := func(ctx context.Context, handler string, e outbox.Event[placed]) error {
		_, err := db.Collection("runs").InsertOne(mongo.NewSessionContext(ctx, nil),
			busRun{handler, e.Key, e.Sequence, os.Getpid(), time.Now().UnixNano()})
		<-time.After(rand.N(20 * time.Millisecond))
		return err
	}
	plain := func(ctx context.Context, e outbox.Event[placed]) error { return begin(ctx, "plain", e) }
	effect := func(ctx context.Context, e outbox.Event[placed]) error {
		if err := begin(ctx, "effect", e); err != nil {
			return err
		}
		_, err := db.Collection("effects").UpdateOne(ctx, kv("_id", e.Key), kv("$push", kv("applied", e.Sequence)), options.UpdateOne().SetUpsert(true))
		return err
	}
	return errors.Join(outbox.Subscribe(bus, "plain", plain, opts), outbox.Subscribe(bus, "effect", effect, transactional))
}

// busFleet are the processes, one of which is killed from time to time.
type busFleet struct {
	t             *testing.T
	uri, database string
	start         time.Time
	rnd           *rand.Rand
	slots         [busProcesses]*exec.Cmd
}

func (f *busFleet) run(slot int) {
	skew := time.Duration(f.rnd.Int64N(int64(busLease/4))) - busLease/8 // two differ by a quarter of the lease at most
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envBusURI+"="+f.uri, envBusDatabase+"="+f.database,
		envBusSkew+"="+skew.String(), envBusStart+"="+strconv.FormatInt(f.start.UnixNano(), 10))
	cmd.Stderr = os.Stderr
	require.NoError(f.t, cmd.Start())
	f.slots[slot] = cmd
}

func (f *busFleet) end(slot int, sig syscall.Signal) {
	if cmd := f.slots[slot]; cmd != nil {
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
	}
}

// TestBusProcessesThatAreKilled: 4 processes with clocks apart work what another one
// publishes meanwhile, and are killed. MONGOSTORE_TEST_EXECUTIONS is how many keys,
// MONGOSTORE_TEST_SEED replays the kills and clocks of a run.
func TestBusProcessesThatAreKilled(t *testing.T) {
	t.Parallel()
	// a process that is killed leaves its transactions open, with their locks, for so long
	cluster := mongotest.Start(t, mongotest.Options{ReplicaSet: true, Args: []string{"--setParameter", "transactionLifetimeLimitSeconds=2"}})
	keys := setting(t, "MONGOSTORE_TEST_EXECUTIONS", 16)
	kills := max(8, keys/10)
	seed := uint64(setting(t, "MONGOSTORE_TEST_SEED", int(rand.Uint32())))
	t.Logf("seed %d (MONGOSTORE_TEST_SEED)", seed)
	client := cluster.Client()
	f := &busFleet{t: t, uri: cluster.URI(), database: "killed", start: time.Now(), rnd: rand.New(rand.NewPCG(seed, 0))}
	db := client.Database(f.database)
	store, err := outbox.New(client, outbox.Config{Database: db.Name(), Clock: fastClock{start: f.start}})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	for _, name := range []string{"runs", "effects"} {
		require.NoError(t, db.CreateCollection(t.Context(), name))
	}
	end := sync.OnceFunc(func() {
		for slot := range f.slots {
			f.end(slot, syscall.SIGTERM)
		}
	})
	t.Cleanup(end)
	for slot := range busProcesses {
		f.run(slot)
	}
	published := make(chan error, 1)
	go func() { published <- publishAll(t.Context(), store, keys) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for killed := 0; ; {
		st, err := store.Stats(ctx)
		require.NoError(t, err)
		if st.Completed == int64(2*keys*eventsOfKey) {
			break
		}
		<-time.After(time.Duration(50+f.rnd.IntN(200)) * time.Millisecond)
		if killed < kills {
			slot := f.rnd.IntN(busProcesses)
			f.end(slot, syscall.SIGKILL)
			f.run(slot)
			killed++
		}
	}
	require.NoError(t, within(t, published))
	end()
	checkRuns(t, db, keys)
}

// publishAll publishes the events of all keys, by turns.
func publishAll(ctx context.Context, store *outbox.Store, keys int) error {
	bus, err := outbox.NewBus(store, outbox.BusConfig{})
	if err != nil {
		return err
	}
	if err := subscribeBoth(bus, nil); err != nil {
		return err
	}
	for i := range eventsOfKey {
		for k := range keys {
			err := store.Transaction(ctx, func(ctx context.Context) error {
				return bus.Publish(ctx, outbox.PublishOptions{ID: fmt.Sprintf("e-%d-%d", k, i), Key: fmt.Sprint("k-", k)}, placed{N: i})
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRuns: every event handled by each handler, in order by first run, and each effect
// once.
func checkRuns(t *testing.T, db *mongo.Database, keys int) {
	t.Helper()
	cur, err := db.Collection("runs").Find(t.Context(), bson.D{}, options.Find().SetSort(kv("start", 1)))
	require.NoError(t, err)
	var runs []busRun
	require.NoError(t, cur.All(t.Context(), &runs))
	first, pids := map[string][]int64{}, map[int]bool{}
	seen := map[string]bool{}
	for _, r := range runs {
		pids[r.PID] = true
		lane := r.Handler + " " + r.Key
		if id := fmt.Sprintf("%s %d", lane, r.Sequence); !seen[id] {
			seen[id] = true
			first[lane] = append(first[lane], r.Sequence)
		}
	}
	var want []int64
	for i := range eventsOfKey {
		want = append(want, int64(i)+1)
	}
	require.Len(t, first, 2*keys)
	for lane, sequences := range first {
		require.Equal(t, want, sequences, "in order of first delivery, of %s", lane)
	}
	effects := all(t, db.Collection("effects"))
	require.Len(t, effects, keys)
	for _, doc := range effects {
		var e struct{ Applied []int64 }
		require.NoError(t, bson.Unmarshal(doc, &e))
		require.Equal(t, want, e.Applied, "each effect once, and in order: %s", doc)
	}
	for _, doc := range all(t, db.Collection("outbox_deliveries")) {
		require.Equal(t, "completed", doc.Lookup("status").StringValue())
	}
	t.Logf("%d runs of %d deliveries, by %d processes", len(runs), 2*keys*eventsOfKey, len(pids))
}
