package outbox_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

func TestRepair(t *testing.T) { run(t, repairTests) }

// strand makes n lanes, each of one event that waits behind nothing; marked or not.
func (b *bundle) strand(t testing.TB, n int, marked bool) {
	t.Helper()
	var all []outbox.Message
	for i := range n {
		all = append(all, msg(fmt.Sprintf("e-%05d", i), fmt.Sprintf("k-%05d", i)))
	}
	b.append(t, all...)
	set := kv("status", "waiting", "waiting_lane", "$active_lane")
	if marked {
		set = append(set, kv("suspect_since", b.clock.Now())...)
	}
	_, err := b.deliveries.UpdateMany(t.Context(), bson.D{}, bson.A{kv("$set", set), kv("$unset", bson.A{"active_lane", "due_at"})})
	require.NoError(t, err)
	require.EqualValues(t, n, b.stats(t).Waiting)
}

// finishByHand ends a delivery as a worker does that dies before it looks at its lane.
func (b *bundle) finishByHand(t testing.TB, id string) {
	t.Helper()
	edit(t, b.deliveries, id, kv("$set", kv("status", "completed", "finished_at", b.clock.Now()), "$unset", kv("due_at", "", "active_lane", "")))
}

func (b *bundle) marked(t testing.TB) (ids []string) {
	t.Helper()
	for _, doc := range all(t, b.deliveries) {
		if doc.Lookup("suspect_since").Type != 0 {
			ids = append(ids, doc.Lookup("_id").StringValue())
		}
	}
	return ids
}

var repairTests = tests{
	"FindsALaneWhoseFinisherDied": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "k"))
		d := b.claimOne(t)
		b.append(t, msg("e-2", "k"), msg("e-3", "k"))
		require.Equal(t, []string{"h:e-2"}, b.marked(t), "the first of those that wait")
		b.finishByHand(t, d.ID)
		eventually(t, func() bool { return len(b.claim(t, 10)) == 1 }, "the next is claimed")
		require.Equal(t, "processing", b.status(t, "h:e-2"))
		require.Empty(t, b.marked(t))
	},

	"KeepsAMarkWhileOneOfTheLaneIsHeld_AndClearsItThen": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", "k"))
		d := b.claimOne(t)
		b.append(t, msg("e-2", "k"))
		claims := func() { // a new store repairs at once
			ds, err := b.on(t, b.client).Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"nobody"}})
			require.NoError(t, err)
			require.Empty(t, ds)
		}
		claims()
		require.Equal(t, []string{"h:e-2"}, b.marked(t), "who holds e-1 could finish it without having seen e-2")
		require.NoError(t, b.store.Release(t.Context(), d))
		claims()
		require.Empty(t, b.marked(t), "who claims e-1 sees e-2")
		b.complete(t, b.claimOne(t))
		require.Equal(t, "h:e-2", b.claimOne(t).ID)
	},

	"GoesThroughAllMarksAtOnce": func(t *testing.T, b *bundle) {
		b.strand(t, 2300, true)
		_, err := b.on(t, b.client).Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"nobody"}})
		require.NoError(t, err)
		require.Zero(t, b.stats(t).Waiting)
		require.EqualValues(t, 2300, b.stats(t).Pending)
	},

	"GoesOnceMoreThroughLanesThatLeftNoMark": func(t *testing.T, b *bundle) {
		b.strand(t, 2300, false)
		s := b.on(t, b.client)
		claim := func() {
			_, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"nobody"}})
			require.NoError(t, err)
		}
		claim()
		require.EqualValues(t, 1300, b.stats(t).Waiting, "a page at a time")
		eventually(t, func() bool { claim(); return b.stats(t).Waiting == 0 }, "the slow sweep ends")
		edit(t, b.deliveries, "h:e-00001", bson.A{kv("$set", kv("status", "waiting", "waiting_lane", "$active_lane")), kv("$unset", bson.A{"active_lane", "due_at"})})
		claim()
		require.EqualValues(t, 1, b.stats(t).Waiting, "then it rests")
	},

	"TheSweepLeavesLanesAloneThatLive": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 5)...)
		before := all(t, b.deliveries)
		_, err := b.on(t, b.client).Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"nobody"}})
		require.NoError(t, err)
		for i, doc := range all(t, b.deliveries) {
			want := decoded(t, before[i])
			got := append(decoded(t, doc), bson.E{})[:len(want)]
			if before[i].Lookup("suspect_since").Type != 0 {
				want, got = want[:len(want)-1], got[:len(want)-1] // the mark is cleared
			}
			require.Equal(t, want, got)
		}
	},

	"ThatFailsLetsTheClaimGoOn": func(t *testing.T, b *bundle) {
		proxy := mongotest.NewProxy(t, b.server.Addr(t))
		client := b.server.Client(t, mongotest.Through(proxy))
		var log syncBuffer
		s, err := outbox.New(client, outbox.Config{Database: b.db.Name(), Clock: b.clock, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		b.append(t, msg("e-1", "k"))
		proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
			if m.Command == "find" && m.Request.Lookup("filter", "suspect_since").Type != 0 {
				return mongotest.Cut
			}
			return mongotest.Pass
		})
		ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
		require.NoError(t, err)
		require.Len(t, ds, 1)
		require.Contains(t, log.String(), "lanes could not be repaired")
	},
}

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
