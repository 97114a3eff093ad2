package mongostore

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/internal/fuzzdocs"
)

// soundDocument is an execution with something in every field.
func soundDocument(id any) bson.D {
	return bson.D{
		{Key: "_id", Value: id}, {Key: "definition_id", Value: "d"}, {Key: "version", Value: 3}, {Key: "data", Value: `{"id":"x","version":3,"status":"NEW","total":5}`},
		{Key: "outbox", Value: bson.A{
			bson.D{{Key: "seq", Value: 1}, {Key: "target_id", Value: "t"}, {Key: "event", Value: `{"a":1}`}},
			bson.D{{Key: "seq", Value: 2}, {Key: "target_id", Value: nil}, {Key: "event", Value: bson.Binary{Data: []byte("{}")}}},
		}},
		{Key: "spawns", Value: bson.A{bson.D{
			{Key: "seq", Value: 1}, {Key: "parent_id", Value: id}, {Key: "child_id", Value: "c"}, {Key: "root_path", Value: "A.B"}, {Key: "context", Value: bson.D{{Key: "n", Value: 1}}},
		}}},
		{Key: "trace", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "event_kind", Value: "Paid"}}}}, {Key: "processed", Value: bson.A{"ev-1"}},
		{Key: "timers", Value: bson.D{{Key: "A．B", Value: 5.5}, {Key: "$x", Value: 6}}},
		{Key: "status", Value: "NEW"}, {Key: "parent_id", Value: "p"}, {Key: "outcome", Value: ""}, {Key: "active_path", Value: "A"}, {Key: "updated_at", Value: 1.5},
		{Key: "finished_at", Value: 2.5}, {Key: "commits", Value: bson.D{{Key: slotKey(3), Value: bson.ObjectID(newCommitID(3))}}}, {Key: "trace_next", Value: 1},
		{Key: "seq_hi", Value: bson.D{{Key: "outbox", Value: 2}, {Key: "spawn", Value: 1}}}, {Key: "due_at", Value: 1.5}, {Key: "timer_at", Value: 5.5},
		{Key: "lease", Value: bson.D{{Key: "token", Value: "t"}, {Key: "until", Value: 2.5}, {Key: "attempts", Value: 1}, {Key: "head", Value: "outbox:1"}, {Key: "cause", Value: "c"}}},
		{Key: "dead", Value: bson.A{
			bson.D{{Key: "kind", Value: "outbox"}, {Key: "cause", Value: "c"}, {Key: "attempts", Value: 1}, {Key: "at", Value: 1.5}, {Key: "seq", Value: 1}, {Key: "entry", Value: bson.D{{Key: "seq", Value: 1}, {Key: "event", Value: "{}"}}}},
			bson.D{{Key: "kind", Value: "timer"}, {Key: "path", Value: "A"}, {Key: "fire_at", Value: 5.5}, {Key: "at", Value: 1.5}},
			bson.D{{Key: "kind", Value: "spawn"}, {Key: "damaged", Value: true}, {Key: "value", Value: 5}},
		}}, {Key: "dead_at", Value: 1.5},
	}
}

// offline is a store that sends nothing.
func offline() *Store {
	s := &Store{cfg: Config{}.withDefaults(), finished: map[string]bool{"DONE": true}, textCodec: true}
	s.cfg.Clock = stillClock{}
	return s
}

type stillClock struct{}

func (stillClock) Now() time.Time { return time.Unix(1_800_000_000, 0) }

type fuzzed struct {
	Header
	Total int `json:"total"`
}

// TestFieldsOfEveryTypeDecode gives every reader a document with one field of each
// type, and with its bytes broken.
func TestFieldsOfEveryTypeDecode(t *testing.T) {
	t.Parallel()
	s := offline()
	for _, doc := range append(fuzzdocs.Variants(soundDocument("x")), fuzzdocs.Broken(soundDocument("x"))...) {
		readAll(t, s, doc)
	}
}

// FuzzStoredDocumentsDecode gives every reader whatever bytes, or a document with two
// fields changed: it says what is wrong, and never panics.
func FuzzStoredDocumentsDecode(f *testing.F) {
	f.Add(uint16(0), uint16(0), []byte(nil))
	f.Add(uint16(7), uint16(1000), []byte(nil))
	for i, doc := range append(fuzzdocs.Variants(soundDocument("x")), fuzzdocs.Broken(soundDocument("x"))...) {
		if i%50 == 0 {
			f.Add(uint16(i), uint16(i/2), []byte(doc))
		}
	}
	s := offline()
	f.Fuzz(func(t *testing.T, one, other uint16, raw []byte) {
		if len(raw) == 0 {
			raw = fuzzdocs.Encode(fuzzdocs.Variant(fuzzdocs.Variant(soundDocument("x"), one), other))
		}
		readAll(t, s, raw)
	})
}

func readAll(t *testing.T, s *Store, doc bson.Raw) {
	sound := doc.Validate() == nil && doc.Lookup("_id").Type != 0 // as all that a server sends
	readExecution(t, s, doc)
	readSweeps(s, doc)
	for _, held := range []bson.Raw{doc, s.projected(doc, 7)} {
		l, wrong := s.lease("x", held)
		for _, e := range l.entries() {
			if e.EntryID() == "" {
				t.Fatalf("%T without an id", e)
			}
		}
		for _, w := range wrong {
			requireEncodes(t, sound, w.burial(7))
		}
		requireEncodes(t, sound, bson.D{{Key: "f", Value: untouched(l)}, {Key: "h", Value: s.handoverStages(handover{acked: l.entries(), lease: free}, 7)}})
	}
	s.reportUnreadable(doc)
	filter, stages := s.adoption(doc)
	requireEncodes(t, sound, bson.D{{Key: "f", Value: filter}, {Key: "s", Value: stages}})
}

func readExecution(t *testing.T, s *Store, doc bson.Raw) {
	exe := &fuzzed{}
	switch err := s.fill(exe, &exe.Header, "x", doc); {
	case err == nil && (exe.ID != "x" || exe.Version < 0):
		t.Fatalf("read without damage as %+v", exe.Header)
	case err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNotFound):
		t.Fatal(err)
	}
	in := s.inspection("x", doc)
	for _, e := range in.Outbox {
		_ = e.Decode(new(any))
	}
	for _, e := range in.Spawns {
		_ = e.Decode(&map[string]any{})
	}
	for _, steps := range []any{&[]bson.Raw{}, &[]map[string]any{}, &[]struct{ Index int }{}} {
		if err := decodeSteps("x", doc, reflect.ValueOf(steps).Elem()); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
	}
	a := &attempt{plan: &plan{id: "x", old: 3}}
	a.takeTraceIndex(doc)
	a.mendAckedTimers(doc)
	if a.traceIndex < 0 {
		t.Fatalf("trace index %d", a.traceIndex)
	}
}

func readSweeps(s *Store, doc bson.Raw) {
	out := readEntries(outboxSeq, []bson.Raw{doc, doc}, 2, s.readOutboxEntry, func(e OutboxEntry) int64 { return e.Seq })
	s.reportAll(out.damage)
	spawns := readEntries(spawnSeq, []bson.Raw{doc, doc}, 2, readSpawnEntry, func(e SpawnEntry) int64 { return e.Seq })
	s.reportAll(spawns.damage)
	s.decodeTimers([]bson.Raw{doc})
	s.decodeTimers([]bson.Raw{s.projected(doc, 7)})
	for _, l := range s.lettersOf(doc) {
		_ = l.letter.Entry.EntryID()
	}
}

// requireEncodes: what a reader passes on to the server can be sent.
func requireEncodes(t *testing.T, sound bool, v bson.D) {
	t.Helper()
	if _, err := bson.Marshal(v); err != nil && sound {
		t.Fatalf("%v: %v", err, v)
	}
}
