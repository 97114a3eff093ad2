package mongostore

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/cursor"
	"github.com/execstore/mongostore/internal/mongotest"
)

// The ways to make a cursor of a fuzzed text: as it is, as its JSON, as its position.
const (
	asText = iota
	asJSON
	asPosition
	cursorForms
)

func cursorOf(form uint8, text string, filter []byte) string {
	switch form % cursorForms {
	case asJSON:
		return base64.RawURLEncoding.EncodeToString([]byte(text))
	case asPosition:
		return cursor.Encode(text, filter)
	}
	return text
}

// hostileTexts would mean something else to a server, a shell or a decoder.
var hostileTexts = []string{
	"", "x-1", `{"$ne":null}`, "$where", "a.b", "$set", "a\x00b", "＄ne", "．", "＼", "\xff", "\xed\xa0\x80", strings.Repeat("x", 5000), `"`, `{"a":{"$gt":""}}`, "\U0010ffff",
}

// listedStore has some executions with dead letters, and records what it sends.
func listedStore(f *testing.F) (*Store, *mongotest.Commands) {
	server := mongotest.Standalone(f)
	_, database := server.Database(f)
	sent := &mongotest.Commands{}
	s, err := New(server.Client(f, options.Client().SetMonitor(sent.Monitor())), Config{Database: database})
	require.NoError(f, err)
	for _, id := range []string{"x-1", "x-2", "y"} {
		_, err := s.executions.InsertOne(f.Context(), soundDocument(id))
		require.NoError(f, err)
	}
	return s, sent
}

// requireOnlyTexts: what a cursor says has become texts beside the operators of the
// store's own.
func requireOnlyTexts(t *testing.T, sent *mongotest.Commands) {
	for _, c := range sent.Commands() {
		for _, path := range [][]string{{"filter", "_id"}, {"filter", "_id", "$gt"}, {"filter", "_id", "$gte"}} {
			v, err := c.Body.LookupErr(path...)
			if err == nil && v.Type != bson.TypeString && len(path) > 2 {
				t.Fatalf("%v is %s: %s", path, v.Type, c.Body)
			}
			if doc, ok := v.DocumentOK(); ok {
				elements, _ := doc.Elements()
				for _, e := range elements {
					if !slices.Contains([]string{"$gt", "$gte", "$lt", "$eq", "$type"}, e.Key()) {
						t.Fatalf("%s in %s", e.Key(), c.Body)
					}
				}
			}
		}
	}
	sent.Reset()
}

func FuzzCursorsOfList(f *testing.F) {
	s, sent := listedStore(f)
	opts := ListOptions{Limit: 1, IDPrefix: "x"}
	page, err := s.List(f.Context(), opts)
	require.NoError(f, err)
	plain, _ := base64.RawURLEncoding.DecodeString(page.Next)
	f.Add(uint8(asText), page.Next)
	f.Add(uint8(asJSON), string(plain))
	for _, text := range hostileTexts {
		f.Add(uint8(asPosition), text)
		f.Add(uint8(asText), text)
		f.Add(uint8(asJSON), `{"a":"`+text+`","f":null}`)
	}
	f.Fuzz(func(t *testing.T, form uint8, text string) {
		opts := opts
		opts.Cursor = cursorOf(form, text, opts.digest())
		page, err := s.List(t.Context(), opts)
		switch {
		case err != nil && !errors.Is(err, ErrInvalid):
			t.Fatal(err)
		case err == nil:
			for _, row := range page.Items {
				if !strings.HasPrefix(row.ID, "x") {
					t.Fatalf("the cursor shows %q", row.ID)
				}
			}
		}
		requireOnlyTexts(t, sent)
	})
}

func FuzzCursorsOfDeadLetters(f *testing.F) {
	s, sent := listedStore(f)
	opts := DeadLetterOptions{Limit: 1}
	page, err := s.DeadLetters(f.Context(), opts)
	require.NoError(f, err)
	plain, _ := base64.RawURLEncoding.DecodeString(page.Next)
	f.Add(uint8(asText), page.Next, "")
	f.Add(uint8(asJSON), string(plain), "")
	for _, text := range hostileTexts {
		f.Add(uint8(asText), text, "")
		f.Add(uint8(asPosition), text, text)
		f.Add(uint8(asJSON), `{"i":"x-1","t":1e999,"k":"`+text+`","o":"","d":false}`, "x-1")
		f.Add(uint8(asJSON), `{"i":{"$ne":"`+text+`"}}`, "")
	}
	f.Fuzz(func(t *testing.T, form uint8, text, only string) {
		opts := DeadLetterOptions{Limit: 1, ExecutionID: only}
		opts.Cursor = cursorOf(form, text, nil)
		if form%cursorForms == asPosition {
			opts.Cursor = deadCursor{ID: text, Key: text}.encode(opts)
		}
		page, err := s.DeadLetters(t.Context(), opts)
		switch {
		case err != nil && !errors.Is(err, ErrInvalid):
			t.Fatal(err)
		case err == nil && len(page.Items) > 1:
			t.Fatalf("a page of %d", len(page.Items))
		}
		requireOnlyTexts(t, sent)
	})
}
