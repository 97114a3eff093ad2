package mongostore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/internal/fuzzdocs"
	"github.com/execstore/mongostore/internal/mongotest"
)

// FuzzTheStoreLivesWithWhateverIsStored puts a document beside a sound one, and calls
// everything: each call answers by the store's own errors, and the sound one is served.
func FuzzTheStoreLivesWithWhateverIsStored(f *testing.F) {
	client, database := mongotest.Standalone(f).Database(f)
	s, err := New(client, Config{Database: database, Clock: stillClock{}})
	require.NoError(f, err)
	f.Add(uint16(0), uint16(0), []byte(nil))
	for i, doc := range fuzzdocs.Variants(soundDocument("x")) {
		if i%100 == 0 {
			f.Add(uint16(i), uint16(i*7), []byte(nil))
			f.Add(uint16(0), uint16(0), []byte(doc))
		}
	}
	f.Fuzz(func(t *testing.T, one, other uint16, raw []byte) {
		if len(raw) == 0 {
			raw = fuzzdocs.Encode(fuzzdocs.Variant(fuzzdocs.Variant(soundDocument("x"), one), other))
		}
		doc, id := stored(bson.Raw(raw))
		if doc == nil {
			return
		}
		if _, err := s.executions.DeleteMany(t.Context(), bson.D{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.executions.InsertOne(t.Context(), doc); err != nil {
			return // the server does not take it either
		}
		if _, err := s.executions.InsertOne(t.Context(), soundDocument("sound")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		s.callAll(ctx, t, id)
	})
}

// stored makes of a fuzzed document one that can be stored: with an _id, and of a size
// that many can be tried.
func stored(doc bson.Raw) (whole bson.Raw, id string) {
	if doc.Validate() != nil || len(doc) > 1<<16 {
		return nil, ""
	}
	if v := doc.Lookup("_id"); v.Type != 0 {
		id, _ = v.StringValueOK()
		if id == "sound" {
			return nil, ""
		}
		return doc, id
	}
	whole, err := bson.Marshal(bson.D{{Key: "_id", Value: "x"}})
	if err != nil {
		return nil, ""
	}
	return end(append(whole[:len(whole)-1:len(whole)-1], doc[4:len(doc)-1]...), 0), "x"
}

// owned fails unless err is one that the documentation names.
func owned(t *testing.T, what string, err error) {
	t.Helper()
	for _, sentinel := range []error{nil, ErrNotFound, ErrConflict, ErrTooLarge, ErrLeaseLost, ErrInvalid, ErrDamaged} {
		if errors.Is(err, sentinel) {
			return
		}
	}
	var refused mongo.ServerError
	t.Fatalf("%s: %v (by the server: %t)", what, err, errors.As(err, &refused))
}

// callAll calls every method; what reads many must show the sound document.
func (s *Store) callAll(ctx context.Context, t *testing.T, id string) {
	shows := func(what string, err error, ids ...string) {
		t.Helper()
		owned(t, what, err)
		if !slices.Contains(ids, "sound") {
			t.Fatalf("%s does not show the sound document, but %q, %v", what, ids, err)
		}
	}
	s.callSweeps(ctx, t, shows)
	if id != "" {
		s.callOne(ctx, t, id)
	}
	_, err := s.Stats(ctx)
	owned(t, "Stats", err)
	for range 3 {
		leases, err := s.Claim(ctx, ClaimOptions{})
		owned(t, "Claim", err)
		var ids []string
		for _, l := range leases {
			ids = append(ids, l.ExecutionID)
			owned(t, "Extend", s.Extend(ctx, l, time.Minute))
			owned(t, "Complete", s.Complete(ctx, l))
		}
		if slices.Contains(ids, "sound") {
			break
		}
	}
	var left bson.Raw
	if left, err = s.executions.FindOne(ctx, byID("sound")).Raw(); err != nil {
		t.Fatal(err)
	}
	if left.Lookup("due_at").Type != 0 {
		t.Fatalf("the sound document was not claimed: %s", left)
	}
	_, err = s.Adopt(ctx)
	owned(t, "Adopt", err)
	_, err = s.Purge(ctx, PurgeOptions{FinishedBefore: stillClock{}.Now()})
	owned(t, "Purge", err)
}

func (s *Store) callSweeps(ctx context.Context, t *testing.T, shows func(what string, err error, ids ...string)) {
	var ids []string
	outbox, err := s.PendingOutbox(ctx, 0)
	for _, e := range outbox {
		ids = append(ids, e.ExecutionID)
	}
	shows("PendingOutbox", err, ids...)
	spawns, err := s.PendingSpawns(ctx, 0)
	ids = nil
	for _, e := range spawns {
		ids = append(ids, e.ParentID)
	}
	shows("PendingSpawns", err, ids...)
	timers, err := s.DueTimers(ctx, stillClock{}.Now(), 0)
	ids = nil
	for _, e := range timers {
		ids = append(ids, e.ExecutionID)
	}
	shows("DueTimers", err, ids...)
	for _, opts := range []ListOptions{{Limit: 1}, {Limit: 1, Statuses: []string{"NEW"}}, {ParentID: "p", UpdatedBefore: stillClock{}.Now()}} {
		ids = nil
		for row, failed := range s.All(ctx, opts) {
			err = failed
			ids = append(ids, row.ID)
		}
		shows("List", err, ids...)
	}
	ids = nil
	for opts := (DeadLetterOptions{Limit: 1}); ; {
		page, err := s.DeadLetters(ctx, opts)
		owned(t, "DeadLetters", err)
		for _, l := range page.Items {
			key, _ := keyOf(l.Entry)
			ids = append(ids, key.execution)
		}
		if opts.Cursor = page.Next; page.Next == "" {
			break
		}
	}
	shows("DeadLetters", nil, ids...)
}

func (s *Store) callOne(ctx context.Context, t *testing.T, id string) {
	exe := &fuzzed{}
	owned(t, "Load", s.Load(ctx, id, exe))
	_, err := s.LoadForEvent(ctx, id, "ev-1", exe)
	owned(t, "LoadForEvent", err)
	loaded := err == nil
	_, err = s.IsProcessed(ctx, id, "ev-1")
	owned(t, "IsProcessed", err)
	owned(t, "ReadTrace", s.ReadTrace(ctx, id, &[]bson.Raw{}))
	in, err := s.Inspect(ctx, id)
	owned(t, "Inspect", err)
	if in != nil {
		for _, l := range in.Dead {
			_, err := s.Requeue(ctx, l.Entry)
			owned(t, "Requeue", err)
		}
		for _, timer := range in.Timers {
			owned(t, "DeleteTimer", s.DeleteTimer(ctx, timer))
		}
	}
	owned(t, "AppendTrace", s.AppendTrace(ctx, id, bson.D{{Key: "n", Value: 1}}))
	owned(t, "Bury", s.Bury(ctx, OutboxEntry{ExecutionID: id, Seq: 1}, nil))
	owned(t, "AckOutbox", s.AckOutbox(ctx, OutboxEntry{ExecutionID: id, Seq: 2}))
	owned(t, "AckSpawn", s.AckSpawn(ctx, SpawnEntry{ParentID: id, Seq: 1}))
	if !loaded {
		exe = &fuzzed{Header: Header{ID: id}}
	}
	_, err = s.Commit(ctx, exe, Changes{
		Emits: []Emit{{Event: 1}}, Spawns: []Spawn{{ChildID: "c"}}, Processed: "ev-2", Trace: bson.D{{Key: "n", Value: 1}},
		Timers: []TimerOp{{Path: "A.B", FireAt: stillClock{}.Now()}}, Acks: []Entry{Timer{ExecutionID: id, Path: "$x", FireAt: time.Unix(6, 0)}},
	})
	owned(t, "Commit", err)
}
