package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseDamaged: one damaged document stops neither a sweep nor a page, and no
// writer for ever.
func exerciseDamaged(t *testing.T, h *harness) {
	run(t, h.withIndexes, damagedTests)
}

var damagedTests = tests{
	"DocumentsWhoseIDIsNoTextAreGonePast": func(t *testing.T, b *bundle) {
		for i, id := range []any{5, bson.NewObjectID(), d("a", 1), true, 1.5, "", bson.Symbol("z")} {
			b.insert(t, d("_id", id, "version", 1, "data", "{}", "status", "S", "timer_at", 5.0, "due_at", 5.0, "timers", d("Wait", 5.0),
				"outbox", bson.A{d("seq", i+1, "target_id", nil, "event", "{}")}, "spawns", bson.A{d("seq", i+1, "child_id", "c")}))
		}
		_, err := b.counters.InsertOne(t.Context(), d("_id", "outbox", "n", 100))
		require.NoError(t, err)
		b.create(t, "good", b.everything("ev-1"))
		for _, limit := range []int{1, 3, 100} {
			require.Equal(t, "good", b.outbox(t, limit)[0].ExecutionID)
			require.Equal(t, "good", b.spawns(t, limit)[0].ParentID)
			require.Equal(t, "good", b.due(t, 1e10, limit)[0].ExecutionID)
		}
		require.Len(t, b.damage.take(), 7, "each is told")
		require.Equal(t, []string{"good"}, b.list(t, mongostore.ListOptions{}))
		require.Equal(t, []string{"good"}, flat(b.walk(t, mongostore.ListOptions{Limit: 1}, nil)))
		b.adopt(t)
	},

	"IDsThatAreNoUTF8EndNoListing": func(t *testing.T, b *bundle) {
		ids := []string{"a\xff", "b", "c\x00", "\xff", "\xff\xff"}
		for _, id := range ids {
			b.insert(t, d("_id", id, "version", 1, "data", "{}", "status", "S", "dead_at", 5.0, "dead", bson.A{
				d("kind", "timer", "path", "p\xff", "at", 5.0), d("kind", "timer", "path", "p\xfe", "at", 5.0), d("kind", "outbox", "at", 5.0)}))
		}
		require.Equal(t, ids, flat(b.walk(t, mongostore.ListOptions{Limit: 1}, nil)))
		require.Len(t, b.letters(t, mongostore.DeadLetterOptions{Limit: 1}), 3*len(ids))
	},

	"RowsTellTheDamageAndTheListingGoesOn": func(t *testing.T, b *bundle) {
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
			b.create(t, id)
		}
		b.set(t, "b", d("version", "one"))
		b.set(t, "d", d("outcome", 5))
		b.insert(t, d("_id", "e2", "version", 1, "data", "not json"))
		for _, limit := range []int{1, 2, 100} {
			seen := map[string]error{}
			for row, err := range b.store.All(t.Context(), mongostore.ListOptions{Limit: limit}) {
				require.NoError(t, err)
				require.NotContains(t, seen, row.ID)
				seen[row.ID] = row.Err
				if row.Err != nil {
					require.Equal(t, mongostore.Summary{ID: row.ID, Err: row.Err}, row, "only the ID is sure")
				}
			}
			require.Len(t, seen, 7)
			requireDamaged(t, seen["b"], "b", "version")
			requireDamaged(t, seen["d"], "d", "outcome")
			requireDamaged(t, seen["e2"], "e2", "data")
			require.Equal(t, []string{"b version", "d outcome", "e2 data"}, b.damage.take())
		}
		require.Equal(t, []string{"a", "b", "c", "d", "e", "e2", "f"}, b.list(t, mongostore.ListOptions{Statuses: []string{"RUNNING"}}),
			"where a filter cannot tell, the row is there")
	},

	"InspectShowsWhatCanStillBeRead": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		b.set(t, "o-1", d("data", 5, "outbox.1.seq", "x", "timers.Idle", "soon"))
		in := b.inspect(t, "o-1")
		require.ErrorIs(t, in.Summary.Err, mongostore.ErrDamaged)
		require.Equal(t, "RUNNING", in.Summary.Status)
		require.Len(t, in.Spawns, 2)
		require.Len(t, in.Timers, 1)
		require.Len(t, in.Trace, 1)
		require.Equal(t, 1, in.Processed)
	},

	"TimersHideNoOthersWhateverTheLimit": func(t *testing.T, b *bundle) {
		wrong := []any{nan, nil, "soon", d(), 1e300, bson.DateTime(1)}
		timers := d()
		for i, v := range wrong {
			timers = append(timers, d(fmt.Sprint("wrong", i), v)...)
		}
		b.insert(t, d("_id", "all", "version", 1, "data", "{}", "timer_at", 1.0, "timers", timers))
		b.insert(t, d("_id", "some", "version", 1, "data", "{}", "timer_at", 1.0, "timers", append(timers, d("Wait", 100.0, "Later", 900.0)...)))
		b.create(t, "good", arms(arm("Wait", 200)))
		for limit := 1; limit <= 4; limit++ {
			require.Equal(t, []string{"some:Wait@100", "good:Wait@200"}[:min(limit, 2)], names(b.due(t, 500, limit)), "limit %d", limit)
		}
		told := b.damage.take()
		require.Len(t, told, 2, "%v", told)
	},

	"AnExecutionIsUsableAgainOnceItIsRepairedByHand": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", b.everything("ev-1"))
		for _, field := range []string{"outbox", "spawns", "processed", "timers", "trace", "commits"} {
			good := b.doc(t, "o-1").Lookup(field)
			b.set(t, "o-1", d(field, "damaged"))
			ch := b.everything("ev-2")
			o := b.load(t, "o-1")
			_, err := b.store.Commit(t.Context(), o, ch)
			requireDamaged(t, err, "o-1", field)
			if field != "commits" { // beside acks and emits of one kind the update is another
				ch.Acks = []mongostore.Entry{mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1}}
				before := b.doc(t, "o-1")
				_, err = b.store.Commit(t.Context(), o, ch)
				requireDamaged(t, err, "o-1", field)
				require.Equal(t, before, b.doc(t, "o-1"))
			}
			require.EqualValues(t, 1, o.Version)
			b.set(t, "o-1", d(field, good))
		}
		b.commit(t, b.load(t, "o-1"), b.everything("ev-2"))
	},

	"ALoadedValueIsNamedTooWhenItsSlotIsForeign": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		b.set(t, "o-1", d("commits.1", "a text"))
		o := b.load(t, "o-1")
		_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
		if err != nil { // either it lands or it says why; never a conflict for ever
			requireDamaged(t, err, "o-1", "commits.1")
		}
	},

	"NumbersReservedAheadSurviveADamagedMark": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.SeqBlock = 5 })
		for i, v := range []any{"a text", 5, d("outbox", "a text"), d("outbox", nan)} {
			id := fmt.Sprint("o-", i)
			o := newOrder(id)
			numbersOf(t, store, o, 1, 0)
			b.set(t, id, d("seq_hi", v))
			loaded := &order{}
			require.NoError(t, store.Load(t.Context(), id, loaded))
			_, err := store.Commit(t.Context(), loaded, emit(1))
			if err != nil {
				require.ErrorIs(t, err, mongostore.ErrDamaged, "%v", v)
				continue
			}
			got := seqs(t, b.doc(t, id), "outbox")
			require.Less(t, got[0], got[1])
		}
	},

	"CommitsThatDoNotNeedTheFieldLand": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1", b.everything("ev-1"))
		b.set(t, "o-1", d("outbox", "x", "spawns", 5, "processed", d(), "timers", "x", "trace", 1))
		o.Total = 7
		b.commit(t, o, mongostore.Changes{})
		require.Equal(t, 7, b.load(t, "o-1").Total)
		require.Equal(t, "x", b.doc(t, "o-1").Lookup("outbox").StringValue())
	},

	"AFailedLoadLeavesNoHalfExecutionThatCommits": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		b.set(t, "o-1", d("data", `{"id":"o-1","version":1,"total":"five"}`))
		o := &order{Total: 9}
		requireDamaged(t, b.store.Load(t.Context(), "o-1", o), "o-1", "data")
		_, err := b.store.Commit(t.Context(), o, mongostore.Changes{})
		require.Error(t, err, "a careless caller must not overwrite the document")
		require.Contains(t, b.doc(t, "o-1").Lookup("data").StringValue(), "five")
	},

	"ADamagedClockOfTheServerDoesNotMatter": func(t *testing.T, b *bundle) {
		b.clock.Advance(-200 * 365 * 24 * time.Hour) // before 1970: a double may be negative
		o := b.create(t, "o-1", arms(mongostore.TimerOp{Path: "Wait", FireAt: b.clock.Now()}))
		b.commit(t, o, b.everything("ev-1"))
		in := b.inspect(t, "o-1")
		require.NoError(t, in.Summary.Err)
		require.Equal(t, b.clock.Now(), in.Summary.UpdatedAt)
		require.Len(t, in.Timers, 3)
	},
}
