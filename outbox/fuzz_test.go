package outbox

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/cursor"
	"github.com/execstore/mongostore/internal/fuzzdocs"
	"github.com/execstore/mongostore/internal/mongotest"
)

var fuzzTime = time.UnixMilli(1_800_000_000_000).UTC()

type fuzzClock struct{}

func (fuzzClock) Now() time.Time { return fuzzTime }

// soundDelivery is one of each field; status says which of them a real one has.
func soundDelivery(handler, event, status string) bson.D {
	doc := bson.D{
		{Key: "_id", Value: handler + ":" + event}, {Key: "event_id", Value: event}, {Key: "type", Value: "made"}, {Key: "handler", Value: handler},
		{Key: "key", Value: "k"}, {Key: "sequence", Value: int64(1)}, {Key: "status", Value: status}, {Key: "available_at", Value: fuzzTime.Add(-time.Second)},
		{Key: "attempts", Value: int64(1)}, {Key: "requeues", Value: int64(0)}, {Key: "last_error", Value: "e"}, {Key: "token", Value: "t"},
	}
	switch status {
	case waiting:
		return append(doc, bson.E{Key: "waiting_lane", Value: handler + ":k"}, bson.E{Key: "suspect_since", Value: fuzzTime})
	case completed, dead:
		return append(doc, bson.E{Key: "finished_at", Value: fuzzTime.Add(-time.Second)})
	}
	return append(doc, bson.E{Key: "due_at", Value: fuzzTime.Add(-time.Second)}, bson.E{Key: "active_lane", Value: handler + ":k"})
}

func soundEvent(id string) bson.D {
	return bson.D{
		{Key: "_id", Value: id}, {Key: "type", Value: "made"}, {Key: "key", Value: "k"}, {Key: "payload", Value: `{"a":1}`}, {Key: "headers", Value: `{"n":1.5}`},
		{Key: "created_at", Value: fuzzTime}, {Key: "handlers", Value: bson.A{"h"}},
	}
}

// readDelivery gives every reader two documents: nothing panics, and what is read as
// sound is.
func readDelivery(t *testing.T, delivery, event bson.Raw) {
	d := readStored(delivery)
	out := d.delivery()
	damage := out.event(event)
	if d.damaged == "" && (d.id == "" || d.id != d.handler+":"+d.eventID || d.lane != "" && d.lane != laneOf(d.handler, d.key)) {
		t.Fatalf("read without damage: %+v", d)
	}
	if _, isRaw := out.Message.Payload.(interface{ MarshalJSON() ([]byte, error) }); damage == "" && !isRaw {
		t.Fatalf("no damage and no payload: %+v", out)
	}
	other := readStored(event)
	v := view{next: d.id, number: d.sequence, active: []stored{d, other}}
	v.blocks(other, fuzzTime)
	v.blocks(d, fuzzTime)
	v.heldByOther(d, fuzzTime)
	v.waitingHead()
	v.leased()
	numbers([]bson.Raw{delivery, event}, "key", "sequence")
	texts(event.Lookup("handlers"))
	position(delivery, []string{"sequence", "_id"})
	if delivery.Validate() != nil || d.idValue.Type == 0 || delivery.Lookup("suspect_since").Type == 0 {
		return
	}
	for _, model := range clearing([]bson.Raw{delivery}, map[string]*view{}) {
		if _, err := bson.Marshal(model.(*mongo.UpdateManyModel).Filter); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFieldsOfEveryTypeAreRead(t *testing.T) {
	t.Parallel()
	sound, event := soundDelivery("h", "e", processing), soundEvent("e")
	for _, doc := range append(fuzzdocs.Variants(sound), fuzzdocs.Broken(sound)...) {
		readDelivery(t, doc, fuzzdocs.Encode(event))
	}
	for _, doc := range append(fuzzdocs.Variants(event), fuzzdocs.Broken(event)...) {
		readDelivery(t, fuzzdocs.Encode(sound), doc)
	}
}

// FuzzDeliveriesAreRead gives every reader whatever bytes.
func FuzzDeliveriesAreRead(f *testing.F) {
	sound, event := fuzzdocs.Encode(soundDelivery("h", "e", processing)), fuzzdocs.Encode(soundEvent("e"))
	f.Add([]byte(sound), []byte(event))
	for i, doc := range append(fuzzdocs.Variants(soundDelivery("h", "e", waiting)), fuzzdocs.Broken(soundDelivery("h", "e", dead))...) {
		if i%25 == 0 {
			f.Add([]byte(doc), []byte(event))
		}
	}
	for i, doc := range append(fuzzdocs.Variants(soundEvent("e")), fuzzdocs.Broken(soundEvent("e"))...) {
		if i%25 == 0 {
			f.Add([]byte(sound), []byte(doc))
		}
	}
	f.Fuzz(func(t *testing.T, delivery, event []byte) { readDelivery(t, delivery, event) })
}

// fuzzStore needs no transactions, and so any server.
func fuzzStore(f *testing.F) (*Store, *mongotest.Commands) {
	server := mongotest.Standalone(f)
	_, database := server.Database(f)
	sent := &mongotest.Commands{}
	s, err := New(server.Client(f, options.Client().SetMonitor(sent.Monitor())), Config{Database: database, Clock: fuzzClock{}})
	require.NoError(f, err)
	return s, sent
}

// listings are all orders of List.
var listings = []ListOptions{
	{}, {Handler: "h"}, {Key: "k"}, {Status: dead}, {Status: completed}, {Status: waiting}, {Status: waiting, Handler: "h"}, {Status: pending, Type: "made"},
}

func FuzzCursorsOfList(f *testing.F) {
	s, sent := fuzzStore(f)
	for _, status := range []string{waiting, dead, completed, pending} {
		for _, event := range []string{"1", "2"} {
			_, err := s.deliveries.InsertOne(f.Context(), soundDelivery("h", status+event, status))
			require.NoError(f, err)
		}
	}
	for i, opts := range listings {
		opts.Limit = 1
		page, err := s.List(f.Context(), opts)
		require.NoError(f, err)
		plain, _ := base64.RawURLEncoding.DecodeString(page.Next)
		f.Add(uint8(i), uint8(0), []byte(page.Next))
		f.Add(uint8(i), uint8(1), plain)
		for _, v := range fuzzdocs.Values() {
			at := bson.D{}
			for _, field := range opts.order() {
				at = append(at, bson.E{Key: field, Value: v})
			}
			f.Add(uint8(i), uint8(2), []byte(fuzzdocs.Encode(at)))
		}
	}
	f.Fuzz(func(t *testing.T, which, form uint8, text []byte) {
		opts := listings[int(which)%len(listings)]
		opts.Limit, opts.Cursor = 1, string(text)
		switch form % 3 {
		case 1:
			opts.Cursor = base64.RawURLEncoding.EncodeToString(text)
		case 2:
			opts.Cursor = cursor.Encode(string(text), opts.digest())
		}
		page, err := s.List(t.Context(), opts)
		if err != nil && !errors.Is(err, mongostore.ErrInvalid) {
			t.Fatal(err)
		}
		if err == nil && len(page.Items) > 1 {
			t.Fatal("more than was asked for")
		}
		for _, c := range sent.Commands() {
			requireNoForeignOperator(t, c.Body.Lookup("filter"))
		}
		sent.Reset()
	})
}

// requireNoForeignOperator: every operator in a filter is one of those that List uses.
func requireNoForeignOperator(t *testing.T, v bson.RawValue) {
	doc, ok := v.DocumentOK()
	if arr, isArray := v.ArrayOK(); isArray {
		doc, ok = bson.Raw(arr), true
	}
	if !ok {
		return
	}
	elements, err := doc.Elements()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range elements {
		known := []string{"$and", "$or", "$eq", "$gt", "$gte", "$lt", "$in", "$type", "$not", "$exists"}
		if strings.HasPrefix(e.Key(), "$") && !slices.Contains(known, e.Key()) {
			t.Fatalf("%s reached the server: %s", e.Key(), v)
		}
		requireNoForeignOperator(t, e.Value())
	}
}

// FuzzTheOutboxLivesWithWhateverIsStored puts a delivery and an event beside a sound
// pair, and calls everything.
func FuzzTheOutboxLivesWithWhateverIsStored(f *testing.F) {
	s, _ := fuzzStore(f)
	f.Add(uint8(0), uint16(0), uint16(0), []byte(nil))
	for i := range uint16(60) {
		f.Add(uint8(i), i*11, i*5, []byte(nil))
	}
	statuses := []string{pending, waiting, processing, completed, dead}
	f.Fuzz(func(t *testing.T, which uint8, one, other uint16, raw []byte) {
		sound := soundDelivery("h", "e", statuses[int(which)%len(statuses)])
		delivery := fuzzdocs.Encode(fuzzdocs.Variant(fuzzdocs.Variant(sound, one), other))
		event := fuzzdocs.Encode(fuzzdocs.Variant(soundEvent("e"), other/2))
		if doc := bson.Raw(raw); len(raw) > 0 && len(raw) < 1<<16 && doc.Validate() == nil {
			delivery = doc
		}
		for _, coll := range []*mongo.Collection{s.deliveries, s.events} {
			if _, err := coll.DeleteMany(t.Context(), bson.D{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.deliveries.InsertOne(t.Context(), delivery); err != nil {
			return // the server does not take it either
		}
		_, _ = s.events.InsertOne(t.Context(), event)
		neighbour := soundDelivery("h", "sound", pending)
		neighbour[4].Value, neighbour[len(neighbour)-1].Value = "other", "h:other"
		if _, err := s.deliveries.InsertOne(t.Context(), neighbour); err != nil {
			return // it has the same _id
		}
		_, _ = s.events.InsertOne(t.Context(), soundEvent("sound"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		s.callAll(ctx, t)
	})
}

func owned(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, mongostore.ErrLeaseLost) && !errors.Is(err, mongostore.ErrInvalid) {
		t.Fatalf("%s: %v", what, err)
	}
}

func (s *Store) callAll(ctx context.Context, t *testing.T) {
	ids := map[string]bool{}
	for _, opts := range listings {
		pages := 0
		for opts.Limit = 1; ; pages++ {
			page, err := s.List(ctx, opts)
			if err != nil || pages > 3 {
				t.Fatalf("List %+v, page %d: %v", opts, pages, err)
			}
			for _, item := range page.Items {
				ids[item.ID] = true
			}
			if opts.Cursor = page.Next; page.Next == "" {
				break
			}
		}
	}
	if !ids["h:sound"] {
		t.Fatal("List does not show the sound delivery")
	}
	_, err := s.Stats(ctx)
	owned(t, "Stats", err)
	owned(t, "repair", s.repair(ctx))
	s.repairs.swept, s.repairs.sweepAt = time.Time{}, ""
	owned(t, "sweep", s.sweep(ctx, time.Now()))
	taken := false
	for range 3 {
		ds, err := s.Claim(ctx, ClaimOptions{Handlers: []string{"h", "x"}})
		owned(t, "Claim", err)
		for _, d := range ds {
			taken = taken || d.ID == "h:sound"
			owned(t, "Extend", s.Extend(ctx, d, time.Minute))
			owned(t, "Complete", s.Complete(ctx, d))
		}
	}
	if !taken {
		t.Fatal("the sound delivery was not claimed")
	}
	for id := range ids {
		if id == "" {
			continue
		}
		_, err := s.Requeue(ctx, id)
		owned(t, "Requeue", err)
		owned(t, "Release", s.Release(ctx, &Delivery{ID: id, Token: "t"}))
		owned(t, "Retry", s.Retry(ctx, &Delivery{ID: id, Token: "t"}, 0, errors.New("e")))
		owned(t, "Bury", s.Bury(ctx, &Delivery{ID: id, Token: "t"}, nil))
		owned(t, "Complete", s.Complete(ctx, &Delivery{ID: id, Token: "t"}))
	}
	_, err = s.dueHandlers(ctx, []string{"h", "x"})
	owned(t, "dueHandlers", err)
}
