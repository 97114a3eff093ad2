//go:build faults

package faulttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// hostile are texts that would mean something else to a query, an update, a path or a
// pipeline, and texts that BSON cannot hold.
var hostile = []string{
	`{"$ne":null}`, `{"$gt":""}`, `{$where:"1"}`, "$where", "$set", "$", "$$ROOT", "$$REMOVE", "$data", "$[]", "a.b", "a..b", ".", "..", "victim.", "lease.token", "0",
	"__proto__", "trace:victim", "＄ne", "a．b", "＼", "＼s", "\u2028", "\ufeff", "' || 1==1 //", "e\u0301", "victim ", "VICTIM", "\U0010ffff", strings.Repeat("long", 500),
	"a\x00b", "\x00", "victim\x00", "\xff", "\xed\xa0\x80", "\xc0\x80", "victim\xff",
}

func storable(text string) bool { return utf8.ValidString(text) && !strings.Contains(text, "\x00") }

// untouched fails if a neighbour's documents are not what they were.
func untouched(t *testing.T, coll *mongo.Collection, id string) (check func(after string)) {
	t.Helper()
	read := func() string {
		doc, err := coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
		require.NoError(t, err)
		return string(doc)
	}
	before := read()
	return func(after string) {
		t.Helper()
		require.Equal(t, before, read(), "%q has touched the document %s", after, id)
	}
}

// refuses fails unless err names the field.
func refuses(t *testing.T, err error, field, text string) {
	t.Helper()
	var invalid *mongostore.ValidationError
	require.ErrorAs(t, err, &invalid, "%s = %q", field, text)
	require.ErrorIs(t, err, mongostore.ErrInvalid)
	require.Contains(t, invalid.Field, field, "%q", text)
}

// gone is an answer to a call about something that is not there.
func gone(t *testing.T, err error, text string) {
	t.Helper()
	for _, sentinel := range []error{nil, mongostore.ErrNotFound, mongostore.ErrConflict, mongostore.ErrLeaseLost, mongostore.ErrInvalid} {
		if errors.Is(err, sentinel) {
			return
		}
	}
	t.Errorf("%q: %v", text, err)
}

func hostileChanges(text string) mongostore.Changes {
	return mongostore.Changes{
		Emits:     []mongostore.Emit{{TargetID: text, Event: map[string]string{text: text}}},
		Spawns:    []mongostore.Spawn{{ChildID: text, RootPath: text, Input: bson.D{{Key: text, Value: text}, {Key: "in", Value: bson.D{{Key: text, Value: bson.A{text}}}}}}},
		Timers:    []mongostore.TimerOp{{Path: text, FireAt: time.Unix(5, 0)}},
		Processed: text, Trace: bson.D{{Key: text, Value: text}, {Key: "in", Value: bson.D{{Key: text, Value: bson.A{text}}}}},
	}
}

func TestTextsThatLookLikeOperatorsAreTextsToTheStore(t *testing.T) {
	t.Parallel()
	client, name := mongotest.ReplicaSet(t).Database(t)
	store, err := mongostore.New(client, mongostore.Config{Database: name})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	_, err = store.Commit(t.Context(), &counter{Header: mongostore.Header{ID: "victim", DefinitionID: "d", Status: "S", ParentID: "p"}}, hostileChanges("good"))
	require.NoError(t, err)
	require.NoError(t, makeForLater(t, client.Database(name).Collection("executions"), "victim"))
	check := untouched(t, client.Database(name).Collection("executions"), "victim")
	for _, text := range hostile {
		if storable(text) {
			comesBack(t, store, text, false)
			comesBack(t, store, text, true)
		} else {
			isRefused(t, store, text)
		}
		missesTheVictim(t, store, text)
		check(text)
	}
}

// makeForLater keeps a document out of what is claimed.
func makeForLater(t *testing.T, coll *mongo.Collection, id string) error {
	t.Helper()
	_, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "due_at", Value: 4e9}}}})
	return err
}

// comesBack commits text everywhere, reads it, and lets it go. Loaded: in an update, else
// in a new document.
func comesBack(t *testing.T, store *mongostore.Store, text string, loaded bool) {
	t.Helper()
	ctx := t.Context()
	x := &counter{Header: mongostore.Header{ID: text, DefinitionID: text, ParentID: text, Status: text, Outcome: text, ActivePath: text}}
	if loaded {
		_, err := store.Commit(ctx, &counter{Header: mongostore.Header{ID: text}}, mongostore.Changes{})
		require.NoError(t, err, "%q", text)
		x.Version = 1
	}
	_, err := store.Commit(ctx, x, hostileChanges(text))
	require.NoError(t, err, "%q", text)
	got := &counter{}
	seen, err := store.LoadForEvent(ctx, text, text, got)
	require.NoError(t, err)
	require.True(t, seen)
	require.Equal(t, [5]string{text, text, text, text, text}, [5]string{got.DefinitionID, got.ParentID, got.Status, got.Outcome, got.ActivePath})
	in, err := store.Inspect(ctx, text)
	require.NoError(t, err)
	require.NoError(t, in.Summary.Err)
	require.Equal(t, text, in.Outbox[0].TargetID)
	var event map[string]string
	require.NoError(t, in.Outbox[0].Decode(&event))
	require.Equal(t, map[string]string{text: text}, event)
	require.Equal(t, [2]string{text, text}, [2]string{in.Spawns[0].ChildID, in.Spawns[0].RootPath})
	for _, doc := range []bson.Raw{in.Spawns[0].Input, in.Trace[0]} {
		require.Equal(t, text, doc.Lookup(text).StringValue())
		require.Equal(t, text, doc.Lookup("in", text, "0").StringValue())
	}
	require.Len(t, in.Timers, 1)
	require.Equal(t, text, in.Timers[0].Path)
	for _, opts := range []mongostore.ListOptions{{IDPrefix: text}, {DefinitionID: text}, {ParentID: text}, {Statuses: []string{text}}, {DefinitionID: text, Statuses: []string{text}}} {
		page, err := store.List(ctx, opts)
		require.NoError(t, err)
		require.Len(t, page.Items, 1, "%+v", opts)
		require.Equal(t, text, page.Items[0].ID)
	}
	require.NoError(t, store.AppendTrace(ctx, text, bson.D{{Key: text, Value: text}}))
	isWorked(t, store, text)
	require.NoError(t, store.Delete(ctx, text, x.Version))
}

// isWorked claims, fails, buries, requeues and completes what an execution owes.
func isWorked(t *testing.T, store *mongostore.Store, text string) {
	t.Helper()
	ctx := t.Context()
	claim := func() *mongostore.Lease {
		leases, err := store.Claim(ctx, mongostore.ClaimOptions{})
		require.NoError(t, err)
		require.Len(t, leases, 1)
		require.Equal(t, text, leases[0].ExecutionID)
		return leases[0]
	}
	require.NoError(t, store.Retry(ctx, claim(), 0, errors.New(text)))
	l := claim()
	require.NoError(t, store.Extend(ctx, l, time.Minute))
	require.NoError(t, store.Release(ctx, l))
	l = claim()
	for _, e := range []mongostore.Entry{l.Outbox[0], l.Spawns[0], l.Timers[0]} {
		require.NoError(t, store.Bury(ctx, e, errors.New(text)))
	}
	page, err := store.DeadLetters(ctx, mongostore.DeadLetterOptions{ExecutionID: text})
	require.NoError(t, err)
	require.Len(t, page.Items, 3, "%q", text)
	for _, dead := range page.Items {
		require.Equal(t, shortened(text, 1024), dead.Cause)
		n, err := store.Requeue(ctx, dead.Entry)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	require.NoError(t, store.Complete(ctx, l))
	in, err := store.Inspect(ctx, text)
	require.NoError(t, err)
	require.Empty(t, len(in.Outbox)+len(in.Spawns)+len(in.Timers)+len(in.Dead), "%q", text)
}

// halfASurrogate is JSON in UTF-8 that stands for what no UTF-8 can hold.
var halfASurrogate = json.RawMessage(`{"a":"\ud800"}`)

func TestHalfASurrogateStaysAsItIsOrIsRefused(t *testing.T) {
	t.Parallel()
	client, name := mongotest.ReplicaSet(t).Database(t)
	store, err := mongostore.New(client, mongostore.Config{Database: name})
	require.NoError(t, err)
	_, err = store.Commit(t.Context(), &counter{Header: mongostore.Header{ID: "x"}}, mongostore.Changes{Emits: []mongostore.Emit{{Event: halfASurrogate}}})
	require.NoError(t, err)
	entries, err := store.PendingOutbox(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, string(halfASurrogate), string(entries[0].Event))
	events, err := outbox.New(client, outbox.Config{Database: name})
	require.NoError(t, err)
	refuses(t, appendTo(t, events, outbox.Message{ID: "e", Type: "t", Payload: halfASurrogate, Handlers: []string{"h"}}), "Message[0].Payload", string(halfASurrogate))
}

func shortened(text string, most int) string {
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// isRefused puts text into one place after the other.
func isRefused(t *testing.T, store *mongostore.Store, text string) {
	t.Helper()
	ctx := t.Context()
	for field, change := range map[string]func(*mongostore.Header){
		"Header.ID": func(h *mongostore.Header) { h.ID = text }, "Header.DefinitionID": func(h *mongostore.Header) { h.DefinitionID = text },
		"Header.ParentID": func(h *mongostore.Header) { h.ParentID = text }, "Header.Status": func(h *mongostore.Header) { h.Status = text },
		"Header.Outcome": func(h *mongostore.Header) { h.Outcome = text }, "Header.ActivePath": func(h *mongostore.Header) { h.ActivePath = text },
	} {
		x := &counter{Header: mongostore.Header{ID: "refused"}}
		change(&x.Header)
		_, err := store.Commit(ctx, x, mongostore.Changes{})
		refuses(t, err, field, text)
	}
	changes := map[string]mongostore.Changes{
		"Changes.Emits[0].TargetID": {Emits: []mongostore.Emit{{TargetID: text}}}, "Changes.Spawns[0].ChildID": {Spawns: []mongostore.Spawn{{ChildID: text}}},
		"Changes.Spawns[0].RootPath": {Spawns: []mongostore.Spawn{{ChildID: "c", RootPath: text}}}, "Changes.Timers[0].Path": {Timers: []mongostore.TimerOp{{Path: text, FireAt: time.Unix(5, 0)}}},
		"Changes.Processed": {Processed: text}, "Changes.Trace": {Trace: bson.D{{Key: text, Value: 1}}}, "Changes.Spawns[0].Input": {Spawns: []mongostore.Spawn{{ChildID: "c", Input: bson.D{{Key: text, Value: 1}}}}},
		"Changes.Acks[0].Path": {Acks: []mongostore.Entry{mongostore.Timer{ExecutionID: "refused", Path: text}}},
	}
	for field, ch := range changes {
		_, err := store.Commit(ctx, &counter{Header: mongostore.Header{ID: "refused"}}, ch)
		refuses(t, err, field, text)
	}
	refuses(t, store.Load(ctx, text, &counter{}), "id", text)
	_, err := store.IsProcessed(ctx, "victim", text)
	refuses(t, err, "eventID", text)
	refuses(t, store.AppendTrace(ctx, text, bson.D{}), "id", text)
	refuses(t, store.AppendTrace(ctx, "victim", bson.D{{Key: text, Value: 1}}), "step", text)
	refuses(t, store.Delete(ctx, text, 1), "id", text)
	refuses(t, store.DeleteTimer(ctx, mongostore.Timer{ExecutionID: "victim", Path: text, FireAt: time.Unix(5, 0)}), "Timer.Path", text)
	refuses(t, store.Bury(ctx, mongostore.OutboxEntry{ExecutionID: text}, nil), "entry.ExecutionID", text)
	for field, opts := range map[string]mongostore.ListOptions{
		"ListOptions.DefinitionID": {DefinitionID: text}, "ListOptions.ParentID": {ParentID: text}, "ListOptions.IDPrefix": {IDPrefix: text}, "ListOptions.Statuses[0]": {Statuses: []string{text}},
	} {
		_, err := store.List(ctx, opts)
		refuses(t, err, field, text)
	}
}

// missesTheVictim names the neighbour with text in place of one part of what names it.
func missesTheVictim(t *testing.T, store *mongostore.Store, text string) {
	t.Helper()
	ctx := t.Context()
	gone(t, store.Load(ctx, text, &counter{}), text)
	gone(t, store.Delete(ctx, text, 1), text)
	seen, err := store.LoadForEvent(ctx, "victim", text, &counter{})
	gone(t, err, text)
	require.False(t, seen, "%q", text)
	seen, err = store.IsProcessed(ctx, text, "good")
	gone(t, err, text)
	require.False(t, seen, "%q", text)
	lease := &mongostore.Lease{ExecutionID: "victim", Token: text, Outbox: []mongostore.OutboxEntry{{ExecutionID: "victim", Seq: 1, Token: text}}}
	for _, err := range []error{
		store.Complete(ctx, lease), store.Release(ctx, lease), store.Extend(ctx, lease, time.Hour), store.Retry(ctx, lease, 0, nil),
		store.AckOutbox(ctx, lease.Outbox...), store.AckSpawn(ctx, mongostore.SpawnEntry{ParentID: "victim", Seq: 1, Token: text}), store.Bury(ctx, lease.Outbox[0], nil),
		store.DeleteTimer(ctx, mongostore.Timer{ExecutionID: "victim", Path: "good", FireAt: time.Unix(5, 0), Token: text}),
	} {
		require.Error(t, err, "%q", text)
		gone(t, err, text)
	}
	gone(t, store.DeleteTimer(ctx, mongostore.Timer{ExecutionID: "victim", Path: text, FireAt: time.Unix(5, 0)}), text)
	_, err = store.Commit(ctx, &counter{Header: mongostore.Header{ID: "victim", Version: 1}}, mongostore.Changes{Acks: []mongostore.Entry{lease.Outbox[0]}})
	require.ErrorIs(t, err, mongostore.ErrLeaseLost, "%q", text)
	for _, opts := range []mongostore.ListOptions{{IDPrefix: text}, {ParentID: text}, {DefinitionID: text}, {Statuses: []string{text}}} {
		page, err := store.List(ctx, opts)
		gone(t, err, text)
		if err == nil {
			require.Empty(t, page.Items, "%+v", opts)
		}
	}
	_, err = store.List(ctx, mongostore.ListOptions{Cursor: text})
	refuses(t, err, "ListOptions.Cursor", text)
	_, err = store.DeadLetters(ctx, mongostore.DeadLetterOptions{Cursor: text})
	refuses(t, err, "DeadLetterOptions.Cursor", text)
	_, err = store.Requeue(ctx, mongostore.Timer{ExecutionID: "victim", Path: text, FireAt: time.Unix(5, 0)})
	gone(t, err, text)
}

func TestTextsThatLookLikeOperatorsAreTextsToTheOutbox(t *testing.T) {
	t.Parallel()
	client, name := mongotest.ReplicaSet(t).Database(t)
	store, err := outbox.New(client, outbox.Config{Database: name})
	require.NoError(t, err)
	require.NoError(t, store.Setup(t.Context()))
	appendMessages(t, store, outbox.Message{ID: "victim", Type: "t", Key: "k", Payload: 1, Handlers: []string{"h"}, NotBefore: time.Now().Add(time.Hour)})
	checkEvent := untouched(t, client.Database(name).Collection("outbox_events"), "victim")
	checkDelivery := untouched(t, client.Database(name).Collection("outbox_deliveries"), "h:victim")
	for i, text := range hostile {
		switch {
		case !storable(text):
			isRefusedByTheOutbox(t, store, text)
		default:
			goesThroughTheOutbox(t, store, text, i%2 == 0)
		}
		missesTheVictimOfTheOutbox(t, store, text)
		checkEvent(text)
		checkDelivery(text)
	}
}

func appendMessages(t *testing.T, store *outbox.Store, all ...outbox.Message) {
	t.Helper()
	require.NoError(t, appendTo(t, store, all...))
}

// goesThroughTheOutbox stores text everywhere, alone or among many, and follows it.
func goesThroughTheOutbox(t *testing.T, store *outbox.Store, text string, alone bool) {
	t.Helper()
	ctx := t.Context()
	handler := strings.ReplaceAll(text, ":", ";")
	all := []outbox.Message{{ID: text, Type: text, Key: text, Payload: map[string]string{text: text}, Headers: map[string]any{text: text}, Handlers: []string{handler}}}
	if !alone { // another path of Append
		for i := range 70 {
			all = append(all, outbox.Message{ID: fmt.Sprint(text, i), Type: "x", Payload: 1, Handlers: []string{"others"}})
		}
	}
	appendMessages(t, store, all...)
	claim := func() *outbox.Delivery {
		ds, err := store.Claim(ctx, outbox.ClaimOptions{Handlers: []string{handler}})
		require.NoError(t, err)
		require.Len(t, ds, 1, "%q", text)
		return ds[0]
	}
	d := claim()
	require.Equal(t, [4]string{text, text, text, handler}, [4]string{d.Message.ID, d.Message.Type, d.Message.Key, d.Handler})
	var payload map[string]string
	require.NoError(t, json.Unmarshal(d.Message.Payload.(json.RawMessage), &payload))
	require.Equal(t, map[string]string{text: text}, payload)
	require.Equal(t, map[string]any{text: text}, d.Message.Headers)
	require.NoError(t, store.Retry(ctx, d, 0, errors.New(text)))
	d = claim()
	require.Equal(t, text, d.LastError)
	require.NoError(t, store.Extend(ctx, d, time.Minute))
	require.NoError(t, store.Release(ctx, d))
	require.NoError(t, store.Bury(ctx, claim(), errors.New(text)))
	for _, opts := range []outbox.ListOptions{{Handler: handler}, {Type: text}, {Key: text}, {Key: text, Handler: handler, Status: "dead", Type: text}} {
		page, err := store.List(ctx, opts)
		require.NoError(t, err)
		require.Len(t, page.Items, 1, "%+v", opts)
		require.Equal(t, text, page.Items[0].LastError)
	}
	n, err := store.Requeue(ctx, d.ID)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, store.Complete(ctx, claim()))
	require.NoError(t, appendTo(t, store, all...), "once more changes nothing")
	page, err := store.List(ctx, outbox.ListOptions{Key: text})
	require.NoError(t, err)
	require.Len(t, page.Items, 1)
	require.Equal(t, "completed", page.Items[0].Status)
}

func isRefusedByTheOutbox(t *testing.T, store *outbox.Store, text string) {
	t.Helper()
	ctx := t.Context()
	good := outbox.Message{ID: "refused", Type: "t", Payload: 1, Handlers: []string{"h"}}
	for field, change := range map[string]func(*outbox.Message){
		"ID": func(m *outbox.Message) { m.ID = text }, "Type": func(m *outbox.Message) { m.Type = text },
		"Key": func(m *outbox.Message) { m.Key = text }, "Handlers[0]": func(m *outbox.Message) { m.Handlers = []string{text} },
	} {
		m := good
		change(&m)
		refuses(t, appendTo(t, store, m), "Message[0]."+field, text)
	}
	if !utf8.ValidString(text) {
		m := good
		m.Payload = map[string]string{"a": text}
		refuses(t, appendTo(t, store, m), "Message[0].Payload", text)
		m = good
		m.Headers = map[string]any{text: 1}
		refuses(t, appendTo(t, store, m), "Message[0].Headers", text)
	}
	for field, opts := range map[string]outbox.ListOptions{"Handler": {Handler: text}, "Type": {Type: text}, "Key": {Key: text}} {
		_, err := store.List(ctx, opts)
		refuses(t, err, "ListOptions."+field, text)
	}
	_, err := store.Claim(ctx, outbox.ClaimOptions{Handlers: []string{text}})
	refuses(t, err, "ClaimOptions.Handlers[0]", text)
	_, err = store.Requeue(ctx, text)
	refuses(t, err, "deliveryIDs[0]", text)
	refuses(t, store.Complete(ctx, &outbox.Delivery{ID: text, Token: "t"}), "Delivery[0].ID", text)
}

func missesTheVictimOfTheOutbox(t *testing.T, store *outbox.Store, text string) {
	t.Helper()
	ctx := t.Context()
	for _, d := range []*outbox.Delivery{{ID: "h:victim", Token: text}, {ID: text, Token: "t"}} {
		for _, err := range []error{store.Complete(ctx, d), store.Bury(ctx, d, nil), store.Release(ctx, d), store.Retry(ctx, d, 0, nil), store.Extend(ctx, d, time.Hour)} {
			require.Error(t, err, "%q", text)
			gone(t, err, text)
		}
	}
	for _, opts := range []outbox.ListOptions{{Handler: text}, {Type: text}, {Key: text}} {
		page, err := store.List(ctx, opts)
		gone(t, err, text)
		if err == nil {
			for _, item := range page.Items {
				require.NotEqual(t, "victim", item.Message.ID, "%+v", opts)
			}
		}
	}
	_, err := store.List(ctx, outbox.ListOptions{Status: text})
	refuses(t, err, "ListOptions.Status", text)
	_, err = store.List(ctx, outbox.ListOptions{Cursor: text})
	refuses(t, err, "ListOptions.Cursor", text)
	_, err = store.Requeue(ctx, text)
	gone(t, err, text)
}

// appendTo stores messages in a transaction of their own.
func appendTo(t *testing.T, store *outbox.Store, all ...outbox.Message) error {
	t.Helper()
	return store.Transaction(t.Context(), func(ctx context.Context) error { return store.Append(ctx, all...) })
}
