package storetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore"
)

// exerciseConfig: New refuses nonsense by name, and what it takes works.
func exerciseConfig(t *testing.T, h *harness) {
	run(t, h.bundle, configTests)
}

var configTests = tests{
	"ThatMakesNoSenseIsRefusedByName": func(t *testing.T, b *bundle) {
		long := strings.Repeat("x", 64)
		bad := map[string][]mongostore.Config{
			"Config.SeqBlock": {{SeqBlock: -1}, {SeqBlock: 1_000_001}}, "Config.OpTimeout": {{OpTimeout: -1}}, "Config.OutcomeTimeout": {{OutcomeTimeout: -1}},
			"Config.RelayKinds": {{RelayKinds: 0x80}, {RelayKinds: 0xff}}, "Config.WriteConcern": {{WriteConcern: writeconcern.Unacknowledged()}},
			"Config.FinishedStatuses[1]": {{FinishedStatuses: []string{"a", ""}}, {FinishedStatuses: []string{"a", "b\x00"}}},
			"Config.Database":            {{Database: long}, {Database: strings.Repeat("é", 32)}, {Database: "a\xff"}},
			"Config.Prefix":              {{Prefix: strings.Repeat("x", 245)}, {Prefix: "\xff"}},
		}
		for _, c := range "/\\. \"$*<>:|?\x00" {
			bad["Config.Database"] = append(bad["Config.Database"], mongostore.Config{Database: "a" + string(c)})
		}
		for _, prefix := range []string{"$", "a$b", "a\x00", ".a", "a..b", "system."} {
			bad["Config.Prefix"] = append(bad["Config.Prefix"], mongostore.Config{Prefix: prefix})
		}
		for field, cfgs := range bad {
			for _, cfg := range cfgs {
				_, err := mongostore.New(b.client, cfg)
				require.Error(t, err, "%+v", cfg)
				requireInvalid(t, err, field)
			}
		}
		_, err := mongostore.New(nil, mongostore.Config{})
		requireInvalid(t, err, "client")
	},

	"OfOddPrefixesWorks": func(t *testing.T, b *bundle) {
		for _, prefix := range []string{"a.", "é_", "systemic.", "0", "-", "a b ", strings.Repeat("x", 255-len(b.database)-len(".executions"))} {
			store := b.with(t, func(c *mongostore.Config) { c.Prefix = prefix })
			require.NoError(t, store.Setup(t.Context()), prefix)
			_, err := store.Commit(t.Context(), newOrder("o-1"), emit(1))
			require.NoError(t, err, prefix)
			require.NoError(t, b.db.Collection(prefix+"executions").Drop(t.Context()))
		}
	},

	"OfLimitsAtTheirExtremesWorksOrIsRefusedByName": func(t *testing.T, b *bundle) {
		for i, limit := range []int{1, math.MaxInt32, math.MaxInt32 + 1, math.MaxInt, -1, math.MinInt} {
			cfg := b.cfg
			cfg.TraceMax, cfg.ProcessedMax = limit, limit
			store, err := mongostore.New(b.client, cfg)
			if err != nil {
				require.ErrorIs(t, err, mongostore.ErrInvalid)
				continue
			}
			o := newOrder(fmt.Sprint("o-", i))
			ch := b.everything("ev-1")
			for n := range 3 {
				ch.Processed = fmt.Sprint("ev-", n)
				_, err = store.Commit(t.Context(), o, ch)
				require.NoError(t, err, "limit %d", limit)
				require.NoError(t, store.AppendTrace(t.Context(), o.ID, d("n", 1)), "limit %d", limit)
				ch.Acks = []mongostore.Entry{mongostore.OutboxEntry{ExecutionID: o.ID, Seq: 1}}
			}
			doc := b.doc(t, o.ID)
			require.Len(t, values(t, doc, "trace"), map[bool]int{true: 1, false: 6}[limit == 1])
			require.Len(t, values(t, doc, "processed"), map[bool]int{true: 1, false: 3}[limit == 1])
		}
	},

	"OfALooserWriteConcernWorks": func(t *testing.T, b *bundle) {
		no := false
		for i, concern := range []*writeconcern.WriteConcern{writeconcern.W1(), writeconcern.Journaled(), {W: "majority", Journal: &no}, writeconcern.Majority()} {
			store := b.with(t, func(c *mongostore.Config) { c.WriteConcern = concern })
			o := newOrder(fmt.Sprint("o-", i))
			for range 5 {
				_, err := store.Commit(t.Context(), o, b.everything("ev-1"))
				require.NoError(t, err)
				loaded := &order{}
				require.NoError(t, store.Load(t.Context(), o.ID, loaded))
				require.Equal(t, o.Version, loaded.Version, "its own write is seen")
			}
		}
	},

	"OfRelayKindsDecidesWhatIsDue": func(t *testing.T, b *bundle) {
		b.byHand = true // due_at is not for all that is owed
		for name, c := range map[string]struct {
			kinds mongostore.Kind
			due   []string
		}{
			"outbox": {mongostore.KindOutbox, []string{"emits"}}, "spawns": {mongostore.KindSpawn, []string{"spawns"}}, "timers": {mongostore.KindTimer, []string{"timers"}},
			"two": {mongostore.KindOutbox | mongostore.KindTimer, []string{"emits", "timers"}}, "all": {0, []string{"emits", "spawns", "timers"}},
		} {
			store := b.with(t, func(cfg *mongostore.Config) { cfg.RelayKinds = c.kinds })
			all := b.everything("")
			for what, ch := range map[string]mongostore.Changes{"emits": {Emits: all.Emits}, "spawns": {Spawns: all.Spawns}, "timers": {Timers: all.Timers}} {
				id := name + " " + what
				_, err := store.Commit(t.Context(), newOrder(id), ch)
				require.NoError(t, err)
				doc := b.doc(t, id)
				due, found := doc.Lookup("due_at").DoubleOK()
				require.Equal(t, slices.Contains(c.due, what), found, id)
				if found {
					require.Equal(t, map[bool]float64{true: seconds(b.clock.Now()) + 5, false: seconds(b.clock.Now())}[what == "timers"], due)
				}
				require.Equal(t, what == "timers", doc.Lookup("timer_at").Type != 0, "timer_at is for DueTimers, whatever a relay covers")
			}
		}
	},
}
