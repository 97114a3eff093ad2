package storetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// exerciseSize: the server's limit for a document is met with a typed error, and
// is no trap.
func exerciseSize(t *testing.T, h *harness) {
	run(t, h.bundle, sizeTests)
}

const (
	mebibyte    = 1 << 20
	maxDocument = 16 * mebibyte
)

func filler(bytes int) string { return strings.Repeat("x", bytes) }

// requireTooLarge: the error, and nothing written.
func (b *bundle) requireTooLarge(t *testing.T, o *order, ch mongostore.Changes) {
	t.Helper()
	version := o.Version
	var before string
	if version > 0 {
		before = digest(b.doc(t, o.ID))
	}
	_, err := b.store.Commit(t.Context(), o, ch)
	require.ErrorIs(t, err, mongostore.ErrTooLarge)
	require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
	require.ErrorContains(t, err, o.ID)
	require.Equal(t, version, o.Version)
	if version > 0 {
		require.Equal(t, before, digest(b.doc(t, o.ID)))
	}
}

func digest(doc bson.Raw) string {
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:])
}

var sizeTests = tests{
	"BH-13_ADocumentThatIsFullGoesOnOnceItIsAcked": func(t *testing.T, b *bundle) {
		o := newOrder("ord-1013")
		o.Notes = []string{filler(mebibyte)}
		b.commit(t, o, mongostore.Changes{})
		big := emit(filler(500_000))
		n := 0
		for ; ; n++ {
			require.Less(t, n, 40, "it never gets full")
			if _, err := b.store.Commit(t.Context(), o, big); err != nil {
				require.ErrorIs(t, err, mongostore.ErrTooLarge)
				break
			}
		}
		require.Greater(t, n, 20)
		b.requireTooLarge(t, o, big)
		b.requireTooLarge(t, o, mongostore.Changes{Spawns: []mongostore.Spawn{{ChildID: "c", Input: d("n", filler(500_000))}}})
		b.requireTooLarge(t, o, mongostore.Changes{Trace: d("n", filler(500_000))})
		b.requireTooLarge(t, o, mongostore.Changes{Emits: big.Emits, Acks: []mongostore.Entry{mongostore.OutboxEntry{ExecutionID: o.ID, Seq: 999}}})
		require.ErrorIs(t, b.store.AppendTrace(t.Context(), o.ID, d("n", filler(500_000))), mongostore.ErrTooLarge)
		grown := *o
		grown.Notes = []string{filler(2 * mebibyte)}
		b.requireTooLarge(t, &grown, mongostore.Changes{})

		loaded := b.load(t, o.ID)
		require.Equal(t, o.Version, loaded.Version)
		require.Len(t, loaded.Notes[0], mebibyte)
		entries := b.outbox(t, 10)
		require.Len(t, entries, 10)
		b.commit(t, o, mongostore.Changes{Processed: "a smaller commit"})
		require.NoError(t, b.store.AckOutbox(t.Context(), entries...))
		b.commit(t, o, big)
		require.Len(t, values(t, b.doc(t, o.ID), "outbox"), n-10+1)
		require.Equal(t, n, b.inspect(t, o.ID).Bytes/500_000-mebibyte/500_000+9)
	},

	"BH-13_TheRememberedEventsAreBounded": func(t *testing.T, b *bundle) {
		o := b.create(t, "o-1")
		old := make([]string, 5000)
		for i := range old {
			old[i] = fmt.Sprintf("%024d", i)
		}
		b.set(t, "o-1", d("processed", old))
		b.commit(t, o, mongostore.Changes{Processed: "ev-1"})
		require.Len(t, values(t, b.doc(t, "o-1"), "processed"), 1000, "and shrink to the bound")

		all := b.with(t, func(c *mongostore.Config) { c.ProcessedMax = -1 })
		for n := 0; ; n++ {
			require.Less(t, n, 200, "it never gets full")
			_, err := all.Commit(t.Context(), o, mongostore.Changes{Processed: fmt.Sprintf("%0500000d", n)})
			if err != nil {
				require.ErrorIs(t, err, mongostore.ErrTooLarge)
				break
			}
		}
		require.Equal(t, o.Version, b.load(t, "o-1").Version)
		few := b.with(t, func(c *mongostore.Config) { c.ProcessedMax = 10 })
		_, err := few.Commit(t.Context(), o, mongostore.Changes{Processed: "a bound makes room"})
		require.NoError(t, err)
	},

	"BH-13_AFirstCommitThatCannotFitWritesNothing": func(t *testing.T, b *bundle) {
		for id, ch := range map[string]mongostore.Changes{
			"event": emit(filler(maxDocument)), "many events": emit(filler(6*mebibyte), filler(6*mebibyte), filler(6*mebibyte)),
			"spawn": {Spawns: []mongostore.Spawn{{ChildID: "c", Input: d("n", filler(maxDocument))}}}, "trace": {Trace: d("n", filler(maxDocument))},
			"processed": {Processed: filler(maxDocument)},
		} {
			b.requireTooLarge(t, newOrder(id), ch)
		}
		require.ErrorIs(t, b.store.AppendTrace(t.Context(), "o-1", d("n", filler(maxDocument))), mongostore.ErrTooLarge)
		require.Zero(t, b.count(t))
		require.Zero(t, b.counter(t, "outbox"), "no number was burned")
	},

	"BH-13_TheLimitIsMetToTheByte": func(t *testing.T, b *bundle) {
		const some = 1000
		for _, first := range []bool{true, false} {
			sized := func(bytes int) *order {
				o := newOrder("o-1")
				if !first {
					b.commit(t, o, mongostore.Changes{})
				}
				o.Notes = []string{filler(bytes)}
				return o
			}
			remove := func(o *order) { require.NoError(t, b.store.Delete(t.Context(), "o-1", o.Version)) }
			o := sized(some)
			b.commit(t, o, mongostore.Changes{})
			full := maxDocument - (len(b.doc(t, "o-1")) - some)
			remove(o)
			o = sized(full)
			b.commit(t, o, mongostore.Changes{})
			require.Len(t, b.doc(t, "o-1"), maxDocument)
			remove(o)
			o = sized(full + 1)
			b.requireTooLarge(t, o, mongostore.Changes{})
			if !first {
				remove(o)
			}
		}
	},
}
