package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseTimers: armed with the transition, found when due, deleted only as found.
func exerciseTimers(t *testing.T, h *harness) {
	run(t, h.withIndexes, timerTests)
}

func arm(path string, fireAt float64) mongostore.TimerOp {
	return mongostore.TimerOp{Path: path, FireAt: at(fireAt)}
}

func arms(ops ...mongostore.TimerOp) mongostore.Changes { return mongostore.Changes{Timers: ops} }

func (b *bundle) due(t *testing.T, now float64, limit int) []mongostore.Timer {
	t.Helper()
	timers, err := b.store.DueTimers(t.Context(), at(now), limit)
	require.NoError(t, err)
	return timers
}

// names writes timers as execution:path@time.
func names(timers []mongostore.Timer) []string {
	list := []string{}
	for _, tm := range timers {
		list = append(list, fmt.Sprintf("%s:%s@%v", tm.ExecutionID, tm.Path, seconds(tm.FireAt)))
	}
	return list
}

var timerTests = tests{
	"AreDueFromTheirTimeOnTheEarliestFirst": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", arms(arm("A.B", 100), arm("C", 300), arm("D", 900)))
		b.create(t, "o-2", arms(arm("A", 200.5), arm("B", 50)))
		b.create(t, "o-3")
		require.Empty(t, b.due(t, 49.9, 0))
		require.Equal(t, []string{"o-2:B@50"}, names(b.due(t, 50, 0)))
		require.Equal(t, []string{"o-2:B@50", "o-1:A.B@100", "o-2:A@200.5", "o-1:C@300"}, names(b.due(t, 300, 0)))
		require.Equal(t, []string{"o-2:B@50", "o-1:A.B@100", "o-2:A@200.5"}, names(b.due(t, 300, 3)))
		require.Equal(t, []string{"o-2:B@50", "o-1:A.B@100", "o-2:A@200.5", "o-1:C@300"}, names(b.due(t, 300, 0)), "nothing is removed")
		far := time.Date(200_000, 1, 1, 0, 0, 0, 0, time.UTC)
		all, err := b.store.DueTimers(t.Context(), far, 0)
		require.NoError(t, err)
		require.Len(t, all, 5)
	},

	"AreTheEarliestWhateverTheLimitAndTheirDocuments": func(t *testing.T, b *bundle) {
		rnd := rand.New(rand.NewPCG(7, 7))
		total := 0
		for i := range 12 {
			var ops []mongostore.TimerOp
			for j := range rnd.IntN(6) {
				ops = append(ops, arm(fmt.Sprint("p", j), float64(rnd.IntN(50))))
				total++
			}
			b.create(t, fmt.Sprint("o-", i), arms(ops...))
		}
		all := b.due(t, 60, total+10)
		require.Len(t, all, total)
		for limit := 1; limit <= total; limit++ {
			some := b.due(t, 60, limit)
			require.Len(t, some, limit)
			for i := range some {
				require.Equal(t, all[i].FireAt, some[i].FireAt, "limit %d, timer %d", limit, i)
			}
		}
	},

	"KeepTheMicrosecondAndDeleteExactlyThemselves": func(t *testing.T, b *bundle) {
		rnd := rand.New(rand.NewPCG(1, 2))
		var ops []mongostore.TimerOp
		want := map[string]time.Time{}
		for i := range 200 {
			path := fmt.Sprint("p", i)
			fireAt := time.Unix(rnd.Int64N(1<<33)-(1<<31), 1000*rnd.Int64N(1e6)) // 1901 to 2242: where a double holds it
			ops = append(ops, mongostore.TimerOp{Path: path, FireAt: fireAt})
			want[path] = fireAt.UTC()
		}
		b.create(t, "o-1", arms(ops...))
		timers := b.due(t, 1<<35, 500)
		require.Len(t, timers, 200)
		for _, tm := range timers {
			require.Equal(t, want[tm.Path], tm.FireAt)
			near := tm
			near.FireAt = near.FireAt.Add(2 * time.Microsecond)
			require.NoError(t, b.store.DeleteTimer(t.Context(), near))
			near = mongostore.Timer{ExecutionID: tm.ExecutionID, Path: tm.Path, FireAt: tm.FireAt.Add(-2 * time.Microsecond)}
			require.NoError(t, b.store.DeleteTimer(t.Context(), near))
			require.Contains(t, timersOf(t, b.doc(t, "o-1")), tm.Path)
			plain := mongostore.Timer{ExecutionID: tm.ExecutionID, Path: tm.Path, FireAt: tm.FireAt} // it may have travelled
			require.NoError(t, b.store.DeleteTimer(t.Context(), plain))
			require.NotContains(t, timersOf(t, b.doc(t, "o-1")), tm.Path)
		}
	},

	"MayBeAnywhereInTheRangeOfTimes": func(t *testing.T, b *bundle) {
		times := []time.Time{
			time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), time.Date(1900, 2, 3, 4, 5, 6, 7000, time.UTC),
			time.Unix(-1, 999_999_000), time.Unix(0, 0), time.Unix(0, 1000),
			time.Date(2500, 1, 1, 0, 0, 0, 123_000, time.FixedZone("far", 3600)), time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC),
		}
		var ops []mongostore.TimerOp
		for i, fireAt := range times {
			ops = append(ops, mongostore.TimerOp{Path: fmt.Sprint(i), FireAt: fireAt})
		}
		b.create(t, "o-1", arms(ops...))
		timers, err := b.store.DueTimers(t.Context(), times[len(times)-1].Add(time.Hour), 0)
		require.NoError(t, err)
		require.Len(t, timers, len(times))
		for i, tm := range timers {
			require.WithinDuration(t, times[i], tm.FireAt, 20*time.Microsecond) // as near as the double at that distance
			require.NoError(t, b.store.DeleteTimer(t.Context(), tm))
		}
		require.Empty(t, timersOf(t, b.doc(t, "o-1")))
	},

	"OfOnePathTheLastOpWins": func(t *testing.T, b *bundle) {
		off := mongostore.TimerOp{Path: "Wait.A", Cancel: true}
		for name, c := range map[string]struct {
			ops  []mongostore.TimerOp
			want map[string]float64
		}{
			"cancel, arm":      {[]mongostore.TimerOp{off, arm("Wait.A", 9)}, map[string]float64{"Wait．A": 9}},
			"arm, cancel":      {[]mongostore.TimerOp{arm("Wait.A", 9), off}, map[string]float64{}},
			"arm, arm":         {[]mongostore.TimerOp{arm("Wait.A", 9), arm("Wait.A", 8)}, map[string]float64{"Wait．A": 8}},
			"arm, cancel, arm": {[]mongostore.TimerOp{arm("Wait.A", 9), off, arm("B", 1), arm("Wait.A", 7)}, map[string]float64{"Wait．A": 7, "B": 1}},
			"cancel unarmed":   {[]mongostore.TimerOp{off}, map[string]float64{}},
			"a time in cancel": {[]mongostore.TimerOp{arm("B", 1), {Path: "B", FireAt: at(5), Cancel: true}}, map[string]float64{}},
		} {
			b.create(t, "first "+name, arms(c.ops...))
			require.Equal(t, c.want, timersOf(t, b.doc(t, "first "+name)), name)
			o := b.create(t, "later "+name)
			b.commit(t, o, arms(c.ops...))
			require.Equal(t, c.want, timersOf(t, b.doc(t, "later "+name)), name)
			armed := b.create(t, "armed "+name, arms(arm("Wait.A", 4), arm("B", 4)))
			b.commit(t, armed, arms(c.ops...))
			for key, want := range c.want {
				require.Equal(t, want, timersOf(t, b.doc(t, "armed "+name))[key], name)
			}
		}
	},

	"HaveTheEntryIDOfHarel": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", arms(arm("Pay.Wait", 1800000000), arm("B", 1796053409.038905), arm("C", 0), arm("D", 0.000025), arm("E", 1800000000.5)))
		var ids []string
		for _, tm := range b.due(t, 1<<35, 0) {
			ids = append(ids, tm.EntryID())
		}
		require.Equal(t, []string{"timeout:o-1:C:0.0", "timeout:o-1:D:2.5e-05", "timeout:o-1:B:1796053409.038905",
			"timeout:o-1:Pay.Wait:1800000000.0", "timeout:o-1:E:1800000000.5"}, ids)
	},

	"LeaveNothingInTheWayOnceCancelledOrDeleted": func(t *testing.T, b *bundle) {
		for i := range 30 {
			o := b.create(t, fmt.Sprintf("o-%02d", i), arms(arm("A", float64(i)), arm("B", 1000)))
			b.commit(t, o, arms(mongostore.TimerOp{Path: "A", Cancel: true}))
		}
		b.create(t, "late", arms(arm("A", 99)))
		require.Equal(t, []string{"late:A@99"}, names(b.due(t, 100, 1)))
		require.Equal(t, 1000.0, b.doc(t, "o-00").Lookup("timer_at").Double(), "what it met is mended")
		require.NoError(t, b.store.DeleteTimer(t.Context(), mongostore.Timer{ExecutionID: "late", Path: "A", FireAt: at(99)}))
		require.Empty(t, b.due(t, 100, 1))
		require.Zero(t, b.doc(t, "late").Lookup("timer_at").Type, "no timer, no place in the index")
		require.Len(t, b.due(t, 1000, 0), 30)
	},

	"AreLeftAloneByDeleteTimerUnlessTheyStandAtItsTime": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", arms(arm("A", 100), arm("A.B", 100)))
		for _, tm := range []mongostore.Timer{
			{ExecutionID: "o-1", Path: "A", FireAt: at(101)}, {ExecutionID: "o-1", Path: "C", FireAt: at(100)}, {ExecutionID: "unknown", Path: "A", FireAt: at(100)},
		} {
			require.NoError(t, b.store.DeleteTimer(t.Context(), tm))
		}
		require.Len(t, timersOf(t, b.doc(t, "o-1")), 2)
		require.NoError(t, b.store.DeleteTimer(t.Context(), mongostore.Timer{ExecutionID: "o-1", Path: "A.B", FireAt: at(100)}))
		require.Equal(t, map[string]float64{"A": 100}, timersOf(t, b.doc(t, "o-1")))
		require.EqualValues(t, 1, b.load(t, "o-1").Version, "a sweep does not move the version")
	},

	"AreFencedByTheirToken": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", arms(arm("A", 100)))
		tm := mongostore.Timer{ExecutionID: "o-1", Path: "A", FireAt: at(100), Token: "mine"}
		lost := func(tm mongostore.Timer) {
			err := b.store.DeleteTimer(t.Context(), tm)
			require.ErrorIs(t, err, mongostore.ErrLeaseLost)
			var facts *mongostore.LeaseLostError
			require.ErrorAs(t, err, &facts)
			require.Equal(t, []string{tm.ExecutionID}, facts.IDs)
		}
		lost(tm)
		b.lease(t, "o-1", "another")
		lost(tm)
		lost(mongostore.Timer{ExecutionID: "unknown", Path: "A", FireAt: at(100), Token: "mine"})
		require.Len(t, timersOf(t, b.doc(t, "o-1")), 1)
		b.lease(t, "o-1", "mine")
		require.NoError(t, b.store.DeleteTimer(t.Context(), tm))
		require.Empty(t, timersOf(t, b.doc(t, "o-1")))
		require.NoError(t, b.store.DeleteTimer(t.Context(), tm), "gone, and the lease is held")
	},

	"RefuseWhatCannotBe": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", arms(arm("A", 100)))
		good := mongostore.Timer{ExecutionID: "o-1", Path: "A", FireAt: at(100)}
		for field, change := range map[string]func(*mongostore.Timer){
			"Timer.ExecutionID": func(tm *mongostore.Timer) { tm.ExecutionID = "" },
			"Timer.Path":        func(tm *mongostore.Timer) { tm.Path = "a\x00" },
			"Timer.FireAt":      func(tm *mongostore.Timer) { tm.FireAt = time.Time{} },
		} {
			bad := good
			change(&bad)
			requireInvalid(t, b.store.DeleteTimer(t.Context(), bad), field)
		}
		_, err := b.store.DueTimers(t.Context(), at(1), -1)
		requireInvalid(t, err, "limit")
		require.Len(t, timersOf(t, b.doc(t, "o-1")), 1)
	},

	"BH-22_OutliveTheSweepOfAnEarlierArming": func(t *testing.T, b *bundle) {
		sweep := func(id string) (*order, mongostore.Timer) {
			o := b.create(t, id, arms(arm("Wait", 100)))
			for _, tm := range b.due(t, 120, 0) {
				if tm.ExecutionID == id {
					return o, tm
				}
			}
			t.Fatalf("the timer of %s is not due", id)
			return nil, mongostore.Timer{}
		}
		o, read := sweep("re-armed")
		b.commit(t, o, arms(arm("Wait", 500)))
		require.NoError(t, b.store.DeleteTimer(t.Context(), read))
		require.NotContains(t, names(b.due(t, 120, 0)), "re-armed:Wait@500")
		require.Contains(t, names(b.due(t, 500, 0)), "re-armed:Wait@500")

		o, read = sweep("cancelled")
		b.commit(t, o, arms(mongostore.TimerOp{Path: "Wait", Cancel: true}))
		require.NoError(t, b.store.DeleteTimer(t.Context(), read))
		require.Empty(t, timersOf(t, b.doc(t, "cancelled")))

		o, read = sweep("armed for the same time")
		b.commit(t, o, arms(arm("Wait", 100)))
		same := b.due(t, 120, 1)
		require.Equal(t, read.EntryID(), same[0].EntryID(), "it is the same timer")
		require.NoError(t, b.store.DeleteTimer(t.Context(), read))
		require.Empty(t, timersOf(t, b.doc(t, "armed for the same time")))
	},

	"BH-22_AreHandledOnceWhenTheSweepDiesBeforeDeleteTimer": func(t *testing.T, b *bundle) {
		b.create(t, "o-1", arms(arm("Wait", 100)))
		for range 3 { // the sweeper dies twice after handling
			timers := b.due(t, 120, 0)
			require.Len(t, timers, 1)
			o := &order{}
			_, err := b.store.Update(t.Context(), "o-1", o, mongostore.UpdateOptions{EventID: timers[0].EntryID()}, add1(o))
			require.NoError(t, err)
		}
		require.NoError(t, b.store.DeleteTimer(t.Context(), b.due(t, 120, 0)[0]))
		require.Empty(t, b.due(t, 120, 0))
		require.Equal(t, 1, b.load(t, "o-1").Total)
	},

	"BH-11_OfAnyWidthAreFoundAndDeleted": func(t *testing.T, b *bundle) {
		b.insert(t, d("_id", "o-1", "version", 1, "data", `{"version":1}`, "timer_at", int32(1), "timers", d(
			"int32", int32(1800000000), "int64", int64(1800000001), "double", 1800000002.5, "finer", 1800000003.1234567)))
		timers := b.due(t, 1800000100, 0)
		require.Equal(t, []string{"o-1:int32@1.8e+09", "o-1:int64@1.800000001e+09", "o-1:double@1.8000000025e+09", "o-1:finer@1.800000003123456e+09"}, names(timers))
		require.Equal(t, "timeout:o-1:int32:1800000000.0", timers[0].EntryID())
		require.Equal(t, "timeout:o-1:finer:1800000003.1234567", timers[3].EntryID(), "as harel names it")
		for _, tm := range timers {
			require.NoError(t, b.store.DeleteTimer(t.Context(), tm))
		}
		require.Equal(t, bson.Raw{5, 0, 0, 0, 0}, b.doc(t, "o-1").Lookup("timers").Document())
	},
}
