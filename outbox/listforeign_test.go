package outbox_test

import (
	"encoding/base64"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/cursor"
	"github.com/execstore/mongostore/outbox"
)

// TestDeliveriesOfStrangeTypesEndNoListing puts documents between sound ones whose order
// a comparison could not go past.
func TestDeliveriesOfStrangeTypesEndNoListing(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	at := time.UnixMilli(1000)
	for i := range 3 {
		for _, doc := range []bson.D{
			kv("_id", fmt.Sprintf("h:dead-%d\xff", i), "handler", "h", "event_id", fmt.Sprintf("dead-%d\xff", i), "status", "dead", "finished_at", at),
			kv("_id", fmt.Sprintf("h:wait-%d", i), "handler", "h", "event_id", fmt.Sprintf("wait-%d", i), "status", "waiting", "key", "k", "sequence", int64(i), "waiting_lane", "h:k"),
		} {
			_, err := b.deliveries.InsertOne(t.Context(), doc)
			require.NoError(t, err)
		}
	}
	for _, v := range []any{5, bson.D{{Key: "ne", Value: nil}}, bson.Symbol("h:x"), bson.ObjectID{1}, true, nil, bson.MinKey{}, bson.MaxKey{}, math.NaN()} {
		_, err := b.deliveries.InsertOne(t.Context(), kv("_id", v, "handler", "h", "status", "dead", "finished_at", at, "key", "k", "sequence", 1, "waiting_lane", "h:k"))
		require.NoError(t, err)
	}
	for i, v := range []any{"x", nil, bson.D{}, math.NaN(), bson.A{1}, bson.Undefined{}, bson.Regex{Pattern: "x"}} {
		lane := v
		if _, isArray := v.(bson.A); isArray {
			lane = 5 // the server indexes one array, not two
		}
		_, err := b.deliveries.InsertOne(t.Context(), kv("_id", fmt.Sprintf("z:%d", i), "status", "waiting", "finished_at", v, "key", "k", "sequence", v, "waiting_lane", lane))
		require.NoError(t, err)
	}
	for _, opts := range []outbox.ListOptions{{Handler: "h", Type: ""}, {}, {Status: "dead"}, {Key: "k"}, {Status: "waiting"}} {
		sound := 0
		opts.Limit = 1
		for pages := 0; ; pages++ {
			require.Less(t, pages, 100, "%+v does not end", opts)
			page, err := b.store.List(t.Context(), opts)
			require.NoError(t, err, "%+v", opts)
			for _, item := range page.Items {
				if item.Handler == "h" && item.Message.ID != "" {
					sound++
				}
			}
			if opts.Cursor = page.Next; page.Next == "" {
				break
			}
		}
		want := 3
		if opts.Status == "" && opts.Key == "" {
			want = 6
		}
		require.Equal(t, want, sound, "%+v", opts)
	}
}

// TestACursorIsNoQuery gives positions of every type but the right one.
func TestACursorIsNoQuery(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	digest := cursor.Digest("%q %q %q %q", "", "dead", "", "")
	for _, v := range []any{bson.D{{Key: "$ne", Value: nil}}, bson.Regex{Pattern: "."}, bson.A{bson.D{}}, bson.Undefined{}, nil, 1, "x", bson.JavaScript("1"), bson.MinKey{}} {
		at, err := bson.Marshal(kv("finished_at", v, "_id", "x"))
		require.NoError(t, err)
		_, err = b.store.List(t.Context(), outbox.ListOptions{Status: "dead", Cursor: cursor.Encode(string(at), digest)})
		require.ErrorIs(t, err, mongostore.ErrInvalid, "%v", v)
	}
	_, err := b.store.List(t.Context(), outbox.ListOptions{Status: "dead", Cursor: base64.RawURLEncoding.EncodeToString([]byte(`{"a":{"$ne":""}}`))})
	require.ErrorIs(t, err, mongostore.ErrInvalid)
}
