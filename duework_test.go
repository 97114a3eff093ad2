package mongostore_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/mongostoretest"
)

// TestDueWorkIsNeverInvisible drives random operations on a few executions, damage by
// hand among them, and checks after each what stands in the collection.
// MONGOSTORE_TEST_SEED replays a run, MONGOSTORE_TEST_STEPS is how long it is.
func TestDueWorkIsNeverInvisible(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *mongotest.Server) {
		seed := uint64(setting(t, "MONGOSTORE_TEST_SEED", int(rand.Uint32())))
		t.Logf("seed %d (MONGOSTORE_TEST_SEED)", seed)
		client, database := server.Database(t)
		w := &dueWorld{rnd: rand.New(rand.NewPCG(seed, 1)), clock: &mongostoretest.Clock{}, live: map[string]*mongostore.Lease{}}
		w.store = newStore(t, client, database, mongostore.Config{Clock: w.clock})
		w.executions = client.Database(database).Collection("executions")
		for step := range setting(t, "MONGOSTORE_TEST_STEPS", 400) {
			did := w.step(t)
			w.check(t, fmt.Sprintf("step %d: %s", step, did))
		}
		w.drain(t)
	})
}

// dueWorld is a store, and the leases that the test holds.
type dueWorld struct {
	rnd        *rand.Rand
	clock      *mongostoretest.Clock
	store      *mongostore.Store
	executions *mongo.Collection
	live       map[string]*mongostore.Lease // by execution
}

func (w *dueWorld) id() string { return fmt.Sprintf("x-%d", w.rnd.IntN(8)) }

func (w *dueWorld) someLease() *mongostore.Lease {
	if len(w.live) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(w.live)) // a map's own order would not replay
	return w.live[ids[w.rnd.IntN(len(ids))]]
}

// step does one random thing.
func (w *dueWorld) step(t *testing.T) string {
	steps := []struct {
		name string
		do   func(t *testing.T) error
	}{
		{"commit", w.commit}, {"commit", w.commit}, {"commit", w.commit}, {"claim", w.claim}, {"claim", w.claim}, {"complete", w.complete},
		{"release", w.release}, {"retry", w.retry}, {"extend", w.extend}, {"bury", w.bury}, {"requeue", w.requeue}, {"ack", w.ack},
		{"delete a timer", w.deleteTimer}, {"pass time", w.passTime}, {"damage", w.damage}, {"adopt", w.adopt}, {"due timers", w.dueTimers},
	}
	s := steps[w.rnd.IntN(len(steps))]
	err := s.do(t)
	if err != nil && !errors.Is(err, mongostore.ErrLeaseLost) && !errors.Is(err, mongostore.ErrDamaged) && !errors.Is(err, mongostore.ErrConflict) {
		require.NoError(t, err, s.name)
	}
	return s.name
}

func (w *dueWorld) commit(t *testing.T) error {
	ch := mongostore.Changes{}
	for range w.rnd.IntN(3) {
		ch.Emits = append(ch.Emits, mongostore.Emit{Event: "e"})
	}
	if w.rnd.IntN(4) == 0 {
		ch.Spawns = []mongostore.Spawn{{ChildID: "c"}}
	}
	if w.rnd.IntN(2) == 0 {
		ch.Timers = []mongostore.TimerOp{{Path: fmt.Sprintf("p.%d", w.rnd.IntN(3)), FireAt: w.clock.Now().Add(time.Duration(w.rnd.IntN(120)-20) * time.Second), Cancel: w.rnd.IntN(4) == 0}}
	}
	id := w.id()
	if l := w.live[id]; l != nil && w.rnd.IntN(2) == 0 {
		for _, e := range l.Outbox {
			ch.Acks = append(ch.Acks, e)
		}
	}
	var o order
	_, err := w.store.Update(t.Context(), id, &o, mongostore.UpdateOptions{Create: true}, func(to *mongostore.Changes) error { *to = ch; return nil })
	return err
}

func (w *dueWorld) claim(t *testing.T) error {
	leases, err := w.store.Claim(t.Context(), mongostore.ClaimOptions{Limit: 1 + w.rnd.IntN(3), LeaseFor: 30 * time.Second})
	for _, l := range leases {
		if held := w.live[l.ExecutionID]; held != nil {
			require.False(t, held.Until.After(w.clock.Now()), "a live lease on %s was broken", l.ExecutionID)
		}
		w.live[l.ExecutionID] = l
	}
	return err
}

// under does one thing under some lease, which it ends or not.
func (w *dueWorld) under(ends bool, do func(l *mongostore.Lease) error) error {
	l := w.someLease()
	if l == nil {
		return nil
	}
	live := l.Until.After(w.clock.Now())
	err := do(l)
	if live && errors.Is(err, mongostore.ErrLeaseLost) {
		return fmt.Errorf("a live lease on %s was lost: %s", l.ExecutionID, err.Error())
	}
	if ends || err != nil {
		delete(w.live, l.ExecutionID)
	}
	return err
}

func (w *dueWorld) complete(t *testing.T) error {
	return w.under(true, func(l *mongostore.Lease) error { return w.store.Complete(t.Context(), l) })
}

func (w *dueWorld) release(t *testing.T) error {
	return w.under(true, func(l *mongostore.Lease) error { return w.store.Release(t.Context(), l) })
}

func (w *dueWorld) retry(t *testing.T) error {
	return w.under(true, func(l *mongostore.Lease) error {
		return w.store.Retry(t.Context(), l, time.Duration(w.rnd.IntN(60))*time.Second, errors.New("x"))
	})
}

func (w *dueWorld) extend(t *testing.T) error {
	return w.under(false, func(l *mongostore.Lease) error {
		return w.store.Extend(t.Context(), l, time.Duration(1+w.rnd.IntN(60))*time.Second)
	})
}

func (w *dueWorld) bury(t *testing.T) error {
	return w.under(false, func(l *mongostore.Lease) error {
		for _, e := range l.Outbox {
			return w.store.Bury(t.Context(), e, nil)
		}
		for _, e := range l.Timers {
			return w.store.Bury(t.Context(), e, nil)
		}
		return nil
	})
}

func (w *dueWorld) requeue(t *testing.T) error {
	page, err := w.store.DeadLetters(t.Context(), mongostore.DeadLetterOptions{Limit: 3})
	if err != nil {
		return err
	}
	for _, l := range page.Items {
		if _, err := w.store.Requeue(t.Context(), l.Entry); err != nil {
			return err
		}
	}
	return nil
}

func (w *dueWorld) ack(t *testing.T) error {
	entries, err := w.store.PendingOutbox(t.Context(), 2)
	if err != nil {
		return err
	}
	return w.store.AckOutbox(t.Context(), entries...)
}

func (w *dueWorld) deleteTimer(t *testing.T) error {
	timers, err := w.store.DueTimers(t.Context(), w.clock.Now().Add(time.Hour), 1)
	if err != nil || len(timers) == 0 {
		return err
	}
	return w.store.DeleteTimer(t.Context(), timers[0])
}

func (w *dueWorld) dueTimers(t *testing.T) error {
	_, err := w.store.DueTimers(t.Context(), w.clock.Now(), 5)
	return err
}

func (w *dueWorld) passTime(*testing.T) error {
	w.clock.Advance(time.Duration(w.rnd.IntN(40)) * time.Second)
	return nil
}

func (w *dueWorld) adopt(t *testing.T) error {
	_, err := w.store.Adopt(t.Context())
	return err
}

// damage breaks something that a commit can live with, and makes the document due, as
// whoever repairs it by hand would.
func (w *dueWorld) damage(t *testing.T) error {
	nan := bson.D{{Key: "until", Value: "soon"}, {Key: "attempts", Value: "many"}, {Key: "head", Value: bson.D{}}}
	all := []bson.D{
		{{Key: "outbox", Value: bson.A{5, bson.D{{Key: "seq", Value: "one"}}, bson.D{}}}},
		{{Key: "spawns", Value: bson.A{bson.D{{Key: "seq", Value: 1}, {Key: "child_id", Value: 7}}}}},
		{{Key: "timers.bad", Value: "soon"}},
		{{Key: "dead", Value: bson.A{5}}},
	}
	set := all[w.rnd.IntN(len(all))]
	id := w.id()
	if w.live[id] == nil && w.rnd.IntN(2) == 0 {
		set = append(set, bson.E{Key: "lease", Value: nan})
	}
	set = append(set, bson.E{Key: "due_at", Value: 1.0})
	_, err := w.executions.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "version", Value: bson.D{{Key: "$gt", Value: 0}}}}, bson.D{{Key: "$set", Value: set}})
	return err
}

// check reads every document.
func (w *dueWorld) check(t *testing.T, after string) {
	cursor, err := w.executions.Find(t.Context(), bson.D{})
	require.NoError(t, err)
	var docs []bson.Raw
	require.NoError(t, cursor.All(t.Context(), &docs))
	now := float64(w.clock.Now().UnixMicro()) / 1e6
	for _, doc := range docs {
		for _, field := range []string{"due_at", "timer_at", "dead_at", "lease"} {
			require.NotEqual(t, bson.TypeNull, doc.Lookup(field).Type, "%s: %s is null in %s", after, field, doc)
		}
		due, isDue := doc.Lookup("due_at").DoubleOK()
		require.True(t, !isDue || due == due, "%s: due_at is NaN in %s", after, doc)
		held, _ := doc.Lookup("lease", "until").DoubleOK()
		earliest, owes := owedAt(doc, now)
		if owes {
			require.True(t, isDue, "%s: what is owed is invisible in %s", after, doc)
			require.LessOrEqual(t, due, max(earliest, held), "%s: due too late in %s", after, doc)
		}
		id := doc.Lookup("_id").StringValue()
		if l := w.live[id]; l != nil && l.Until.After(w.clock.Now()) {
			require.Equal(t, l.Token, doc.Lookup("lease", "token").StringValue(), "%s: a live lease was broken in %s", after, doc)
		}
	}
}

// owedAt is when a document needs a relay, by its entries and timers.
func owedAt(doc bson.Raw, now float64) (at float64, owes bool) {
	for _, field := range []string{"outbox", "spawns"} {
		if arr, ok := doc.Lookup(field).ArrayOK(); ok {
			if values, _ := arr.Values(); len(values) > 0 {
				return now, true
			}
		}
	}
	timers, ok := doc.Lookup("timers").DocumentOK()
	if !ok {
		return 0, false
	}
	elements, _ := timers.Elements()
	for _, e := range elements {
		if f, ok := e.Value().DoubleOK(); ok && (!owes || f < at) {
			at, owes = f, true
		}
	}
	return at, owes
}

// drain ends it: everything that is owed is found, by claims alone.
func (w *dueWorld) drain(t *testing.T) {
	for range 200 {
		w.clock.Advance(time.Hour)
		leases, err := w.store.Claim(t.Context(), mongostore.ClaimOptions{Limit: 100})
		require.NoError(t, err)
		if len(leases) == 0 {
			break
		}
		for _, l := range leases {
			require.NoError(t, w.store.Complete(t.Context(), l))
		}
	}
	cursor, err := w.executions.Find(t.Context(), bson.D{})
	require.NoError(t, err)
	var docs []bson.Raw
	require.NoError(t, cursor.All(t.Context(), &docs))
	for _, doc := range docs {
		_, owes := owedAt(doc, 0)
		require.False(t, owes, "never claimed: %s", doc)
	}
}
