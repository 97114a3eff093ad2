package outbox_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

func TestBadInput(t *testing.T) { run(t, badInputTests) }

var badTexts = []string{"", "a\xff", "a\x00b"}

var badInputTests = tests{
	"AMessageThatCannotBeStoredIsRefused_AndTheOthersOfTheCallToo": func(t *testing.T, b *bundle) {
		with := func(change func(m *outbox.Message)) outbox.Message {
			m := msg("e-1", "k")
			change(&m)
			return m
		}
		for _, c := range []struct {
			field string
			m     outbox.Message
		}{
			{"ID", with(func(m *outbox.Message) { m.ID = badTexts[0] })},
			{"ID", with(func(m *outbox.Message) { m.ID = badTexts[1] })},
			{"ID", with(func(m *outbox.Message) { m.ID = badTexts[2] })},
			{"Type", with(func(m *outbox.Message) { m.Type = badTexts[0] })},
			{"Type", with(func(m *outbox.Message) { m.Type = badTexts[1] })},
			{"Key", with(func(m *outbox.Message) { m.Key = badTexts[1] })},
			{"Key", with(func(m *outbox.Message) { m.Key = badTexts[2] })},
			{"Handlers", with(func(m *outbox.Message) { m.Handlers = nil })},
			{"Handlers[0]", with(func(m *outbox.Message) { m.Handlers = []string{""} })},
			{"Handlers[1]", with(func(m *outbox.Message) { m.Handlers = []string{"h", "a:b"} })},
			{"Handlers[1]", with(func(m *outbox.Message) { m.Handlers = []string{"h", "h"} })},
			{"Handlers[0]", with(func(m *outbox.Message) { m.Handlers = []string{"\xff"} })},
			{"NotBefore", with(func(m *outbox.Message) { m.NotBefore = time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC) })},
			{"NotBefore", with(func(m *outbox.Message) { m.NotBefore = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) })},
			{"Payload", with(func(m *outbox.Message) { m.Payload = make(chan int) })},
			{"Payload", with(func(m *outbox.Message) { m.Payload = math.NaN() })},
			{"Payload", with(func(m *outbox.Message) { m.Payload = failing{} })},
			{"Headers", with(func(m *outbox.Message) { m.Headers = map[string]any{"f": func() {}} })},
			{"Headers", with(func(m *outbox.Message) { m.Headers = map[string]any{"\xff": 1} })},
		} {
			err := appendBy(t.Context(), b.store, msg("good", "k"), c.m)
			require.ErrorIs(t, err, mongostore.ErrInvalid, c.field)
			var v *mongostore.ValidationError
			require.ErrorAs(t, err, &v, c.field)
			require.Equal(t, "Message[1]."+c.field, v.Field)
		}
		b.requireEmpty(t)
	},

	"ClaimOptionsThatMakeNoSenseAreRefused": func(t *testing.T, b *bundle) {
		h := []string{"h"}
		for _, c := range []struct {
			field string
			opts  outbox.ClaimOptions
		}{
			{"Handlers", outbox.ClaimOptions{}},
			{"Handlers[0]", outbox.ClaimOptions{Handlers: []string{""}}},
			{"Handlers[1]", outbox.ClaimOptions{Handlers: []string{"h", "a:b"}}},
			{"Handlers[1]", outbox.ClaimOptions{Handlers: []string{"h", "h"}}},
			{"Limit", outbox.ClaimOptions{Handlers: h, Limit: -1}},
			{"Limit", outbox.ClaimOptions{Handlers: h, Limit: 10_001}},
			{"LeaseFor", outbox.ClaimOptions{Handlers: h, LeaseFor: -1}},
			{"LeaseFor", outbox.ClaimOptions{Handlers: h, LeaseFor: 365*24*time.Hour + 1}},
		} {
			_, err := b.store.Claim(t.Context(), c.opts)
			var v *mongostore.ValidationError
			require.ErrorAs(t, err, &v, "%+v", c)
			require.Equal(t, "ClaimOptions."+c.field, v.Field)
		}
		b.append(t, msg("e-1", ""))
		ds, err := b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: h, Limit: 10_000, LeaseFor: 365 * 24 * time.Hour})
		require.NoError(t, err)
		require.Len(t, ds, 1)
	},

	"ADeliveryThatIsNoneIsRefused": func(t *testing.T, b *bundle) {
		for name, end := range ends {
			for _, d := range []*outbox.Delivery{nil, {}, {ID: "h:e-1"}, {Token: "x"}, {ID: "a\xff", Token: "x"}, {ID: "a\x00", Token: "x"}} {
				require.ErrorIs(t, end(t.Context(), b.store, d), mongostore.ErrInvalid, name)
			}
			err := end(t.Context(), b.store, &outbox.Delivery{ID: "h:never", Token: "x"})
			require.ErrorIs(t, err, mongostore.ErrLeaseLost, name)
		}
		b.append(t, msg("e-1", ""))
		d := b.claimOne(t)
		require.ErrorIs(t, b.store.Complete(t.Context(), d, &outbox.Delivery{}), mongostore.ErrInvalid)
		for _, by := range []time.Duration{0, -1, 365*24*time.Hour + 1} {
			require.ErrorIs(t, b.store.Extend(t.Context(), d, by), mongostore.ErrInvalid)
		}
		for _, after := range []time.Duration{-1, 365*24*time.Hour + 1} {
			require.ErrorIs(t, b.store.Retry(t.Context(), d, after, nil), mongostore.ErrInvalid)
		}
		require.Equal(t, "processing", b.status(t, d.ID))
	},

	"ARequeueOfNoIdIsRefused": func(t *testing.T, b *bundle) {
		b.append(t, msg("e-1", ""))
		id := b.bury(t, 1)[0]
		for _, bad := range badTexts {
			_, err := b.store.Requeue(t.Context(), id, bad)
			require.ErrorIs(t, err, mongostore.ErrInvalid)
		}
		require.Equal(t, "dead", b.status(t, id))
	},

	"APurgeOfNothingIsRefused": func(t *testing.T, b *bundle) {
		now := b.clock.Now()
		for _, opts := range []outbox.PurgeOptions{{}, {Batch: 5}, {DeadBefore: now, Batch: -1}, {CompletedBefore: now, Batch: 10_001}} {
			_, err := b.store.Purge(t.Context(), opts)
			require.ErrorIs(t, err, mongostore.ErrInvalid, "%+v", opts)
		}
		_, err := b.store.Purge(t.Context(), outbox.PurgeOptions{DeadBefore: now, Batch: 10_000})
		require.NoError(t, err)
	},

	"AListingThatMakesNoSenseIsRefused": func(t *testing.T, b *bundle) {
		for _, opts := range []outbox.ListOptions{
			{Status: "done"}, {Status: "$ne"}, {Limit: -1}, {Limit: 10_001}, {Handler: "a\xff"}, {Type: "a\xff"}, {Key: "a\x00"},
		} {
			_, err := b.store.List(t.Context(), opts)
			require.ErrorIs(t, err, mongostore.ErrInvalid, "%+v", opts)
		}
		_, err := b.store.List(t.Context(), outbox.ListOptions{Limit: 10_000})
		require.NoError(t, err)
	},

	"NothingThatAUserTypesIsAnOperator": func(t *testing.T, b *bundle) {
		odd := []string{"$ne", "$where", "a.b", "$", "{}", "*", ";", "\u2028", "h;", "\U0001F600"}
		for _, s := range odd {
			m := msg(s, s, s)
			m.Type = s
			b.append(t, m)
		}
		for _, s := range odd {
			for _, opts := range []outbox.ListOptions{{Handler: s}, {Key: s}, {Type: s}, {Handler: s, Key: s, Type: s, Status: "pending"}} {
				require.Len(t, b.listed(t, opts), 1, "%+v", opts)
			}
			d := b.claimOne(t, s)
			require.Equal(t, []string{s + ":" + s, s, s}, []string{d.ID, d.Message.Key, d.Message.Type})
			require.NoError(t, b.store.Bury(t.Context(), d, errors.New("$$NOW")))
			require.Equal(t, 1, b.requeue(t, d.ID))
			b.complete(t, b.claimOne(t, s))
		}
	},
}

// failing cannot be held by JSON.
type failing struct{}

func (failing) MarshalJSON() ([]byte, error) { return nil, errors.New("no") }
