package mongostore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

const storedForExplain = 20_000

// TestEveryQueryCostsWhatItReturns captures each query as the store sends it, with
// 20,000 executions stored, and explains it.
func TestEveryQueryCostsWhatItReturns(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	plain, database := server.Database(t)
	db := plain.Database(database)
	var sent mongotest.Commands
	store := newStore(t, server.Client(t, options.Client().SetMonitor(sent.Monitor())), database, mongostore.Config{})
	storeMany(t, db.Collection("executions"))

	ctx := t.Context()
	var o order
	type query struct {
		name string
		do   func() error
		at   int // which of the sent commands
	}
	queries := []query{
		{"Load", func() error { return store.Load(ctx, "x-00017", &o) }, 0},
		{"LoadForEvent", func() error { _, err := store.LoadForEvent(ctx, "x-00017", "e", &o); return err }, 0},
		{"IsProcessed", func() error { _, err := store.IsProcessed(ctx, "x-00017", "e"); return err }, 0},
		{"ReadTrace", func() error { var steps []bson.M; return store.ReadTrace(ctx, "x-00017", &steps) }, 0},
		{"Inspect", func() error { _, err := store.Inspect(ctx, "x-00017"); return err }, 0},
		{"AppendTrace", func() error { return store.AppendTrace(ctx, "x-00017", bson.D{{Key: "a", Value: 1}}) }, 0},
		{"Commit", func() error {
			if err := store.Load(ctx, "x-00018", &o); err != nil {
				return err
			}
			_, err := store.Commit(ctx, &o, mongostore.Changes{Processed: "e9", Trace: bson.D{{Key: "a", Value: 1}}})
			return err
		}, 1},
		{"a conflict's read", func() error {
			_, err := store.Commit(ctx, newOrder("x-00018"), mongostore.Changes{})
			require.ErrorIs(t, err, mongostore.ErrExists)
			return nil
		}, 1},
		{"Delete", func() error { return store.Delete(ctx, "x-00019", 1) }, 0},
		{"PendingOutbox", func() error { _, err := store.PendingOutbox(ctx, 50); return err }, 0},
		{"PendingSpawns", func() error { _, err := store.PendingSpawns(ctx, 50); return err }, 0},
		{"AckOutbox", func() error {
			return store.AckOutbox(ctx, mongostore.OutboxEntry{ExecutionID: "x-00000", Seq: 1})
		}, 0},
		{"AckSpawn", func() error { return store.AckSpawn(ctx, mongostore.SpawnEntry{ParentID: "x-00000", Seq: 1}) }, 0},
		{"DueTimers", func() error { _, err := store.DueTimers(ctx, someTime, 50); return err }, 0},
		{"DeleteTimer", func() error {
			return store.DeleteTimer(ctx, mongostore.Timer{ExecutionID: "x-00000", Path: "Wait", FireAt: someTime})
		}, 0},
	}
	claim := func() error {
		leases, err := store.Claim(ctx, mongostore.ClaimOptions{Limit: 5})
		if err == nil {
			err = store.Complete(ctx, leases[0])
		}
		return err
	}
	deadLetters := func() error { _, err := store.DeadLetters(ctx, mongostore.DeadLetterOptions{Limit: 10}); return err }
	before := int64(0)
	purge := func() error {
		before += 5_000 // another 20 each time
		_, err := store.Purge(ctx, mongostore.PurgeOptions{FinishedBefore: time.Unix(before, 0), Batch: 10})
		return err
	}
	for i, name := range []string{"Claim's look", "Claim's update", "Claim's reading back", "Complete"} {
		queries = append(queries, query{name, claim, i})
	}
	queries = append(queries, query{"Purge's look", purge, 0}, query{"Purge's counters", purge, 2}, query{"Purge's next look", purge, 3})
	queries = append(queries, query{"DeadLetters", deadLetters, 0})
	for _, filter := range listFilters() {
		queries = append(queries, query{fmt.Sprintf("List %+v", filter), func() error { _, err := store.List(ctx, filter); return err }, 0})
	}
	for _, q := range queries {
		sent.Reset()
		require.NoError(t, q.do(), q.name)
		totals := mongotest.Explain(t, db, sent.Commands()[q.at].Body)
		most := 2*max(totals.Returned, 1) + 20
		require.LessOrEqual(t, totals.KeysExamined, most, "%s: keys examined, %d returned, stages %v", q.name, totals.Returned, totals.Stages)
		require.LessOrEqual(t, totals.DocsExamined, most, "%s: documents examined, %d returned, stages %v", q.name, totals.Returned, totals.Stages)
		require.False(t, totals.CollectionScan(), "%s scans the collection", q.name)
		require.False(t, totals.Stages["SORT"], "%s sorts in memory: %v", q.name, totals.Stages)
	}
}

// Stats counts what is owed, and reads that alone.
func TestStatsReadsWhatIsOwedAlone(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	plain, database := server.Database(t)
	db := plain.Database(database)
	var sent mongotest.Commands
	store := newStore(t, server.Client(t, options.Client().SetMonitor(sent.Monitor())), database, mongostore.Config{})
	storeMany(t, db.Collection("executions"))
	sent.Reset()
	st, err := store.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, storedForExplain/2, st.Pending)
	require.EqualValues(t, storedForExplain/100, st.Due)
	for i, most := range []int64{st.Pending, st.Dead} {
		totals := mongotest.Explain(t, db, sent.Commands()[i].Body)
		require.False(t, totals.CollectionScan())
		require.LessOrEqual(t, totals.DocsExamined, most)
	}
}

// listFilters is one page of each kind, and one far into the collection.
func listFilters() []mongostore.ListOptions {
	return []mongostore.ListOptions{
		{},
		{Limit: 10, IDPrefix: "x-19"},
		{Limit: 10, Statuses: []string{"RARE"}},
		{Limit: 10, Statuses: []string{"RARE", "NEW"}},
		{Limit: 10, DefinitionID: "rare"},
		{Limit: 10, DefinitionID: "order", Statuses: []string{"RARE"}},
		{Limit: 10, ParentID: "x-00003"},
		{Limit: 10, RootsOnly: true},
		{Limit: 10, RootsOnly: true, Statuses: []string{"RARE"}},
		{Limit: 10, RootsOnly: true, DefinitionID: "rare"},
		{Limit: 10, ParentID: "x-00003", Statuses: []string{"NEW"}},
		{Limit: 10, IDPrefix: "x-19", Statuses: []string{"RARE"}},
	}
}

// storeMany stores executions as the store writes them, made from one that it wrote:
// every 100th owes an event, a spawn and a due timer, every 2nd has a timer far off,
// every 500th is of a rare status and definition, every 4th a child.
func storeMany(t *testing.T, executions *mongo.Collection) {
	t.Helper()
	docs := make([]any, 0, storedForExplain)
	for i := range storedForExplain {
		docs = append(docs, storedDocument(i))
		if len(docs) == cap(docs) || len(docs) == 5000 {
			_, err := executions.InsertMany(t.Context(), docs)
			require.NoError(t, err)
			docs = docs[:0]
		}
	}
}

func storedDocument(i int) bson.D {
	status, definition, parent := "NEW", "order", any(nil)
	if i%500 == 0 {
		status = "RARE"
	}
	if i%501 == 0 {
		definition = "rare"
	}
	if i%4 == 3 {
		parent = fmt.Sprintf("x-%05d", i-i%1000+3)
	}
	outbox, spawns, timers := bson.A{}, bson.A{}, bson.D{}
	if i%2 == 0 {
		timers = append(timers, bson.E{Key: "Far", Value: float64(someTime.Add(1000 * time.Hour).Unix())})
	}
	if i%100 == 0 {
		outbox = append(outbox, bson.D{{Key: "seq", Value: i + 1}, {Key: "target_id", Value: nil}, {Key: "event", Value: "{}"}})
		spawns = append(spawns, bson.D{{Key: "seq", Value: i + 1}, {Key: "parent_id", Value: "p"}, {Key: "child_id", Value: "c"},
			{Key: "root_path", Value: ""}, {Key: "context", Value: bson.D{}}})
		timers = append(timers, bson.E{Key: "Wait", Value: float64(someTime.Unix())})
	}
	id := fmt.Sprintf("x-%05d", i)
	doc := bson.D{{Key: "_id", Value: id}, {Key: "definition_id", Value: definition}, {Key: "version", Value: 1},
		{Key: "data", Value: fmt.Sprintf(`{"id":%q,"definition_id":%q,"status":%q,"version":1}`, id, definition, status)},
		{Key: "outbox", Value: outbox}, {Key: "spawns", Value: spawns}, {Key: "trace", Value: bson.A{}},
		{Key: "processed", Value: bson.A{}}, {Key: "timers", Value: timers},
		{Key: "status", Value: status}, {Key: "parent_id", Value: parent}, {Key: "outcome", Value: ""}, {Key: "active_path", Value: ""},
		{Key: "updated_at", Value: 1.0}, {Key: "commits", Value: bson.D{{Key: "1", Value: bson.ObjectID{3: 1}}}}, {Key: "trace_next", Value: 0}}
	if len(timers) > 0 {
		doc = append(doc, bson.E{Key: "timer_at", Value: timers[len(timers)-1].Value})
	}
	switch {
	case len(outbox) > 0:
		doc = append(doc, bson.E{Key: "due_at", Value: 1.0})
	case len(timers) > 0:
		doc = append(doc, bson.E{Key: "due_at", Value: timers[0].Value})
	case i%250 == 1:
		doc = append(doc, bson.E{Key: "finished_at", Value: float64(i)})
	case i%400 == 3:
		doc = append(doc, bson.E{Key: "dead", Value: bson.A{bson.D{{Key: "kind", Value: "outbox"}, {Key: "seq", Value: 1}}}}, bson.E{Key: "dead_at", Value: 1.0})
	}
	return doc
}
