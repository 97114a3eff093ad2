package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

// envSeed replays the choices of a history, though not its interleaving.
const envSeed = "MONGOSTORE_TEST_SEED"

// exerciseHistory: a random mix of everything by many at once, then the books are
// checked:
//
//   - an execution's version and total count the commits that were acknowledged
//   - every number was given once, to the commit that was told it
//   - what was emitted is pending or was acked, never both, never neither
//   - every processed event, every trace step, and the last arming of a timer is there
//   - and what invariants.go says of every document
func exerciseHistory(t *testing.T, h *harness) {
	run(t, h.withIndexes, tests{
		"AddsUp":                func(t *testing.T, b *bundle) { newHistory(t, b, 0).play(t) },
		"AddsUpWithBlocksAhead": func(t *testing.T, b *bundle) { newHistory(t, b, 7).play(t) },
	})
}

const (
	historyPlayers = 6
	historyMoves   = 60
	historyIDs     = 3
)

type history struct {
	b      *bundle
	seed   uint64
	stores []*mongostore.Store // as of two processes

	mu      sync.Mutex
	commits map[string]int
	emitted map[string]bool // EntryIDs
	acked   map[string]bool
	steps   map[string]int
	handled map[string]map[string]bool
}

func newHistory(t *testing.T, b *bundle, block int) *history {
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("%s=%d", envSeed, seed)
	h := &history{b: b, seed: seed, commits: map[string]int{}, emitted: map[string]bool{}, acked: map[string]bool{}, steps: map[string]int{}, handled: map[string]map[string]bool{}}
	for range 2 {
		h.stores = append(h.stores, b.with(t, func(c *mongostore.Config) { c.SeqBlock, c.TraceMax, c.ProcessedMax = block, -1, -1 }))
	}
	for i := range historyIDs {
		h.handled[fmt.Sprint("o-", i)] = map[string]bool{}
	}
	return h
}

func (h *history) play(t *testing.T) {
	together(historyPlayers, func(player int) {
		rnd := rand.New(rand.NewPCG(h.seed, uint64(player)))
		store := h.stores[player%len(h.stores)]
		for range historyMoves {
			id := fmt.Sprint("o-", rnd.IntN(historyIDs))
			switch n := rnd.IntN(10); {
			case n < 5:
				h.update(t, store, rnd, id)
			case n < 7:
				h.staleCommit(t, store, rnd, id)
			case n < 9:
				h.sweep(t, store, rnd)
			default:
				if assertNoError(t, store.AppendTrace(t.Context(), id, d("n", 1))) {
					h.record(func() { h.steps[id]++ })
				}
			}
		}
	})
	h.check(t)
}

func (h *history) record(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// changes are a random mix.
func (h *history) changes(rnd *rand.Rand, o *order) (ch mongostore.Changes) {
	o.Total++
	ch = emit(make([]any, rnd.IntN(4))...)
	ch.Timers = []mongostore.TimerOp{{Path: "a.b", FireAt: at(float64(1 + rnd.IntN(100)))}, {Path: "c", Cancel: rnd.IntN(2) == 0, FireAt: at(50)}}
	if rnd.IntN(2) == 0 {
		ch.Trace = d("n", 1)
	}
	return ch
}

func (h *history) landed(id string, res mongostore.CommitResult, ch mongostore.Changes) {
	h.record(func() {
		h.commits[id]++
		for _, seq := range res.OutboxSeqs {
			h.emitted[mongostore.OutboxEntry{ExecutionID: id, Seq: seq}.EntryID()] = true
		}
		if ch.Trace != nil {
			h.steps[id]++
		}
	})
}

// update handles an event that comes several times.
func (h *history) update(t *testing.T, store *mongostore.Store, rnd *rand.Rand, id string) {
	o := &order{}
	opts := mongostore.UpdateOptions{Create: true, EventID: fmt.Sprint("ev-", rnd.IntN(40))}
	var ch mongostore.Changes
	res, err := store.Update(t.Context(), id, o, opts, func(c *mongostore.Changes) error {
		*c = h.changes(rnd, o)
		ch = *c
		return nil
	})
	if !assertNoError(t, err) {
		return
	}
	if !res.Deduplicated {
		h.landed(id, res, ch)
		h.record(func() {
			if h.handled[id][opts.EventID] {
				t.Errorf("%s was handled twice", opts.EventID)
			}
			h.handled[id][opts.EventID] = true
		})
	}
}

// staleCommit commits without trying again, with acks of its own entries.
func (h *history) staleCommit(t *testing.T, store *mongostore.Store, rnd *rand.Rand, id string) {
	o := &order{}
	if err := store.Load(t.Context(), id, o); err != nil {
		if !errors.Is(err, mongostore.ErrNotFound) {
			t.Error(err)
		}
		return
	}
	ch := h.changes(rnd, o)
	in, err := store.Inspect(t.Context(), id)
	if !assertNoError(t, err) {
		return
	}
	for _, e := range in.Outbox[:len(in.Outbox)/2] {
		ch.Acks = append(ch.Acks, e)
	}
	res, err := store.Commit(t.Context(), o, ch)
	if err != nil {
		if !errors.Is(err, mongostore.ErrConflict) {
			t.Error(err)
		}
		return
	}
	h.landed(id, res, ch)
	h.record(func() {
		for _, e := range ch.Acks {
			h.acked[e.EntryID()] = true
		}
	})
}

func (h *history) sweep(t *testing.T, store *mongostore.Store, rnd *rand.Rand) {
	entries, err := store.PendingOutbox(t.Context(), 1+rnd.IntN(5))
	if !assertNoError(t, err) || !assertNoError(t, store.AckOutbox(t.Context(), entries...)) {
		return
	}
	h.record(func() {
		for _, e := range entries {
			h.acked[e.EntryID()] = true
		}
	})
}

func (h *history) check(t *testing.T) {
	pending := map[string]bool{}
	for _, e := range h.b.outbox(t, 100_000) {
		pending[e.EntryID()] = true
		require.True(t, h.emitted[e.EntryID()], "%s was never told to its committer", e.EntryID())
		require.False(t, h.acked[e.EntryID()], "%s came back", e.EntryID())
	}
	for id := range h.emitted {
		require.True(t, pending[id] || h.acked[id], "%s is lost", id)
	}
	for id, commits := range h.commits {
		o := h.b.load(t, id)
		require.Equal(t, commits, o.Total, "total of %s", id)
		require.EqualValues(t, commits, o.Version, "version of %s", id)
		doc := h.b.doc(t, id)
		require.Len(t, values(t, doc, "trace"), h.steps[id], "steps of %s", id)
		for i, index := range indexes(t, doc) {
			require.EqualValues(t, i, index, "%s", id)
		}
		require.Len(t, values(t, doc, "processed"), len(h.handled[id]))
		require.Contains(t, timersOf(t, doc), "a．b")
	}
}
