package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/outbox"
)

func TestDamaged(t *testing.T) { run(t, damagedTests) }

// wrong are values of other types than a field has; nil is null.
var wrong = []any{int32(7), "x", nil, bson.D{{Key: "$ne", Value: 1}}, bson.A{"x"}, true, bson.MaxKey{}}

// work claims and completes all there is, and fails for an error.
func (b *bundle) work(t testing.TB, handler string) {
	t.Helper()
	for range 5 {
		ds, err := b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{handler}})
		require.NoError(t, err)
		b.complete(t, ds...)
	}
}

// damage sets one field of the first of two events of a key, each in turn to every wrong
// value, lets a worker work, and looks at what became of it. Others are never held up.
func (b *bundle) damage(t *testing.T, field string, of func(doc bson.Raw) bool, blocks bool) {
	for i, value := range append([]any{"\x00none"}, wrong...) {
		h := fmt.Sprintf("%s%d", field, i)
		name := fmt.Sprintf("%s: %v", field, value)
		b.append(t, msg(h+"-1", "k", h), msg(h+"-2", "k", h), msg(h+"-3", "other", h))
		change := kv("$set", kv(field, value))
		if value == "\x00none" {
			change = kv("$unset", kv(field, ""))
		}
		edit(t, b.deliveries, h+":"+h+"-1", change)
		b.work(t, h)
		require.Equal(t, "completed", b.status(t, h+":"+h+"-3"), name)
		if !blocks {
			require.Equal(t, "completed", b.status(t, h+":"+h+"-2"), name)
		}
		require.True(t, of(b.doc(t, h+":"+h+"-1")), "%s: %s", name, b.doc(t, h+":"+h+"-1"))
		_, err := b.store.List(t.Context(), outbox.ListOptions{Key: "k", Limit: 1000})
		require.NoError(t, err, name)
	}
	_, err := b.store.Stats(t.Context())
	require.NoError(t, err)
}

func buried(doc bson.Raw) bool {
	reason, _ := doc.Lookup("last_error").StringValueOK()
	return stateOf(doc) == "dead" && strings.HasPrefix(reason, "damaged: ")
}

func stateOf(doc bson.Raw) string {
	s, _ := doc.Lookup("status").StringValueOK()
	return s
}

func done(doc bson.Raw) bool { return stateOf(doc) == "completed" }

func either(doc bson.Raw) bool { return buried(doc) || done(doc) }

func leftAlone(doc bson.Raw) bool { return stateOf(doc) == "pending" }

var damagedTests = tests{
	"ADeliveryThatCannotBeReadIsBuriedAtOnce": func(t *testing.T, b *bundle) {
		for _, field := range []string{"event_id", "key"} {
			b.damage(t, field, buried, false)
		}
	},

	"ADeliveryWhoseRestIsDamagedHoldsUpNobody": func(t *testing.T, b *bundle) {
		for _, field := range []string{"type", "status", "available_at", "requeues", "token", "last_error", "attempts", "sequence", "active_lane"} {
			b.damage(t, field, either, false)
		}
	},

	"ADeliveryThatNobodyIsForOrThatIsNeverDueHoldsUpItsKeyAlone": func(t *testing.T, b *bundle) {
		for _, field := range []string{"handler", "due_at"} {
			b.damage(t, field, leftAlone, true)
		}
	},

	"ADeliveryOfAnotherIdIsBuried": func(t *testing.T, b *bundle) {
		for i, id := range []any{int64(7), "no colon", bson.D{{Key: "a", Value: 1}}, bson.ObjectID{1}, "h:other"} {
			h := fmt.Sprintf("h%d", i)
			b.append(t, msg(h+"-1", "k", h), msg(h+"-2", "k", h))
			doc := decoded(t, b.doc(t, h+":"+h+"-1"))
			_, err := b.deliveries.DeleteOne(t.Context(), kv("_id", doc[0].Value))
			require.NoError(t, err)
			doc[0].Value = id
			_, err = b.deliveries.InsertOne(t.Context(), doc)
			require.NoError(t, err)
			b.work(t, h)
			require.Equal(t, "completed", b.status(t, h+":"+h+"-2"))
			stored, err := b.deliveries.FindOne(t.Context(), kv("_id", kv("$eq", id))).Raw()
			require.NoError(t, err)
			require.True(t, buried(stored), "%s", stored)
		}
	},

	"OneThatWaitsIsBuriedWhenItsTurnComes": func(t *testing.T, b *bundle) {
		for i, field := range []string{"sequence", "key", "event_id", "available_at", "attempts", "suspect_since"} {
			for j, value := range wrong {
				h := fmt.Sprintf("h%d-%d", i, j)
				b.append(t, msg(h+"-1", "k", h), msg(h+"-2", "k", h), msg(h+"-3", "k", h))
				edit(t, b.deliveries, h+":"+h+"-2", kv("$set", kv(field, value)))
				b.work(t, h)
				for _, id := range []string{"-1", "-3"} {
					require.Equal(t, "completed", b.status(t, h+":"+h+id), "%s: %v", field, value)
				}
				require.True(t, either(b.doc(t, h+":"+h+"-2")), "%s: %v", field, value)
			}
		}
	},

	"BH-21_OneEventThatCannotBeReadDoesNotStopTheOthers": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "", 100)...)
		for i, value := range wrong {
			edit(t, b.events, fmt.Sprintf("e-%d", i), kv("$set", kv("payload", value)))
			edit(t, b.events, fmt.Sprintf("e-%d", i+10), kv("$set", kv("headers", value)))
		}
		edit(t, b.events, "e-20", kv("$set", kv("payload", "{")))
		edit(t, b.events, "e-21", kv("$set", kv("headers", "[1]")))
		_, err := b.events.DeleteOne(t.Context(), kv("_id", "e-22"))
		require.NoError(t, err)
		ds := b.claim(t, 100)
		bad := 2*len(wrong) + 3
		require.Len(t, ds, 100-bad, "in the first claim")
		b.complete(t, ds...)
		dead := b.listed(t, outbox.ListOptions{Status: "dead"})
		require.Len(t, dead, bad)
		for _, d := range dead {
			require.Contains(t, d.LastError, "damaged: ")
		}
		require.Empty(t, b.claim(t, 100), "and they are not tried again")
	},

	"ADamagedEventOfAKeyLetsTheNextThrough": func(t *testing.T, b *bundle) {
		b.append(t, msgs("e", "k", 2)...)
		edit(t, b.events, "e-0", kv("$set", kv("payload", 5)))
		require.Empty(t, b.claim(t, 10))
		require.Equal(t, "h:e-1", b.claimOne(t).ID)
		edit(t, b.events, "e-0", kv("$set", kv("payload", `"mended"`)))
		require.Equal(t, 1, b.requeue(t, "h:e-0"), "a dead letter like others")
	},

	"OtherFieldsOfAnEventDoNotMatter": func(t *testing.T, b *bundle) {
		for i, field := range []string{"type", "key", "created_at", "handlers"} {
			for j, value := range wrong {
				id := fmt.Sprintf("e-%d-%d", i, j)
				b.append(t, msg(id, ""))
				edit(t, b.events, id, kv("$set", kv(field, value)))
				d := b.claimOne(t)
				require.Equal(t, "h:"+id, d.ID)
				if _, isText := value.(string); field != "type" || !isText {
					require.Equal(t, "made", d.Message.Type, "the delivery knows it too")
				}
				b.complete(t, d)
			}
		}
		b.clock.Advance(time.Second)
		b.purge(t, "completed")
	},

	"ADamagedCounterIsALostOne": func(t *testing.T, b *bundle) {
		for i, value := range wrong {
			key := fmt.Sprint("k", i)
			b.append(t, msg("a"+key, key, "h"), msg("x"+key, "x"+key, "h"))
			edit(t, b.keys, key, kv("$set", kv("n", value)))
			edit(t, b.keys, "x"+key, kv("$set", kv("n", value)))
			b.append(t, msg("b"+key, key, "h"))
			require.Greater(t, b.doc(t, "h:b"+key).Lookup("sequence").AsInt64(), int64(1), "%v", value)
			b.append(t, msg("c"+key, key, "h"), msg("y"+key, "x"+key, "h"))
			require.Greater(t, b.doc(t, "h:c"+key).Lookup("sequence").AsInt64(), b.doc(t, "h:b"+key).Lookup("sequence").AsInt64())
			require.Greater(t, b.doc(t, "h:y"+key).Lookup("sequence").AsInt64(), int64(1), "%v", value)
		}
	},

	"ReleaseAndRetryOfADamagedOneStrandNothing": func(t *testing.T, b *bundle) {
		for i, field := range []string{"available_at", "requeues", "last_error", "type"} {
			for j, value := range wrong {
				b.append(t, msg(fmt.Sprintf("e-%d-%d", i, j), ""))
				d := b.claimOne(t)
				edit(t, b.deliveries, d.ID, kv("$set", kv(field, value)))
				require.NoError(t, b.store.Release(t.Context(), d))
				d = b.claimOne(t)
				edit(t, b.deliveries, d.ID, kv("$set", kv(field, value)))
				require.NoError(t, b.store.Retry(t.Context(), d, 0, errors.New("no")))
				d = b.claimOne(t)
				require.NoError(t, b.store.Bury(t.Context(), d, nil))
				require.Equal(t, 1, b.requeue(t, d.ID))
				b.complete(t, b.claimOne(t))
			}
		}
		require.True(t, slices.IsSorted(b.pages(t, outbox.ListOptions{Limit: 3})))
	},
}
