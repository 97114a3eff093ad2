//go:build faults

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

const longLease = time.Minute

// everything is a commit of all that there is.
func (s *scene) everything(event string) mongostore.Changes {
	return mongostore.Changes{
		Emits:  []mongostore.Emit{{Event: event + "-1"}, {Event: event + "-2"}},
		Spawns: []mongostore.Spawn{{ChildID: "child-" + event, RootPath: "A"}},
		Timers: []mongostore.TimerOp{{Path: "T." + event, FireAt: s.clock.Now().Add(-time.Hour)}}, Processed: event,
		Trace: bson.D{{Key: "event", Value: event}},
	}
}

func newCounter(id string) *counter {
	return &counter{Header: mongostore.Header{ID: id, DefinitionID: "d", Status: "RUNNING"}}
}

// stored is an execution that owes two events, a child and a timer.
func (s *scene) stored() *counter {
	x := newCounter("x")
	_, err := s.executions(s.near).Commit(context.Background(), x, s.everything("e"))
	s.must(err)
	return x
}

// leased is stored, with a lease.
func (s *scene) leased() *mongostore.Lease {
	s.stored()
	leases, err := s.executions(s.near).Claim(context.Background(), mongostore.ClaimOptions{LeaseFor: longLease})
	s.must(err)
	return leases[0]
}

func (s *scene) inspected() *mongostore.Inspection {
	s.stored()
	in, err := s.executions(s.near).Inspect(context.Background(), "x")
	s.must(err)
	return in
}

// read is an operation that only reads.
func read(name string, do func(ctx context.Context, store *mongostore.Store) error) operation {
	return operation{name: name, definite: true, prepare: func(s *scene) call {
		s.stored()
		store := s.executions(s.far)
		return func(ctx context.Context) error { return do(ctx, store) }
	}}
}

// underLease is an operation of somebody who holds a lease.
func underLease(name string, do func(ctx context.Context, store *mongostore.Store, l *mongostore.Lease) error) operation {
	return operation{name: name, prepare: func(s *scene) call {
		l, store, tried := s.leased(), s.executions(s.far), false
		return func(ctx context.Context) error {
			err := do(ctx, store, l)
			if tried && errors.Is(err, mongostore.ErrLeaseLost) {
				return nil // what landed the time before has freed it
			}
			tried = true
			return err
		}
	}}
}

var errFew = errors.New("not all that is there")

// all is an error if a read did not find as many as there are.
func all(found, want int, err error) error {
	if err == nil && found != want {
		return fmt.Errorf("%w: %d of %d", errFew, found, want)
	}
	return err
}

var executionReads = []operation{
	read("Load", func(ctx context.Context, s *mongostore.Store) error { return s.Load(ctx, "x", &counter{}) }),
	read("LoadForEvent", func(ctx context.Context, s *mongostore.Store) error {
		_, err := s.LoadForEvent(ctx, "x", "e", &counter{})
		return err
	}),
	read("IsProcessed", func(ctx context.Context, s *mongostore.Store) error {
		_, err := s.IsProcessed(ctx, "x", "e")
		return err
	}),
	read("ReadTrace", func(ctx context.Context, s *mongostore.Store) error {
		var steps []bson.Raw
		err := s.ReadTrace(ctx, "x", &steps)
		return all(len(steps), 1, err)
	}),
	read("PendingOutbox", func(ctx context.Context, s *mongostore.Store) error {
		found, err := s.PendingOutbox(ctx, 0)
		return all(len(found), 2, err)
	}),
	read("PendingSpawns", func(ctx context.Context, s *mongostore.Store) error {
		found, err := s.PendingSpawns(ctx, 0)
		return all(len(found), 1, err)
	}),
	read("DueTimers", func(ctx context.Context, s *mongostore.Store) error {
		found, err := s.DueTimers(ctx, time.Now(), 0)
		return all(len(found), 1, err)
	}),
	read("List", func(ctx context.Context, s *mongostore.Store) error {
		page, err := s.List(ctx, mongostore.ListOptions{})
		if err != nil {
			return err
		}
		return all(len(page.Items), 1, nil)
	}),
	read("Inspect", func(ctx context.Context, s *mongostore.Store) error {
		in, err := s.Inspect(ctx, "x")
		if err != nil {
			return err
		}
		return all(len(in.Outbox), 2, nil)
	}),
	read("Stats", func(ctx context.Context, s *mongostore.Store) error {
		st, err := s.Stats(ctx)
		return all(int(st.Pending), 1, err)
	}),
	read("DeadLetters", func(ctx context.Context, s *mongostore.Store) error {
		_, err := s.DeadLetters(ctx, mongostore.DeadLetterOptions{})
		return err
	}),
}

var executionCommits = []operation{
	{name: "Commit, the first", definite: true, prepare: func(s *scene) call {
		x, ch, store := newCounter("n"), s.everything("e"), s.executions(s.far)
		return func(ctx context.Context) error { _, err := store.Commit(ctx, x, ch); return err }
	}},
	{name: "Commit", definite: true, prepare: func(s *scene) call {
		in := s.inspected()
		x := &counter{}
		s.must(s.executions(s.near).Load(context.Background(), "x", x))
		ch, store := s.everything("f"), s.executions(s.far)
		ch.Acks = []mongostore.Entry{in.Outbox[0], in.Spawns[0], in.Timers[0]}
		return func(ctx context.Context) error { _, err := store.Commit(ctx, x, ch); return err }
	}},
	{name: "Update", definite: true, prepare: func(s *scene) call {
		s.stored()
		store := s.executions(s.far)
		return func(ctx context.Context) error {
			x := &counter{}
			_, err := store.Update(ctx, "x", x, mongostore.UpdateOptions{EventID: "u"}, func(ch *mongostore.Changes) error {
				x.Total++
				*ch = s.everything("u")
				return nil
			})
			return err
		}
	}},
	{name: "CreateChild", definite: true, prepare: func(s *scene) call {
		in, child, store := s.inspected(), newCounter(""), s.executions(s.far)
		return func(ctx context.Context) error {
			_, err := store.CreateChild(ctx, in.Spawns[0], child, mongostore.Changes{Processed: "c"})
			return err
		}
	}},
	{name: "AppendTrace", definite: true, once: true, plain: true, prepare: func(s *scene) call {
		s.stored()
		store := s.executions(s.far)
		return func(ctx context.Context) error { return store.AppendTrace(ctx, "x", bson.D{{Key: "s", Value: 1}}) }
	}},
	{name: "Delete", definite: true, plain: true, prepare: func(s *scene) call {
		x, store, tried := s.stored(), s.executions(s.far), false
		return func(ctx context.Context) error {
			err := store.Delete(ctx, "x", x.Version)
			if tried && errors.Is(err, mongostore.ErrNotFound) {
				return nil // the time before
			}
			tried = true
			return err
		}
	}},
}

var executionWork = []operation{
	{name: "AckOutbox", prepare: func(s *scene) call {
		in, store := s.inspected(), s.executions(s.far)
		return func(ctx context.Context) error { return store.AckOutbox(ctx, in.Outbox...) }
	}},
	{name: "AckSpawn", prepare: func(s *scene) call {
		in, store := s.inspected(), s.executions(s.far)
		return func(ctx context.Context) error { return store.AckSpawn(ctx, in.Spawns...) }
	}},
	{name: "DeleteTimer", prepare: func(s *scene) call {
		in, store := s.inspected(), s.executions(s.far)
		return func(ctx context.Context) error { return store.DeleteTimer(ctx, in.Timers[0]) }
	}},
	{name: "Claim", ignored: []string{"attempts", "until", "due_at"}, prepare: func(s *scene) call {
		s.stored()
		store, first := s.executions(s.far), true
		return func(ctx context.Context) error {
			if !first {
				s.clock.Advance(2 * longLease) // what was leased comes back when its lease ends
			}
			first = false
			leases, err := store.Claim(ctx, mongostore.ClaimOptions{LeaseFor: longLease})
			return all(len(leases), 1, err)
		}
	}},
	underLease("Complete", func(ctx context.Context, s *mongostore.Store, l *mongostore.Lease) error { return s.Complete(ctx, l) }),
	underLease("Release", func(ctx context.Context, s *mongostore.Store, l *mongostore.Lease) error { return s.Release(ctx, l) }),
	underLease("Extend", func(ctx context.Context, s *mongostore.Store, l *mongostore.Lease) error {
		return s.Extend(ctx, l, 2*longLease)
	}),
	underLease("Retry", func(ctx context.Context, s *mongostore.Store, l *mongostore.Lease) error {
		return s.Retry(ctx, l, time.Hour, errFew)
	}),
	underLease("Bury", func(ctx context.Context, s *mongostore.Store, l *mongostore.Lease) error {
		return s.Bury(ctx, l.Outbox[0], errFew)
	}),
	{name: "Requeue", prepare: func(s *scene) call {
		in, sound, store := s.inspected(), s.executions(s.near), s.executions(s.far)
		for _, e := range []mongostore.Entry{in.Outbox[0], in.Spawns[0], in.Timers[0]} {
			s.must(sound.Bury(context.Background(), e, errFew))
		}
		return func(ctx context.Context) error {
			_, err := store.Requeue(ctx, in.Outbox[0], in.Spawns[0], in.Timers[0])
			return err
		}
	}},
	{name: "Purge", prepare: func(s *scene) call {
		s.stored()
		for i := range 5 {
			x := newCounter(fmt.Sprintf("f-%d", i))
			x.Status = "DONE"
			_, err := s.executions(s.near).Commit(context.Background(), x, mongostore.Changes{})
			s.must(err)
		}
		store := s.executions(s.far)
		return func(ctx context.Context) error {
			_, err := store.Purge(ctx, mongostore.PurgeOptions{FinishedBefore: s.clock.Now().Add(time.Second), Batch: 2})
			return err
		}
	}},
	{name: "Adopt", prepare: func(s *scene) call {
		s.stored()
		_, err := s.db().Collection("executions").InsertOne(context.Background(), bson.D{
			{Key: "_id", Value: "h"}, {Key: "definition_id", Value: "d"}, {Key: "version", Value: 3},
			{Key: "data", Value: `{"id":"h","definition_id":"d","version":3,"status":"DONE"}`},
			{Key: "outbox", Value: bson.A{}}, {Key: "spawns", Value: bson.A{}}, {Key: "timers", Value: bson.D{{Key: "P", Value: 4e9}}},
		})
		s.must(err)
		store := s.executions(s.far)
		return func(ctx context.Context) error { _, err := store.Adopt(ctx); return err }
	}},
	{name: "Setup", anew: true, prepare: func(s *scene) call {
		store := s.executions(s.far)
		return func(ctx context.Context) error { return store.Setup(ctx) }
	}},
}

func executionOperations() (all []operation) {
	return append(append(append(all, executionCommits...), executionWork...), executionReads...)
}
