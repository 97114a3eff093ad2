package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseBadInput: what can never be written is refused before anything is sent,
// by a typed error that names the field.
func exerciseBadInput(t *testing.T, h *harness) {
	run(t, h.bundle, badInputTests)
}

// Types that cannot be an Execution, or cannot be encoded.
type (
	twoHeaders struct {
		first
		deeper
	}
	deeper      struct{ second }
	first       struct{ mongostore.Header }
	second      struct{ mongostore.Header }
	byPointer   struct{ *mongostore.Header }
	hidesStatus struct {
		mongostore.Header
		Status string
	}
	hidesInJSON struct {
		mongostore.Header
		State string `json:"status"`
	}
	swallowed struct {
		mongostore.Header
		time.Time
	}
	notEncodable struct {
		mongostore.Header
		C chan int
	}
	noPointer int
	cannot    struct{}
	ownTimer  struct{ mongostore.Timer }
)

func (t *twoHeaders) ExecutionHeader() *mongostore.Header { return t.first.ExecutionHeader() }
func (noPointer) ExecutionHeader() *mongostore.Header     { return &mongostore.Header{ID: "o-1"} }

var errCannot = errors.New("cannot be encoded")

func (cannot) MarshalJSON() ([]byte, error) { return nil, errCannot }
func (cannot) MarshalBSON() ([]byte, error) { return nil, errCannot }

func emitOf(e mongostore.Emit) mongostore.Changes {
	return mongostore.Changes{Emits: []mongostore.Emit{{Event: 1}, e}}
}

func spawnOf(s mongostore.Spawn) mongostore.Changes {
	return mongostore.Changes{Spawns: []mongostore.Spawn{{ChildID: "good"}, s}}
}

func armAt(at time.Time) mongostore.Changes {
	return arms(arm("good", 1), mongostore.TimerOp{Path: "x", FireAt: at})
}

func ackOf(entries ...mongostore.Entry) mongostore.Changes { return mongostore.Changes{Acks: entries} }

func nested(levels int) bson.D {
	doc := d("n", 1)
	for range levels {
		doc = d("n", doc)
	}
	return doc
}

type badChanges struct {
	field string
	ch    mongostore.Changes
}

// badDocuments are values that do not encode as a BSON document.
func badDocuments() map[string]any {
	return map[string]any{
		"int": 5, "text": "text", "slice": []int{1}, "chan": make(chan int), "func inside": map[string]any{"f": func() {}}, "chan inside": d("c", make(chan int)),
		"NUL in a key": map[string]any{"a\x00b": 1}, "fails": cannot{}, "broken raw": bson.Raw{5, 0, 0}, "deep": nested(300),
		"text that is not UTF-8": d("a", "b\xff"), "key that is not UTF-8": map[string]any{"a\xff": 1}, "deep text that is not UTF-8": d("a", bson.A{d("b", "\xed\xa0\x80")}),
		"raw text that is not UTF-8": bson.Raw("\x0e\x00\x00\x00\x02a\x00\x02\x00\x00\x00\xff\x00\x00"),
	}
}

func badTable() map[string]badChanges {
	own := func(id, token string) mongostore.Entry {
		return mongostore.OutboxEntry{ExecutionID: id, Seq: 1, Token: token}
	}
	table := map[string]badChanges{
		"a target that holds NUL":            {"Changes.Emits[1].TargetID", emitOf(mongostore.Emit{TargetID: "a\x00"})},
		"a target that is not UTF-8":         {"Changes.Emits[1].TargetID", emitOf(mongostore.Emit{TargetID: "\xff"})},
		"an event that JSON refuses":         {"Changes.Emits[1].Event", emitOf(mongostore.Emit{Event: make(chan int)})},
		"an event whose encoder fails":       {"Changes.Emits[1].Event", emitOf(mongostore.Emit{Event: cannot{}})},
		"an event of NaN":                    {"Changes.Emits[1].Event", emitOf(mongostore.Emit{Event: math.NaN()})},
		"raw JSON that is none":              {"Changes.Emits[1].Event", emitOf(mongostore.Emit{Event: json.RawMessage("not json")})},
		"raw JSON that is empty":             {"Changes.Emits[1].Event", emitOf(mongostore.Emit{Event: json.RawMessage(nil)})},
		"raw JSON that is not UTF-8":         {"Changes.Emits[1].Event", emitOf(mongostore.Emit{Event: json.RawMessage("\"\xff\"")})},
		"a child without an id":              {"Changes.Spawns[1].ChildID", spawnOf(mongostore.Spawn{RootPath: "x"})},
		"a child id that holds NUL":          {"Changes.Spawns[1].ChildID", spawnOf(mongostore.Spawn{ChildID: "a\x00"})},
		"a root path that is not UTF-8":      {"Changes.Spawns[1].RootPath", spawnOf(mongostore.Spawn{ChildID: "c", RootPath: "\xff"})},
		"a timer without time and cancel":    {"Changes.Timers[1].FireAt", armAt(time.Time{})},
		"a timer before year 1":              {"Changes.Timers[1].FireAt", armAt(time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC))},
		"a timer after 9999":                 {"Changes.Timers[1].FireAt", armAt(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))},
		"a timer as late as can be":          {"Changes.Timers[1].FireAt", armAt(time.Unix(math.MaxInt64, 0))},
		"a timer as early as can be":         {"Changes.Timers[1].FireAt", armAt(time.Unix(math.MinInt64, 0))},
		"a timer that wraps around in µs":    {"Changes.Timers[1].FireAt", armAt(time.Date(584542, 1, 1, 0, 0, 0, 0, time.UTC))},
		"an event id that holds NUL":         {"Changes.Processed", mongostore.Changes{Processed: "a\x00"}},
		"an event id that is not UTF-8":      {"Changes.Processed", mongostore.Changes{Processed: "\xff"}},
		"a nil ack":                          {"Changes.Acks[0]", ackOf(nil)},
		"an ack of a type of one's own":      {"Changes.Acks[0]", ackOf(ownTimer{})},
		"an ack of another execution":        {"Changes.Acks[1]", ackOf(own("o-1", ""), own("o-2", ""))},
		"a spawn ack of another execution":   {"Changes.Acks[0]", ackOf(mongostore.SpawnEntry{ParentID: "o-2", Seq: 1})},
		"a timer ack of another execution":   {"Changes.Acks[0]", ackOf(mongostore.Timer{ExecutionID: "o-2", Path: "x", FireAt: at(1)})},
		"a timer ack whose path holds NUL":   {"Changes.Acks[0].Path", ackOf(mongostore.Timer{ExecutionID: "o-1", Path: "a\x00", FireAt: at(1)})},
		"acks under two leases":              {"Changes.Acks[1].Token", ackOf(own("o-1", "one"), own("o-1", "two"))},
		"everything good but the last trace": {"Changes.Trace", mongostore.Changes{Emits: emit(1).Emits, Trace: 5}},
	}
	for name, v := range badDocuments() {
		table["spawn input: "+name] = badChanges{"Changes.Spawns[1].Input", spawnOf(mongostore.Spawn{ChildID: "c", Input: v})}
		table["trace: "+name] = badChanges{"Changes.Trace", mongostore.Changes{Emits: emit(1).Emits, Trace: v}}
	}
	return table
}

var badInputTests = tests{
	"InChangesIsNamedAndBurnsNothing": func(t *testing.T, b *bundle) {
		stored := b.create(t, "o-1")
		before := b.doc(t, "o-1")
		for name, bad := range badTable() {
			for _, o := range []*order{newOrder("o-1"), stored} {
				version := o.Version
				_, err := b.store.Commit(t.Context(), o, bad.ch)
				require.ErrorIs(t, err, mongostore.ErrInvalid, name)
				requireInvalid(t, err, bad.field)
				require.Equal(t, version, o.Version, name)
			}
		}
		require.Equal(t, before, b.doc(t, "o-1"))
		require.Equal(t, 1, b.count(t))
		require.Zero(t, b.counter(t, "outbox"))
		require.Zero(t, b.counter(t, "spawn"))
		b.commit(t, stored, mongostore.Changes{})
	},

	"InTheHeaderIsNamed": func(t *testing.T, b *bundle) {
		for field, change := range map[string]func(*mongostore.Header){
			"Header.ID":           func(h *mongostore.Header) { h.ID = "" },
			"Header.DefinitionID": func(h *mongostore.Header) { h.DefinitionID = "a\x00" },
			"Header.ParentID":     func(h *mongostore.Header) { h.ParentID = "\xff" },
			"Header.Status":       func(h *mongostore.Header) { h.Status = "\xed\xa0\x80" },
			"Header.Outcome":      func(h *mongostore.Header) { h.Outcome = "\x00" },
			"Header.ActivePath":   func(h *mongostore.Header) { h.ActivePath = "a\xff" },
			"Header.Version":      func(h *mongostore.Header) { h.Version = -1 },
		} {
			o := newOrder("o-1")
			change(&o.Header)
			_, err := b.store.Commit(t.Context(), o, emit(1))
			requireInvalid(t, err, field)
		}
		for _, id := range []string{"a\x00b", "a\xff"} {
			_, err := b.store.Commit(t.Context(), newOrder(id), emit(1))
			requireInvalid(t, err, "Header.ID")
			requireInvalid(t, b.store.Load(t.Context(), id, &order{}), "id")
		}
		require.Zero(t, b.count(t))
		require.Zero(t, b.counter(t, "outbox"))
	},

	"OfTypesThatCannotBeAnExecutionIsRefused": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		var none *order
		header := mongostore.Header{ID: "o-1", Version: 1}
		for name, exe := range map[string]mongostore.Execution{
			"nil": nil, "a nil pointer": none, "no pointer": noPointer(1), "a bare Header": &header, "two Headers": &twoHeaders{},
			"a Header by pointer": &byPointer{&header}, "a nil Header by pointer": &byPointer{}, "a hidden field": &hidesStatus{Header: header},
			"a hidden JSON key": &hidesInJSON{Header: header}, "a marshaler that swallows": &swallowed{Header: header},
		} {
			_, err := b.store.Commit(t.Context(), exe, emit(1))
			require.Error(t, err, name)
			requireInvalid(t, err, "Execution")
			requireInvalid(t, b.store.Load(t.Context(), "o-1", exe), "Execution")
			_, err = b.store.LoadForEvent(t.Context(), "o-1", "ev-1", exe)
			requireInvalid(t, err, "Execution")
		}
		require.EqualValues(t, 1, b.load(t, "o-1").Version)
		require.Zero(t, b.counter(t, "outbox"))
	},

	"ThatTheCodecRefusesIsNamedWithTheCodecsError": func(t *testing.T, b *bundle) {
		bad := &notEncodable{Header: mongostore.Header{ID: "o-1"}}
		_, err := b.store.Commit(t.Context(), bad, emit(1))
		requireInvalid(t, err, "Execution")
		require.ErrorAs(t, err, new(*json.UnsupportedTypeError))
		require.Zero(t, bad.Version)

		store := b.with(t, func(c *mongostore.Config) { c.Codec = totalOnly{} })
		_, err = store.Commit(t.Context(), newOrder("o-1"), emit("not an order"))
		requireInvalid(t, err, "Changes.Emits[0].Event")
		require.ErrorContains(t, err, "not an order")
		_, err = b.store.Commit(t.Context(), newOrder("o-1"), emit(cannot{}))
		require.ErrorIs(t, err, errCannot)
		require.Zero(t, b.count(t))
		require.Zero(t, b.counter(t, "outbox"))
	},

	"OfReadsIsNamed": func(t *testing.T, b *bundle) {
		for _, id := range []string{"", "a\x00", "\xff"} {
			requireInvalid(t, b.store.Load(t.Context(), id, &order{}), "id")
			_, err := b.store.LoadForEvent(t.Context(), id, "ev-1", &order{})
			requireInvalid(t, err, "id")
			_, err = b.store.LoadForEvent(t.Context(), "o-1", id, &order{})
			requireInvalid(t, err, "eventID")
			_, err = b.store.IsProcessed(t.Context(), id, "ev-1")
			requireInvalid(t, err, "id")
			_, err = b.store.IsProcessed(t.Context(), "o-1", id)
			requireInvalid(t, err, "eventID")
		}
	},

	"DoesNotHideACtxThatHasEnded": func(t *testing.T, b *bundle) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		o := b.create(t, "o-1", b.everything("ev-1"))
		before := b.doc(t, "o-1")
		_, listed := b.store.List(ctx, mongostore.ListOptions{})
		_, pending := b.store.PendingOutbox(ctx, 0)
		_, due := b.store.DueTimers(ctx, at(1e10), 0)
		_, adopted := b.store.Adopt(ctx)
		for method, err := range map[string]error{
			"Load": b.store.Load(ctx, "o-1", o), "List": listed, "PendingOutbox": pending, "DueTimers": due, "Adopt": adopted,
			"Delete": b.store.Delete(ctx, "o-1", 1), "Setup": b.store.Setup(ctx), "AppendTrace": b.store.AppendTrace(ctx, "o-1", d("n", 1)),
			"AckOutbox": b.store.AckOutbox(ctx, mongostore.OutboxEntry{ExecutionID: "o-1", Seq: 1}),
		} {
			require.ErrorIs(t, err, context.Canceled, method)
		}
		require.Equal(t, before, b.doc(t, "o-1"))
	},

	"MayLookOddAndStillBeGood": func(t *testing.T, b *bundle) {
		o := newOrder(" ")
		ch := emit(nil, "", json.RawMessage("null"), json.RawMessage(` [1, 2] `))
		ch.Spawns = []mongostore.Spawn{{ChildID: " ", Input: nested(100)}}
		ch.Trace = maps.Clone(map[string]any{"index": "of the caller", "": 1})
		b.commit(t, o, ch)
		b.commit(t, b.load(t, " "), ch)
		require.Len(t, b.outbox(t, 0), 8)
	},
}
