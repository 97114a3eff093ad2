package storetest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// exerciseAdopt: documents of harel get the fields that listings and sweeps go by.
func exerciseAdopt(t *testing.T, h *harness) {
	run(t, h.withIndexes, adoptTests)
}

func (b *bundle) adopt(t *testing.T) int64 {
	t.Helper()
	n, err := b.store.Adopt(t.Context())
	require.NoError(t, err)
	return n
}

// harel is a document as harel writes it.
func harel(id, data string, timers bson.D) bson.D {
	return d("_id", id, "definition_id", "M", "version", 2, "data", data, "outbox", bson.A{}, "spawns", bson.A{}, "trace", bson.A{},
		"processed", bson.A{}, "timers", timers)
}

var adoptTests = tests{
	"GivesDocumentsOfHarelTheirFieldsOnce": func(t *testing.T, b *bundle) {
		b.insert(t, harel("o-1", `{"id":"o-1","definition_id":"M","status":"RUNNING","outcome":null,"active_path":"Wait","parent_id":null,"updated_at":1704067200.5}`, d("Wait", 500.5, "Idle", 400)))
		b.insert(t, harel("o-2", `{"id":"o-2","definition_id":"M","status":"DONE","outcome":"ok","active_path":null,"parent_id":"o-1","finished_at":1704067201.5}`, d()))
		owing := harel("o-3", `{"id":"o-3","definition_id":"M","status":"RUNNING"}`, d())
		owing[4].Value = bson.A{d("seq", 1, "target_id", nil, "event", "{}")}
		b.insert(t, owing)
		require.Empty(t, b.due(t, 1000, 0))
		require.EqualValues(t, 3, b.adopt(t))
		require.EqualValues(t, 0, b.adopt(t), "all are true now")

		doc := b.doc(t, "o-1")
		require.Equal(t, "RUNNING Wait", doc.Lookup("status").StringValue()+" "+doc.Lookup("active_path").StringValue())
		require.Equal(t, bson.TypeNull, doc.Lookup("parent_id").Type)
		require.Equal(t, 1704067200.5, doc.Lookup("updated_at").Double())
		require.Equal(t, 400.0, doc.Lookup("timer_at").Double())
		require.Equal(t, 400.0, doc.Lookup("due_at").Double())
		doc = b.doc(t, "o-2")
		require.Equal(t, "DONE ok o-1", doc.Lookup("status").StringValue()+" "+doc.Lookup("outcome").StringValue()+" "+doc.Lookup("parent_id").StringValue())
		require.Equal(t, 1704067201.5, doc.Lookup("finished_at").Double())
		require.Zero(t, doc.Lookup("due_at").Type)
		require.LessOrEqual(t, b.doc(t, "o-3").Lookup("due_at").Double(), seconds(b.clock.Now()))
		require.Equal(t, []string{"o-1:Idle@400", "o-1:Wait@500.5"}, names(b.due(t, 1000, 0)))
		require.Equal(t, []string{"o-1", "o-3"}, b.list(t, mongostore.ListOptions{Statuses: []string{"RUNNING"}, RootsOnly: true}))
		b.commit(t, b.load(t, "o-1"), b.everything("ev-1"))
	},

	"MakesFieldsTrueWhereHarelWroteLast": func(t *testing.T, b *bundle) {
		o := newOrder("o-1")
		b.commit(t, o, arms(arm("Wait", 500)))
		// harel sets the snapshot, the version and the timers, nothing of ours.
		b.set(t, "o-1", d("version", 2, "data", `{"id":"o-1","definition_id":"orders","status":"FAILED","active_path":"End","outcome":"broken","finished_at":1704067300}`, "timers", d("Other", 300)))
		loaded := b.load(t, "o-1")
		require.Equal(t, "FAILED", loaded.Status, "Load knows at once")
		require.EqualValues(t, 1, b.adopt(t))
		require.Equal(t, []string{"o-1"}, b.list(t, mongostore.ListOptions{Statuses: []string{"FAILED"}}))
		in := b.inspect(t, "o-1")
		require.Equal(t, "End broken", in.Summary.ActivePath+" "+in.Summary.Outcome)
		require.Equal(t, time.Unix(1704067300, 0).UTC(), in.Summary.FinishedAt)
		require.Equal(t, []string{"o-1:Other@300"}, names(b.due(t, 400, 0)))

		o = b.load(t, "o-1")
		o.Status = "RUNNING"
		b.commit(t, o, mongostore.Changes{})
		require.Zero(t, b.inspect(t, "o-1").Summary.FinishedAt)
		require.EqualValues(t, 0, b.adopt(t))
	},

	"LeavesOwnDocumentsByteByByte": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		b.commit(t, o, b.everything("ev-2"))
		b.create(t, "o-2")
		b.appendTrace(t, "stub", d("n", 1))
		done := newOrder("o-3")
		done.Status = "DONE"
		b.commit(t, done, mongostore.Changes{})
		before := map[string]bson.Raw{}
		for _, id := range []string{"o-1", "o-2", "o-3", "stub"} {
			before[id] = b.doc(t, id)
		}
		b.clock.Advance(time.Hour)
		require.EqualValues(t, 0, b.adopt(t))
		for id, doc := range before {
			require.Equal(t, doc, b.doc(t, id), id)
		}
	},

	"RepairsFieldsOfOursThatAreDamaged": func(t *testing.T, b *bundle) {
		for name, damage := range map[string]any{"null": nil, "NaN": math.NaN(), "text": "soon", "infinite": math.Inf(1), "document": d()} {
			for _, field := range []string{"timer_at", "due_at", "updated_at", "finished_at"} {
				id := field + " is " + name
				o := newOrder(id)
				o.Status = "DONE"
				b.commit(t, o, arms(arm("Wait", 500)))
				b.set(t, id, d(field, damage))
			}
		}
		for _, field := range []string{"status", "parent_id", "outcome", "active_path", "definition_id"} {
			b.create(t, field+" is a number", arms(arm("Wait", 500)))
			b.set(t, field+" is a number", d(field, 5))
		}
		b.adopt(t)
		b.checkInvariants(t)
		for row, err := range b.store.All(t.Context(), mongostore.ListOptions{}) {
			require.NoError(t, err)
			require.NoError(t, row.Err)
			require.False(t, row.UpdatedAt.IsZero())
			require.Equal(t, row.Status == "DONE", !row.FinishedAt.IsZero(), row.ID)
		}
		require.Len(t, b.due(t, 500, 0), 25)
		require.EqualValues(t, 0, b.adopt(t))
	},

	"TellsWhatItCannotReadAndGoesOn": func(t *testing.T, b *bundle) {
		b.insert(t, harel("a", `not json`, d("Wait", 500)))
		b.insert(t, harel("b", `{"status":5}`, d("Wait", math.NaN(), "Other", 400)))
		b.insert(t, d("_id", "c", "version", "two", "data", "{}"))
		b.insert(t, d("_id", "", "version", 1, "data", "{}"))
		b.insert(t, d("_id", 5, "version", 1, "data", "{}"))
		b.insert(t, harel("z", `{"id":"z","status":"RUNNING"}`, d("Wait", 300)))
		b.adopt(t)
		require.Equal(t, []string{"a data", "b timers.Wait", "c version"}, b.damage.take())
		require.Equal(t, []string{"z:Wait@300", "b:Other@400", "a:Wait@500"}, names(b.due(t, 1000, 0)))
		require.Equal(t, "RUNNING", b.doc(t, "z").Lookup("status").StringValue())
		require.Equal(t, "not json", b.doc(t, "a").Lookup("data").StringValue())
	},

	"WalksAnyNumberOfDocuments": func(t *testing.T, b *bundle) {
		var docs []any
		for i := range 450 {
			id := fmt.Sprintf("o-%03d", i)
			docs = append(docs, harel(id, `{"id":"`+id+`","status":"RUNNING"}`, d("Wait", 100+i)))
		}
		_, err := b.executions.InsertMany(t.Context(), docs)
		require.NoError(t, err)
		b.byHand = true
		require.EqualValues(t, 450, b.adopt(t))
		require.Len(t, b.due(t, 1000, 1000), 450)
		require.EqualValues(t, 0, b.adopt(t))
	},

	"DoesNotWriteOverACommitThatWasFaster": func(t *testing.T, b *bundle) {
		b.insert(t, harel("o-1", `{"id":"o-1","status":"RUNNING"}`, d("Wait", 500)))
		proxy := mongotest.NewProxy(t, b.server.Addr(t))
		store := b.on(t, mongotest.Connect(t, proxy.URI()), func(*mongostore.Config) {})
		release := make(chan struct{})
		reached := holdOnce(proxy, "update", release)
		adopted := make(chan error)
		go func() {
			_, err := store.Adopt(t.Context())
			adopted <- err
		}()
		<-reached // it has read the document
		o := b.load(t, "o-1")
		o.Status = "DONE"
		b.commit(t, o, arms(arm("Wait", 300)))
		close(release)
		require.NoError(t, <-adopted)
		require.Equal(t, []string{"o-1"}, b.list(t, mongostore.ListOptions{Statuses: []string{"DONE"}}))
		require.Equal(t, 300.0, b.doc(t, "o-1").Lookup("timer_at").Double())
		b.checkInvariants(t)
	},

	"IsSafeWhileWritersRun": func(t *testing.T, b *bundle) {
		ids := numbered("o-", 8)
		for _, id := range ids {
			b.insert(t, harel(id, `{"id":"`+id+`","status":"RUNNING"}`, d()))
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, id := range ids {
			wg.Go(func() {
				for n := 0; n < 10 || ctx.Err() == nil; n++ {
					o := &order{}
					_, err := b.store.Update(t.Context(), id, o, mongostore.UpdateOptions{}, func(ch *mongostore.Changes) error {
						o.Status = []string{"RUNNING", "DONE"}[n%2]
						ch.Timers = []mongostore.TimerOp{arm("Wait", float64(1000-n%500)), {Path: "Idle", Cancel: n%2 == 0, FireAt: at(float64(n%300 + 1))}}
						return nil
					})
					if !assertNoError(t, err) {
						return
					}
				}
			})
		}
		for range 20 {
			_, err := b.store.Adopt(t.Context())
			assertNoError(t, err)
		}
		stop()
		wg.Wait()
		b.checkInvariants(t)
	},
}
