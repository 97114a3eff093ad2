package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// populate stores 20,000 deliveries that wait behind one of a hot key, 5,000 finished
// ones, and 2,000 keys with one that is due, and one that waits, for each of two handlers.
func (b *bundle) populate(t testing.TB) {
	t.Helper()
	now := b.clock.Now()
	var events, deliveries, keys []any
	add := func(id, handler, key string, n int, more ...any) {
		events = append(events, kv("_id", id, "type", "made", "key", key, "payload", `1`, "created_at", now, "handlers", bson.A{handler}))
		deliveries = append(deliveries, append(kv("_id", handler+":"+id, "event_id", id, "type", "made", "handler", handler, "key", key,
			"sequence", int64(n), "available_at", now, "attempts", int64(0), "requeues", int64(0)), kv(more...)...))
	}
	for i := range 20_000 {
		if i == 0 {
			add("hot-0", "h", "hot", 1, "status", "processing", "due_at", now.Add(time.Hour), "active_lane", "h:hot", "token", "x")
			continue
		}
		add(fmt.Sprintf("hot-%d", i), "h", "hot", i+1, "status", "waiting", "waiting_lane", "h:hot")
	}
	for i := range 5_000 {
		status := []string{"completed", "dead"}[i%2]
		add(fmt.Sprintf("old-%d", i), "h", fmt.Sprintf("old-%d", i), 1, "status", status, "finished_at", now.Add(time.Duration(i-5_000)*time.Minute), "token", "y")
	}
	for i := range 2_000 {
		handler, key := []string{"h", "g"}[i%2], fmt.Sprintf("k-%d", i)
		lane := handler + ":" + key
		add("a-"+key, handler, key, 1, "status", "pending", "due_at", now.Add(time.Duration(i)*time.Millisecond), "active_lane", lane)
		add("b-"+key, handler, key, 2, "status", "waiting", "waiting_lane", lane)
		keys = append(keys, kv("_id", key, "n", int64(2)))
	}
	for coll, docs := range map[*mongo.Collection][]any{b.events: events, b.deliveries: deliveries, b.keys: keys} {
		_, err := coll.InsertMany(t.Context(), docs)
		require.NoError(t, err)
	}
	b.clock.Advance(time.Hour - time.Second)
}

// statements are what a command can be explained as: updates and deletes one by one.
func statements(t testing.TB, c mongotest.Command) (all []bson.Raw) {
	t.Helper()
	list := map[string]string{"update": "updates", "delete": "deletes"}[c.Name]
	if list == "" {
		return []bson.Raw{c.Body}
	}
	values, err := c.Body.Lookup(list).Array().Values()
	require.NoError(t, err)
	for _, v := range values {
		one := bson.D{}
		for _, e := range decoded(t, c.Body) {
			if e.Key == list {
				e.Value = bson.A{v}
			}
			one = append(one, e)
		}
		raw, err := bson.Marshal(one)
		require.NoError(t, err)
		all = append(all, raw)
	}
	return all
}

// TestEveryQueryCostsWhatItReturns captures every command of every call, those inside
// transactions too, and explains it.
func TestEveryQueryCostsWhatItReturns(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.populate(t)
	s, sent := b.monitored(t)
	ctx := t.Context()
	claim := func(handlers ...string) []*outbox.Delivery {
		ds, err := s.Claim(ctx, outbox.ClaimOptions{Handlers: handlers})
		require.NoError(t, err)
		return ds
	}
	var held []*outbox.Delivery
	next := func() *outbox.Delivery { d := held[0]; held = held[1:]; return d }
	calls := []struct {
		name string
		most int64 // keys of one command beyond what it returns
		do   func() error
	}{
		{"Claim with repair and sweep", 6000, func() error { held = claim("h"); return nil }}, // the sweep walks a page of 1,000 lanes
		{"Claim", 60, func() error { held = claim("h"); return nil }},
		{"Claim for two", 60, func() error { held = append(held, claim("h", "g")...); return nil }},
		{"Complete", 60, func() error { return s.Complete(ctx, next(), next(), next()) }},
		{"Complete by id and token", 60, func() error { d := next(); return s.Complete(ctx, &outbox.Delivery{ID: d.ID, Token: d.Token}) }},
		{"Complete again", 60, func() error { return s.Complete(ctx, held[0], held[0], held[1]) }},
		{"Complete in a transaction", 60, func() error {
			return s.Transaction(ctx, func(ctx context.Context) error { return s.Complete(ctx, held[2]) })
		}},
		{"Release", 60, func() error { return s.Release(ctx, held[3]) }},
		{"Retry", 60, func() error { return s.Retry(ctx, held[4], 0, errors.New("no")) }},
		{"Extend", 60, func() error { return s.Extend(ctx, held[5], time.Hour) }},
		{"Bury", 60, func() error { return s.Bury(ctx, held[6], errors.New("no")) }},
		{"Requeue", 60, func() error { _, err := s.Requeue(ctx, held[6].ID, "h:old-1"); return err }},
		{"Claim of what was requeued", 100, func() error { claim("h", "g"); return nil }},
		{"Append to a hot key", 60, func() error { return appendBy(ctx, s, msg("n-1", "hot", "h", "g")) }},
		{"Append of many", 1000, func() error {
			return appendBy(ctx, s, append(msgs("n-2", "hot", 70), msg("n-3", "k-7"), msg("n-3", "new"))...)
		}},
		{"Append of known ones", 60, func() error { return appendBy(ctx, s, msg("hot-5", "hot", "h", "late"), msg("hot-6", "hot", "h")) }},
		{"Purge", 1000, func() error {
			_, err := s.Purge(ctx, outbox.PurgeOptions{CompletedBefore: b.clock.Now().Add(-4900 * time.Minute), DeadBefore: b.clock.Now().Add(-4900 * time.Minute), Batch: 100})
			return err
		}},
		{"Purge of nothing", 60, func() error {
			_, err := s.Purge(ctx, outbox.PurgeOptions{CompletedBefore: time.Unix(1, 0), DeadBefore: time.Unix(1, 0)})
			return err
		}},
	}
	for _, opts := range []outbox.ListOptions{
		{}, {Handler: "g"}, {Key: "hot"}, {Key: "hot", Handler: "h"}, {Key: "hot", Status: "waiting"}, {Status: "waiting"}, {Status: "waiting", Handler: "h"},
		{Status: "completed"}, {Status: "dead"}, {Status: "dead", Handler: "h"}, {Key: "k-5", Status: "pending", Type: "made"},
	} {
		opts.Limit = 20
		calls = append(calls, struct {
			name string
			most int64
			do   func() error
		}{fmt.Sprintf("List %+v", opts), 60, func() error {
			for range 3 {
				page, err := s.List(ctx, opts)
				if err != nil {
					return err
				}
				opts.Cursor = page.Next
			}
			return nil
		}})
	}
	calls = append(calls, struct {
		name string
		most int64
		do   func() error
	}{"Stats", 100_000, func() error { _, err := s.Stats(ctx); return err }})
	seen := map[string]int{}
	for _, call := range calls {
		sent.Reset()
		require.NoError(t, call.do(), call.name)
		for _, c := range sent.Commands() {
			switch c.Name {
			case "insert", "commitTransaction", "abortTransaction", "getMore":
				continue
			}
			for _, statement := range statements(t, c) {
				seen[c.Name]++
				totals := mongotest.Explain(t, b.db, statement)
				what := fmt.Sprintf("%s: %.600s: %+v", call.name, statement, totals)
				require.False(t, totals.CollectionScan(), "scans the collection: %s", what)
				require.False(t, totals.Stages["SORT"] || totals.Stages["$sort"], "sorts in memory: %s", what)
				require.LessOrEqual(t, totals.KeysExamined, 2*totals.Returned+call.most, what)
				require.LessOrEqual(t, totals.DocsExamined, 2*totals.Returned+call.most, what)
			}
		}
	}
	for _, name := range []string{"find", "aggregate", "update", "delete", "findAndModify"} {
		require.Positive(t, seen[name], name)
	}
	t.Log(seen)
}
