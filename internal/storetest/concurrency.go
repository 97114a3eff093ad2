package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// exerciseConcurrency: many writers, relays and readers at once.
func exerciseConcurrency(t *testing.T, h *harness) {
	run(t, h.bundle, concurrencyTests)
}

// rounds is the whole number with a plain client, a tenth of it where a whole suite
// runs once more with another one.
func (b *bundle) rounds(n int) int {
	if len(b.opts) > 0 {
		return max(n/10, 1)
	}
	return n
}

// together runs n goroutines that begin at the same moment, and waits for them.
func together(n int, work func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			work(i)
		})
	}
	close(start)
	wg.Wait()
}

var concurrencyTests = tests{
	"BH-03_OneOfManyWritersWinsAndTheOthersAreTold": func(t *testing.T, b *bundle) {
		writers, rounds := 32, b.rounds(20)
		o := b.create(t, "ord-1003")
		for o.Version < 5 {
			b.commit(t, o, mongostore.Changes{})
		}
		loaded := make([]*order, writers)
		for i := range loaded {
			loaded[i] = b.load(t, "ord-1003")
		}
		var won atomic.Int64
		together(writers, func(i int) {
			_, err := b.store.Commit(t.Context(), loaded[i], emit(i))
			if err == nil {
				won.Add(1)
				return
			}
			var conflict *mongostore.ConflictError
			if !errors.As(err, &conflict) || *conflict != (mongostore.ConflictError{ExecutionID: "ord-1003", Expected: 5, Actual: 6}) || loaded[i].Version != 5 {
				t.Errorf("a loser at version %d got %v", loaded[i].Version, err)
			}
		})
		require.EqualValues(t, 1, won.Load())

		together(writers, func(i int) {
			for round := range rounds {
				for {
					mine := &order{}
					if !assertNoError(t, b.store.Load(t.Context(), "ord-1003", mine)) {
						return
					}
					_, err := b.store.Commit(t.Context(), mine, emit(fmt.Sprint(i, "-", round)))
					if err == nil {
						break
					}
					if !errors.Is(err, mongostore.ErrConflict) {
						t.Errorf("unexpected error: %v", err)
						return
					}
				}
			}
		})
		require.EqualValues(t, 5+1+writers*rounds, b.load(t, "ord-1003").Version)
		events := map[string]bool{}
		entries := b.outbox(t, 10_000)
		for _, e := range entries {
			events[string(e.Event)] = true
		}
		require.Len(t, entries, 1+writers*rounds)
		require.Len(t, events, 1+writers*rounds, "each event once")
	},

	"BH-04_FirstUseOfTheCountersByManyNeverFails": func(t *testing.T, b *bundle) {
		writers, rounds := 64, b.rounds(50)
		for round := range rounds {
			store := b.with(t, func(c *mongostore.Config) { c.Prefix = fmt.Sprintf("r%d_", round) })
			others := b.with(t, func(c *mongostore.Config) { c.Prefix = fmt.Sprintf("r%d_", round) }) // as another process
			if round%5 != 0 {                                                                         // the server is slow where many make one collection at once
				require.NoError(t, b.db.CreateCollection(t.Context(), fmt.Sprintf("r%d_executions", round)))
			}
			var mu sync.Mutex
			outbox, spawns := map[int64]bool{}, map[int64]bool{}
			together(writers, func(i int) {
				s := []*mongostore.Store{store, others}[i%2]
				ch := emit(1, 2, 3)
				ch.Spawns = []mongostore.Spawn{{ChildID: "c"}}
				res, err := s.Commit(t.Context(), newOrder(fmt.Sprint("o-", i)), ch)
				if !assertNoError(t, err) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, seq := range res.OutboxSeqs {
					outbox[seq] = true
				}
				spawns[res.SpawnSeqs[0]] = true
				if !slices.IsSorted(res.OutboxSeqs) {
					t.Errorf("numbers %v do not rise", res.OutboxSeqs)
				}
			})
			require.Len(t, outbox, 3*writers)
			require.Len(t, spawns, writers)
			require.NoError(t, b.db.Collection(fmt.Sprintf("r%d_executions", round)).Drop(t.Context()))
		}
	},

	"OneOfManyFirstCommitsMakesTheExecution": func(t *testing.T, b *bundle) {
		for _, id := range numbered("o-", 10) {
			var made atomic.Int64
			together(16, func(i int) {
				o := newOrder(id)
				o.Total = i
				_, err := b.store.Commit(t.Context(), o, mongostore.Changes{Processed: fmt.Sprint("ev-", i), Emits: emit(i).Emits})
				switch {
				case err == nil:
					made.Add(1)
				case !errors.Is(err, mongostore.ErrExists) || o.Version != 0:
					t.Errorf("a loser at version %d got %v", o.Version, err)
				}
			})
			require.EqualValues(t, 1, made.Load())
			require.Len(t, values(t, b.doc(t, id), "outbox"), 1)
			require.Len(t, values(t, b.doc(t, id), "processed"), 1)
		}
	},

	"UpdatesAllLandAndEachEventOnce": func(t *testing.T, b *bundle) {
		const workers, events = 6, 30
		together(workers, func(i int) {
			for n := range events { // each event comes to every worker
				o := &order{}
				opts := mongostore.UpdateOptions{EventID: fmt.Sprint("ev-", (n+i*5)%events), Create: true}
				_, err := b.store.Update(t.Context(), "o-1", o, opts, add1(o))
				assertNoError(t, err)
			}
		})
		o := b.load(t, "o-1")
		require.Equal(t, events, o.Total)
		require.EqualValues(t, events, o.Version)
		require.Len(t, values(t, b.doc(t, "o-1"), "outbox"), events)
	},

	"AChildIsCreatedOnceByManyRelays": func(t *testing.T, b *bundle) {
		for n := range 10 {
			e := b.spawned(t, fmt.Sprint("p-", n), fmt.Sprint("c-", n))
			var made, found atomic.Int64
			together(8, func(int) {
				res, err := b.store.CreateChild(t.Context(), e, child(), emit(1))
				if assertNoError(t, err) && res.Deduplicated {
					found.Add(1)
				} else {
					made.Add(1)
				}
				assertNoError(t, b.store.AckSpawn(t.Context(), e))
			})
			require.EqualValues(t, 1, made.Load())
			require.EqualValues(t, 7, found.Load())
			require.EqualValues(t, 1, b.load(t, e.ChildID).Version)
		}
		require.Empty(t, b.spawns(t, 0))
	},

	"RelaysDeliverEverythingWhileWritersWrite": func(t *testing.T, b *bundle) {
		const writers, perWriter = 4, 40
		var writing atomic.Int64
		writing.Store(writers)
		var mu sync.Mutex
		delivered := map[string]int{}
		together(writers+3, func(i int) {
			if i < writers {
				defer writing.Add(-1)
				for range perWriter {
					o := &order{}
					_, err := b.store.Update(t.Context(), fmt.Sprint("o-", i%2), o, mongostore.UpdateOptions{Create: true}, add1(o))
					assertNoError(t, err)
				}
				return
			}
			for last := false; ; {
				entries, err := b.store.PendingOutbox(t.Context(), 5)
				if !assertNoError(t, err) || last && len(entries) == 0 {
					return
				}
				mu.Lock()
				for _, e := range entries {
					delivered[e.EntryID()]++
				}
				mu.Unlock()
				assertNoError(t, b.store.AckOutbox(t.Context(), entries...))
				last = writing.Load() == 0
			}
		})
		require.Len(t, delivered, writers*perWriter)
		require.Empty(t, b.outbox(t, 0))
	},

	"ATimerThatIsArmedAgainSurvivesTheSweepers": func(t *testing.T, b *bundle) {
		const rounds = 60
		var done atomic.Bool
		together(3, func(i int) {
			if i == 0 {
				defer done.Store(true)
				for n := range rounds {
					o := &order{}
					_, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{Create: true}, func(ch *mongostore.Changes) error {
						*ch = arms(arm("Wait", float64(100+n)))
						return nil
					})
					assertNoError(t, err)
				}
				return
			}
			for !done.Load() {
				timers, err := b.store.DueTimers(t.Context(), at(100+rounds-2), 0) // all but the last are due
				assertNoError(t, err)
				for _, tm := range timers {
					assertNoError(t, b.store.DeleteTimer(t.Context(), tm))
				}
			}
		})
		require.Equal(t, []string{fmt.Sprintf("o-1:Wait@%d", 100+rounds-1)}, names(b.due(t, 1e6, 0)))
	},

	"AListingSeesWhatStaysExactlyOnce": func(t *testing.T, b *bundle) {
		stay := numbered("s-", 40)
		for _, id := range stay {
			b.create(t, id)
		}
		var done atomic.Bool
		together(3, func(i int) {
			if i > 0 {
				for n := 0; !done.Load(); n++ {
					o := newOrder(fmt.Sprintf("s-%03d-%d", n*7%40, i))
					_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
					assertNoError(t, err)
					assertNoError(t, b.store.Delete(t.Context(), o.ID, 1))
				}
				return
			}
			defer done.Store(true)
			for range 10 {
				seen := map[string]int{}
				for row, err := range b.store.All(t.Context(), mongostore.ListOptions{Limit: 7}) {
					assertNoError(t, err)
					seen[row.ID]++
				}
				for _, id := range stay {
					if seen[id] != 1 {
						t.Errorf("%s was listed %d times", id, seen[id])
					}
				}
			}
		})
	},
}
