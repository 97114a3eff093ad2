package outbox_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// sentNames are the names of what was sent: inside a transaction, and beside one.
func sentNames(sent *mongotest.Commands) (inside, beside []string) {
	for _, c := range sent.Commands() {
		if c.Body.Lookup("autocommit").Type != 0 {
			inside = append(inside, c.Name)
		} else {
			beside = append(beside, c.Name)
		}
	}
	sent.Reset()
	return inside, beside
}

func TestCommands(t *testing.T) { run(t, commandsTests) }

var commandsTests = tests{
	"OfClaimAndComplete": func(t *testing.T, b *bundle) {
		s, sent := b.monitored(t)
		claim := func() []*outbox.Delivery {
			sent.Reset()
			ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
			require.NoError(t, err)
			return ds
		}
		for i := range 20 {
			b.append(t, msgs(fmt.Sprintf("e-%d", i), fmt.Sprintf("k-%d", i), 3)...)
		}
		claim() // the first repairs, and sweeps
		withRepair := sent.Names()
		require.Subset(t, []string{"find", "aggregate", "update"}, withRepair)
		require.LessOrEqual(t, len(withRepair), 4+5, "%v", withRepair)
		ds := claim()
		require.Len(t, ds, 10)
		names := sent.Names()
		names = names[max(0, len(names)-4):] // on a slow machine the repair is due again
		require.ElementsMatch(t, []string{"find", "update", "aggregate", "find"}, names, "three, and one for the events")
		sent.Reset()
		require.NoError(t, s.Complete(t.Context(), ds...))
		require.Equal(t, []string{"update"}, sent.Names(), "all that waits was known")

		var alone []outbox.Message
		for i := range 10 {
			alone = append(alone, msg(fmt.Sprintf("a-%d", i), fmt.Sprintf("a-%d", i), "g"))
		}
		b.append(t, alone...)
		ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"g"}})
		require.NoError(t, err)
		require.Len(t, ds, 10)
		sent.Reset()
		require.NoError(t, s.Complete(t.Context(), ds...))
		require.Equal(t, []string{"update", "aggregate"}, sent.Names(), "a look at lanes where nothing was known to wait")

		sent.Reset()
		ds, err = s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"nobody"}})
		require.NoError(t, err)
		require.Empty(t, ds)
		require.LessOrEqual(t, len(sent.Names()), 2, "one, and one where the repair is due: %v", sent.Names())
	},

	"OfAnIdleClaim": func(t *testing.T, b *bundle) {
		s, sent := b.monitored(t)
		idle := func() int {
			sent.Reset()
			_, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
			require.NoError(t, err)
			return len(sent.Names())
		}
		require.Equal(t, 3, idle(), "the first repairs and sweeps")
		repairs := 0
		eventually(t, func() bool {
			n := idle()
			require.LessOrEqual(t, n, 2)
			repairs += n - 1
			return repairs == 2
		}, "once a second it repairs")
	},

	"OfGivingUp": func(t *testing.T, b *bundle) {
		s, sent := b.monitored(t)
		for name, most := range map[string][]string{
			"Release": {"update"}, "Retry": {"update"}, "Bury": {"update"}, "Extend": {"update", "find"},
		} {
			b.append(t, msg("e-"+name, "k-"+name, name), msg("next-"+name, "k-"+name, name))
			d := b.claimOne(t, name)
			sent.Reset()
			require.NoError(t, ends[name](t.Context(), s, d))
			require.Equal(t, most, sent.Names(), name)
		}
		sent.Reset()
		n, err := s.Requeue(t.Context(), "Bury:e-Bury")
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.LessOrEqual(t, len(sent.Names()), 4, "%v", sent.Names())
	},

	"OfAppend": func(t *testing.T, b *bundle) {
		s, sent := b.monitored(t)
		require.NoError(t, appendBy(t.Context(), s, msg("e-1", "k", "h", "g")))
		inside, beside := sentNames(sent)
		require.Equal(t, []string{"update", "findAndModify", "insert", "commitTransaction"}, inside)
		require.Equal(t, []string{"find"}, beside, "nothing waits: there is nothing to settle")

		require.NoError(t, appendBy(t.Context(), s, msg("e-2", "k", "h", "g")))
		inside, beside = sentNames(sent)
		require.Len(t, inside, 4)
		require.Equal(t, []string{"find", "find"}, beside, "a look at what waits")

		require.NoError(t, appendBy(t.Context(), s, msg("e-3", "")))
		inside, beside = sentNames(sent)
		require.Equal(t, []string{"update", "insert", "commitTransaction"}, inside)
		require.Empty(t, beside)

		require.NoError(t, appendBy(t.Context(), s, msg("e-3", "")))
		inside, beside = sentNames(sent)
		require.Equal(t, []string{"update", "find", "commitTransaction"}, inside)
		require.Empty(t, beside)
	},

	"OfAnAppendOfNothing": func(t *testing.T, b *bundle) {
		s, sent := b.monitored(t)
		require.NoError(t, appendBy(t.Context(), s))
		require.Empty(t, sent.Names(), "nothing to store, nothing to commit")
	},
}

// TestCommandsOfAnAppendOfTwentyThousand has a server of its own: the cache of the shared
// one is too small for such a transaction while others work.
func TestCommandsOfAnAppendOfTwentyThousand(t *testing.T) {
	t.Parallel()
	var sent mongotest.Commands
	client := mongotest.Start(t, mongotest.Options{ReplicaSet: true, CacheGB: 1}).Client(options.Client().SetMonitor(sent.Monitor()))
	s, err := outbox.New(client, outbox.Config{})
	require.NoError(t, err)
	require.NoError(t, s.Setup(t.Context()))
	for name, keyOf := range map[string]func(i int) string{
		"one key": func(int) string { return "hot" }, "as many keys": func(i int) string { return fmt.Sprintf("k-%d", i) },
	} {
		many := make([]outbox.Message, 0, 20_000)
		for i := range cap(many) {
			many = append(many, msg(fmt.Sprintf("%s-%d", name, i), keyOf(i)))
		}
		sent.Reset()
		require.NoError(t, appendBy(t.Context(), s, many...), name)
		inside, beside := sentNames(&sent)
		require.LessOrEqual(t, len(inside)+len(beside), 10, "%s: %v beside %v", name, inside, beside)
	}
	st, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 40_000, st.Pending+st.Waiting)
	page, err := s.List(t.Context(), outbox.ListOptions{Key: "hot", Limit: 10_000})
	require.NoError(t, err)
	require.EqualValues(t, 10_000, page.Items[9_999].Sequence)
}
