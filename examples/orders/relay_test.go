package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
)

func quietRelay(slot, slots int) *Relay {
	return &Relay{Engine: &Engine{Stats: new(Stats)}, Slot: slot, Slots: slots, Log: slog.New(slog.DiscardHandler)}
}

func someEntries(executions, each int) []mongostore.OutboxEntry {
	var all []mongostore.OutboxEntry
	for seq := range executions * each {
		all = append(all, mongostore.OutboxEntry{ExecutionID: orderID(seq % executions), Seq: int64(seq)})
	}
	return all
}

func TestEachEntryBelongsToOneSlot(t *testing.T) {
	t.Parallel()
	const slots = 4
	entries := someEntries(40, 2)
	seen := map[int64]int{}
	for slot := range slots {
		mine, err := ours(quietRelay(slot, slots), func(int) ([]mongostore.OutboxEntry, error) { return entries, nil })
		require.NoError(t, err)
		require.NotEmpty(t, mine)
		for _, e := range mine {
			seen[e.Seq]++
		}
	}
	require.Len(t, seen, len(entries))
	for seq, n := range seen {
		require.Equal(t, 1, n, "entry %d", seq)
	}
}

func TestOwnerIsTheExecutionThatOwes(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a", owner(mongostore.OutboxEntry{ExecutionID: "a", TargetID: "b"}))
	require.Equal(t, "a", owner(mongostore.SpawnEntry{ParentID: "a", ChildID: "b"}))
	require.Equal(t, "a", owner(mongostore.Timer{ExecutionID: "a", Path: "b"}))
}

func TestSweepLooksPastAWindowFullOfOtherSlots(t *testing.T) {
	t.Parallel()
	r := quietRelay(0, 4)
	var backlog []mongostore.OutboxEntry
	for n := 0; len(backlog) < 2*sweepLimit; n++ {
		if e := (mongostore.OutboxEntry{ExecutionID: orderID(n)}); !r.isOurs(e) {
			backlog = append(backlog, e)
		}
	}
	last := mongostore.OutboxEntry{}
	for n := 0; last.ExecutionID == ""; n++ {
		if e := (mongostore.OutboxEntry{ExecutionID: orderID(n)}); r.isOurs(e) {
			last = e
		}
	}
	backlog = append(backlog, last)
	mine, err := ours(r, func(limit int) ([]mongostore.OutboxEntry, error) {
		return backlog[:min(limit, len(backlog))], nil
	})
	require.NoError(t, err)
	require.Equal(t, []mongostore.OutboxEntry{last}, mine)
}

func TestDeliverKeepsTheOrderOfAnExecution(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	delivered := map[string][]int64{}
	r := quietRelay(0, 1)
	handled := deliver(t.Context(), r, someEntries(20, 5), func(_ context.Context, e mongostore.OutboxEntry) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		delivered[e.ExecutionID] = append(delivered[e.ExecutionID], e.Seq)
		return e.Seq%2 == 0, nil
	})
	require.Len(t, handled, 100)
	require.Len(t, delivered, 20)
	for id, seqs := range delivered {
		require.IsIncreasing(t, seqs, id)
	}
	require.Equal(t, Counts{Deliveries: 100, Repeats: 50}, r.Engine.Stats.counts())
}

func TestFailedEntryHoldsBackTheRestOfItsExecution(t *testing.T) {
	t.Parallel()
	r := quietRelay(0, 1)
	handled := deliver(t.Context(), r, someEntries(3, 3), func(_ context.Context, e mongostore.OutboxEntry) (bool, error) {
		if e.ExecutionID == orderID(1) && e.Seq == 4 {
			return false, errors.New("not now")
		}
		return true, nil
	})
	var got []string
	for _, e := range handled {
		got = append(got, fmt.Sprintf("%s/%d", e.ExecutionID, e.Seq))
	}
	require.ElementsMatch(t, []string{
		"order:0000/0", "order:0000/3", "order:0000/6", "order:0001/1", "order:0002/2", "order:0002/5", "order:0002/8",
	}, got, "4 failed, so 7 waits too")
	require.EqualValues(t, 1, r.Engine.Stats.Failures.Load())
}
