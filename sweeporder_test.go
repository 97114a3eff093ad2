package mongostore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// What is read first is what the index holds first, and an index entry may stand for
// something that is gone or damaged: it must not push the earliest out of the answer.

func TestTheEarliestTimerComesFirstThoughBoundsLag(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	at := func(n int) time.Time { return someTime.Add(time.Duration(n) * time.Second) }
	for id, later := range map[string]int{"a": 9, "b": 8} {
		o := newOrder(id)
		_, err := s.Commit(t.Context(), o, mongostore.Changes{Timers: []mongostore.TimerOp{{Path: "p", FireAt: at(1)}, {Path: "q", FireAt: at(later)}}})
		require.NoError(t, err)
		_, err = s.Commit(t.Context(), o, mongostore.Changes{Timers: []mongostore.TimerOp{{Path: "p", Cancel: true}}}) // timer_at stays at 1
		require.NoError(t, err)
	}
	_, err := s.Commit(t.Context(), newOrder("c"), mongostore.Changes{Timers: []mongostore.TimerOp{{Path: "q", FireAt: at(5)}}})
	require.NoError(t, err)

	for _, want := range [][]string{{"c"}, {"c", "b"}, {"c", "b", "a"}} {
		due, err := s.DueTimers(t.Context(), at(10), len(want))
		require.NoError(t, err)
		var got []string
		for _, timer := range due {
			got = append(got, timer.ExecutionID)
		}
		require.Equal(t, want, got)
	}
}

func TestTheOldestEntryComesFirstThoughOthersAreDamaged(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	executions := client.Database(database).Collection("executions")
	entry := func(seq any) bson.D {
		return bson.D{{Key: "seq", Value: seq}, {Key: "target_id", Value: nil}, {Key: "event", Value: "1"}}
	}
	spawn := func(seq any) bson.D {
		return bson.D{{Key: "seq", Value: seq}, {Key: "child_id", Value: "c"}, {Key: "root_path", Value: "r"}, {Key: "input", Value: nil}}
	}
	for id, seqs := range map[string][]any{"d1": {nil, 500}, "d2": {nil, 600}, "d3": {5}} { // null sorts before numbers
		outbox, spawns := bson.A{}, bson.A{}
		for _, seq := range seqs {
			outbox, spawns = append(outbox, entry(seq)), append(spawns, spawn(seq))
		}
		_, err := executions.InsertOne(t.Context(), bson.D{
			{Key: "_id", Value: id}, {Key: "version", Value: 1}, {Key: "data", Value: "{}"}, {Key: "outbox", Value: outbox}, {Key: "spawns", Value: spawns},
		})
		require.NoError(t, err)
	}
	emitted, err := s.PendingOutbox(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, emitted, 1)
	require.EqualValues(t, 5, emitted[0].Seq)
	spawned, err := s.PendingSpawns(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, spawned, 1)
	require.EqualValues(t, 5, spawned[0].Seq)
}
