package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

const (
	relayProcesses = 8
	relayLease     = 2 * time.Second
	entriesEach    = 20

	envRelayURI      = "MONGOSTORE_TEST_RELAY_URI" // set: this process is a relay, not a test
	envRelayDatabase = "MONGOSTORE_TEST_RELAY_DATABASE"
	envRelaySkew     = "MONGOSTORE_TEST_RELAY_SKEW"
)

// ledgerOrder is an execution that keeps what was applied to it.
type ledgerOrder struct {
	mongostore.Header
	Applied []int64 `json:"applied"`
}

// delivery is one run of a handler, as its process wrote it down.
type delivery struct {
	ID        bson.ObjectID `bson:"_id"`
	Execution string        `bson:"execution"`
	Seq       int64         `bson:"seq"`
	PID       int           `bson:"pid"`
	Start     int64         `bson:"start"` // nanoseconds, by the clock of the machine
	End       int64         `bson:"end"`   // 0: the process died first
}

// skewedClock is a clock that differs.
type skewedClock struct{ by time.Duration }

func (c skewedClock) Now() time.Time { return time.Now().Add(c.by) }

// relayProcess is the life of a child: a relay whose handler applies each event to its
// own execution and consumes it in the same commit.
func relayProcess() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	skew, err := time.ParseDuration(os.Getenv(envRelaySkew))
	if err != nil {
		return err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(os.Getenv(envRelayURI)))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	store, err := mongostore.New(client, mongostore.Config{Database: os.Getenv(envRelayDatabase), Clock: skewedClock{skew}})
	if err != nil {
		return err
	}
	log := client.Database(os.Getenv(envRelayDatabase)).Collection("deliveries")
	relay, err := store.NewRelay(mongostore.Handlers{
		Outbox: func(ctx context.Context, e mongostore.OutboxEntry) error { return applyOnce(ctx, store, log, e) },
		Spawn:  func(context.Context, mongostore.SpawnEntry) error { return nil },
		Timer:  func(context.Context, mongostore.Timer) error { return nil },
	}, mongostore.RelayConfig{
		LeaseFor: relayLease, PollEvery: 100 * time.Millisecond, MaxAttempts: -1,
		Backoff: func(int) time.Duration { return 50 * time.Millisecond },
	})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

func applyOnce(ctx context.Context, store *mongostore.Store, log *mongo.Collection, e mongostore.OutboxEntry) error {
	d := delivery{ID: bson.NewObjectID(), Execution: e.ExecutionID, Seq: e.Seq, PID: os.Getpid(), Start: time.Now().UnixNano()}
	if _, err := log.InsertOne(context.WithoutCancel(ctx), d); err != nil { // cut off, it would stand there without an end
		return err
	}
	var o ledgerOrder
	_, err := store.Update(ctx, e.ExecutionID, &o, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
		o.Applied = append(o.Applied, e.Seq)
		ch.Acks = []mongostore.Entry{e}
		return nil
	})
	_, logged := log.UpdateByID(context.WithoutCancel(ctx), d.ID, bson.D{{Key: "$set", Value: bson.D{{Key: "end", Value: time.Now().UnixNano()}}}})
	return errors.Join(err, logged)
}

// relayFleet are the processes, one of which is killed from time to time.
type relayFleet struct {
	uri, database string
	rnd           *rand.Rand
	slots         [relayProcesses]*exec.Cmd
	died          map[int]int64 // when by pid
}

func (f *relayFleet) start(slot int) error {
	skew := time.Duration(f.rnd.Int64N(int64(relayLease/4))) - relayLease/8 // two differ by a quarter of the lease at most
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRelayURI+"="+f.uri, envRelayDatabase+"="+f.database, envRelaySkew+"="+skew.String())
	cmd.Stderr = os.Stderr
	f.slots[slot] = cmd
	return cmd.Start()
}

func (f *relayFleet) kill(slot int, sig syscall.Signal) {
	cmd := f.slots[slot]
	_ = cmd.Process.Signal(sig)
	_ = cmd.Wait()
	f.died[cmd.Process.Pid] = time.Now().UnixNano()
}

// TestRelayProcessesThatAreKilled: 8 relay processes with clocks apart drain what a
// store owes while they are killed. MONGOSTORE_TEST_EXECUTIONS is how many executions,
// MONGOSTORE_TEST_SEED replays the kills and clocks of a run.
func TestRelayProcessesThatAreKilled(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		client, database := server.Database(t)
		executions := setting(t, "MONGOSTORE_TEST_EXECUTIONS", 80)
		kills := max(8, executions/20)
		seed := uint64(setting(t, "MONGOSTORE_TEST_SEED", int(rand.Uint32())))
		t.Logf("seed %d (MONGOSTORE_TEST_SEED)", seed)
		store := newStore(t, client, database, mongostore.Config{SeqBlock: 1000})
		var entries []mongostore.Emit
		for i := range entriesEach {
			entries = append(entries, mongostore.Emit{Event: i})
		}
		for i := range executions {
			o := &ledgerOrder{Header: mongostore.Header{ID: fmt.Sprintf("x-%d", i), Status: "RUNNING"}}
			_, err := store.Commit(t.Context(), o, mongostore.Changes{Emits: entries})
			require.NoError(t, err)
		}
		f := &relayFleet{uri: server.URI(), database: database, rnd: rand.New(rand.NewPCG(seed, 0)), died: map[int]int64{}}
		var once sync.Once
		end := func() {
			once.Do(func() {
				for slot := range f.slots {
					if f.slots[slot] != nil {
						f.kill(slot, syscall.SIGTERM)
					}
				}
			})
		}
		t.Cleanup(end)
		for slot := range relayProcesses {
			require.NoError(t, f.start(slot))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		for killed := 0; ; {
			st, err := store.Stats(ctx)
			require.NoError(t, err)
			if st.Pending == 0 {
				break
			}
			<-time.After(time.Duration(100+f.rnd.IntN(300)) * time.Millisecond)
			if killed < kills {
				slot := f.rnd.IntN(relayProcesses)
				f.kill(slot, syscall.SIGKILL)
				require.NoError(t, f.start(slot))
				killed++
			}
		}
		end()
		checkDeliveries(t, store, client.Database(database), f.died, executions)
	})
}

// checkDeliveries: every entry delivered, in order by first delivery, no two at once on
// one execution, and each effect once.
func checkDeliveries(t *testing.T, store *mongostore.Store, db *mongo.Database, died map[int]int64, executions int) {
	cursor, err := db.Collection("deliveries").Find(t.Context(), bson.D{})
	require.NoError(t, err)
	var all []delivery
	require.NoError(t, cursor.All(t.Context(), &all))
	slices.SortFunc(all, func(a, b delivery) int { return int(a.Start - b.Start) })
	byExecution := map[string][]delivery{}
	for _, d := range all {
		byExecution[d.Execution] = append(byExecution[d.Execution], d)
	}
	require.Len(t, byExecution, executions)
	again := 0
	for id, runs := range byExecution {
		var first []int64
		var last delivery
		for _, d := range runs {
			if !slices.Contains(first, d.Seq) {
				first = append(first, d.Seq)
			} else {
				again++
			}
			ended := last.End
			if ended == 0 {
				ended = died[last.PID]
			}
			require.LessOrEqual(t, ended, d.Start, "two handlers at once on %s: %+v and %+v", id, last, d)
			last = d
		}
		require.Len(t, first, entriesEach, "every entry of %s is delivered", id)
		require.IsIncreasing(t, first, "in order of first delivery, of %s", id)
		var o ledgerOrder
		require.NoError(t, store.Load(t.Context(), id, &o))
		require.Equal(t, first, o.Applied, "each effect on %s once", id)
		require.Empty(t, mustInspect(t, store, id).Outbox)
	}
	t.Logf("%d deliveries of %d entries, %d of them again, %d processes", len(all), executions*entriesEach, again, len(died))
}

func mustInspect(t *testing.T, store *mongostore.Store, id string) *mongostore.Inspection {
	t.Helper()
	in, err := store.Inspect(t.Context(), id)
	require.NoError(t, err)
	return in
}

// setting is a number from the environment.
func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := strings.TrimSpace(os.Getenv(name))
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}
