package storetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseHeader: what stands beside the snapshot, and what the codec may do.
func exerciseHeader(t *testing.T, h *harness) {
	run(t, h.bundle, headerTests)
}

var headerTests = tests{
	"StandsInTheDocumentItself": func(t *testing.T, b *bundle) {
		o := newOrder("o-1")
		b.commit(t, o, mongostore.Changes{})
		doc := b.doc(t, "o-1")
		require.Equal(t, bson.TypeNull, doc.Lookup("parent_id").Type, "a root's parent is an explicit null")
		o.DefinitionID, o.ParentID, o.Status, o.Outcome, o.ActivePath = "invoices", "p-1", "DONE", "paid", "Pay.Wait"
		b.commit(t, o, mongostore.Changes{})
		doc = b.doc(t, "o-1")
		for field, want := range map[string]string{
			"definition_id": "invoices", "parent_id": "p-1", "status": "DONE", "outcome": "paid", "active_path": "Pay.Wait",
		} {
			require.Equal(t, want, doc.Lookup(field).StringValue(), field)
		}
		o.ParentID, o.Outcome, o.ActivePath = "", "", ""
		b.commit(t, o, mongostore.Changes{})
		require.Equal(t, o.Header.ExecutionHeader().Status, b.load(t, "o-1").Status)
		require.Equal(t, bson.TypeNull, b.doc(t, "o-1").Lookup("parent_id").Type)
		require.Empty(t, b.load(t, "o-1").Outcome)
	},

	"IsWrittenWholeByAValueThatDoesNotKnowWhatIsStored": func(t *testing.T, b *bundle) {
		b.create(t, "o-1")
		blind := newOrder("o-1")
		blind.Version, blind.Status, blind.ActivePath = 1, "WAITING", "Here"
		b.commit(t, blind, mongostore.Changes{})
		loaded := b.load(t, "o-1")
		require.Equal(t, "WAITING Here", loaded.Status+" "+loaded.ActivePath)
	},

	"HasItsTimesByTheClock": func(t *testing.T, b *bundle) {
		finished := func() time.Time {
			in, err := b.store.Inspect(t.Context(), "o-1")
			require.NoError(t, err)
			require.Equal(t, b.clock.Now(), in.Summary.UpdatedAt)
			return in.Summary.FinishedAt
		}
		o := b.create(t, "o-1")
		require.Zero(t, finished())
		done := b.clock.Advance(time.Minute)
		step := func(status string) {
			o.Status = status
			b.commit(t, o, mongostore.Changes{})
		}
		step("DONE")
		require.Equal(t, done, finished())
		b.clock.Advance(time.Minute)
		step("FAILED")
		require.Equal(t, done, finished(), "finished already")
		step("RUNNING")
		require.Zero(t, finished(), "not finished any more")
		again := b.clock.Advance(time.Minute)
		step("CANCELLED")
		require.Equal(t, again, finished())
		b.clock.Advance(time.Minute)
		o = b.load(t, "o-1")
		step("RUNNING")
		require.Zero(t, finished(), "from a loaded value too")
	},

	"FinishesByConfigFinishedStatuses": func(t *testing.T, b *bundle) {
		finishes := func(store *mongostore.Store, id, status string) bool {
			o := newOrder(id)
			o.Status = status
			_, err := store.Commit(t.Context(), o, mongostore.Changes{})
			require.NoError(t, err)
			return b.doc(t, id).Lookup("finished_at").Type != 0
		}
		own := b.with(t, func(c *mongostore.Config) { c.FinishedStatuses = []string{"GONE"} })
		require.True(t, finishes(own, "o-1", "GONE"))
		require.False(t, finishes(own, "o-2", "DONE"))
		none := b.with(t, func(c *mongostore.Config) { c.FinishedStatuses = []string{} })
		require.False(t, finishes(none, "o-3", "DONE"))
		require.True(t, finishes(b.store, "o-4", "FAILED"))
	},

	"SurvivesACodecThatLeavesItOut": func(t *testing.T, b *bundle) {
		store := b.with(t, func(c *mongostore.Config) { c.Codec = totalOnly{} })
		o := &order{Header: mongostore.Header{ID: "o-1", DefinitionID: "d", ParentID: "p", Status: "S", Outcome: "out", ActivePath: "a.b"}, Total: 7}
		_, err := store.Commit(t.Context(), o, mongostore.Changes{Emits: []mongostore.Emit{{Event: &order{Total: 8}}, {Event: json.RawMessage(`{"n":9}`)}}})
		require.NoError(t, err)
		_, err = store.Commit(t.Context(), o, mongostore.Changes{})
		require.NoError(t, err)
		require.Equal(t, bson.TypeBinary, b.doc(t, "o-1").Lookup("data").Type)

		loaded := &order{Notes: []string{"of an earlier execution"}}
		require.NoError(t, store.Load(t.Context(), "o-1", loaded))
		require.Equal(t, 7, loaded.Total)
		require.Empty(t, loaded.Notes, "the target is zeroed first")
		require.Equal(t, "o-1 d p S out a.b", strings.Join([]string{
			loaded.ID, loaded.DefinitionID, loaded.ParentID, loaded.Status, loaded.Outcome, loaded.ActivePath,
		}, " "))
		require.EqualValues(t, 2, loaded.Version)

		entries, err := store.PendingOutbox(t.Context(), 0)
		require.NoError(t, err)
		var own order
		require.NoError(t, entries[0].Decode(&own))
		require.Equal(t, 8, own.Total, "an event is decoded by the codec that made it")
		var raw event
		require.NoError(t, entries[1].Decode(&raw))
		require.Equal(t, 9, raw.N, "a json.RawMessage is JSON with every codec")
		page, err := store.List(t.Context(), mongostore.ListOptions{Statuses: []string{"S"}})
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
	},

	"IsReadFromJSONWithAnyCodec": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		o.Total = 3
		b.commit(t, o, mongostore.Changes{})
		store := b.with(t, func(c *mongostore.Config) { c.Codec = totalOnly{} })
		loaded := &order{}
		require.NoError(t, store.Load(t.Context(), "o-1", loaded))
		require.Equal(t, 3, loaded.Total)
		_, err := store.Commit(t.Context(), loaded, mongostore.Changes{})
		require.NoError(t, err)
	},

	"HasItsVersionBackWhenTheCodecPanics": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		store := b.with(t, func(c *mongostore.Config) { c.Codec = panics{} })
		require.PanicsWithValue(t, "codec", func() { _, _ = store.Commit(t.Context(), o, mongostore.Changes{}) })
		require.EqualValues(t, 1, o.Version)
		b.commit(t, o, mongostore.Changes{})
	},

	"WarnsOfALargeCommit": func(t *testing.T, b *bundle) {
		var log bytes.Buffer
		store := b.with(t, func(c *mongostore.Config) {
			c.WarnBytes, c.Logger = 1000, slog.New(slog.NewTextHandler(&log, nil))
		})
		o := newOrder("o-1")
		_, err := store.Commit(t.Context(), o, mongostore.Changes{})
		require.NoError(t, err)
		require.Empty(t, log.String())
		o.Notes = []string{strings.Repeat("x", 1000)}
		_, err = store.Commit(t.Context(), o, mongostore.Changes{})
		require.NoError(t, err)
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), "execution=o-1")
	},
}

// totalOnly is a codec that keeps nothing but the total.
type totalOnly struct{}

func (totalOnly) Marshal(v any) ([]byte, error) {
	o, ok := v.(*order)
	if !ok {
		return nil, errors.New("not an order")
	}
	return []byte{0xff, byte(o.Total)}, nil // no UTF-8
}

func (totalOnly) Unmarshal(data []byte, v any) error {
	if len(data) != 2 {
		return errors.New("not two bytes")
	}
	v.(*order).Total = int(data[1])
	return nil
}

type panics struct{}

func (panics) Marshal(any) ([]byte, error) { panic("codec") }
func (panics) Unmarshal([]byte, any) error { panic("codec") }
