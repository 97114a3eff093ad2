package mongostore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
	"github.com/execstore/mongostore/internal/mongotest"
)

// gate is a counter in memory whose calls wait to be let through.
type gate struct {
	mu      sync.Mutex
	n       int64
	counts  []int64
	entered chan struct{}
	pass    chan error
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}, 100), pass: make(chan error, 100)}
}

func (g *gate) increment(ctx context.Context, count, _ perKind) numbered {
	g.entered <- struct{}{}
	select {
	case err := <-g.pass:
		if err != nil {
			return numbered{errs: [2]error{outboxSeq: err}}
		}
	case <-ctx.Done():
		return numbered{errs: [2]error{outboxSeq: ctx.Err()}}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n += count[outboxSeq]
	g.counts = append(g.counts, count[outboxSeq])
	return numbered{last: perKind{outboxSeq: g.n}}
}

// events is so many numbers for events.
func events(n int64) perKind { return perKind{outboxSeq: n} }

func TestWhoWaitsTogetherIsServedTogether(t *testing.T) {
	t.Parallel()
	g := newGate()
	a := newAllocator(g.increment, 1)
	ctx := t.Context()
	first := a.ask(ctx, events(1), events(0))
	<-g.entered // the first call is on its way: nobody joins it
	var waiting []ticket
	for range 5 {
		waiting = append(waiting, a.ask(ctx, events(2), events(0)))
	}
	g.pass <- nil
	n, err := a.wait(ctx, first)
	require.NoError(t, err)
	require.EqualValues(t, 1, n[outboxSeq])
	<-g.entered
	g.pass <- nil
	for i, ticket := range waiting {
		n, err := a.wait(ctx, ticket)
		require.NoError(t, err)
		require.EqualValues(t, 2+2*i, n[outboxSeq])
	}
	require.NoError(t, a.idle(ctx))
	require.Equal(t, []int64{1, 10}, g.counts, "one increment of the sum")
}

func TestAWaiterWhoLeavesLeavesAGap(t *testing.T) {
	t.Parallel()
	g := newGate()
	a := newAllocator(g.increment, 1)
	holding := a.ask(t.Context(), events(1), events(0))
	<-g.entered
	leaving, leave := context.WithCancel(t.Context())
	gone, stays := a.ask(leaving, events(3), events(0)), a.ask(t.Context(), events(2), events(0))
	leave()
	_, err := a.wait(leaving, gone)
	require.ErrorIs(t, err, context.Canceled)
	g.pass <- nil
	_, err = a.wait(t.Context(), holding)
	require.NoError(t, err)
	<-g.entered
	g.pass <- nil
	n, err := a.wait(t.Context(), stays)
	require.NoError(t, err)
	require.EqualValues(t, 5, n[outboxSeq])
}

func TestTheLastWaiterTakesTheCallAlong(t *testing.T) {
	t.Parallel()
	g := newGate()
	a := newAllocator(g.increment, 1)
	ctx, leave := context.WithCancel(t.Context())
	ticket := a.ask(ctx, events(1), events(0))
	<-g.entered
	leave()
	_, err := a.wait(ctx, ticket)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, a.idle(t.Context()), "no goroutine stays behind")
	require.Empty(t, g.counts)
}

func TestALostReplyOfACounterIsRepeatedOnce(t *testing.T) {
	t.Parallel()
	lost := mongo.CommandError{Labels: []string{"NetworkError"}}
	refused := mongo.CommandError{Code: 13}
	for name, c := range map[string]struct {
		replies []error
		want    error
	}{
		"once":    {[]error{lost, nil}, nil},
		"twice":   {[]error{lost, lost}, lost},
		"refused": {[]error{refused}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			for _, err := range c.replies {
				g.pass <- err
			}
			a := newAllocator(g.increment, 1)
			_, err := a.wait(t.Context(), a.ask(t.Context(), events(1), events(0)))
			if c.want == nil {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
			}
			require.Empty(t, g.pass, "every reply was asked for")
		})
	}
}

func TestABlockServesUntilItIsUsedUpOrBehind(t *testing.T) {
	t.Parallel()
	g := newGate()
	for range 10 {
		g.pass <- nil
	}
	a := newAllocator(g.increment, 10)
	take := func(count, above int64) int64 {
		n, err := a.wait(t.Context(), a.ask(t.Context(), events(count), events(above)))
		require.NoError(t, err)
		return n[outboxSeq]
	}
	require.EqualValues(t, 1, take(3, 0))
	require.EqualValues(t, 4, take(3, 3), "from the block")
	require.EqualValues(t, 7, take(1, 6))
	require.EqualValues(t, 11, take(5, 0), "the rest of a block that is too small is a gap")
	require.EqualValues(t, 21, take(1, 16), "another process numbered this execution: a fresh block")
	require.EqualValues(t, 31, take(25, 0), "more than a block")
	require.Equal(t, []int64{10, 10, 10, 25}, g.counts)
}

func TestCountersOfOtherWriters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n     any
		want  int64
		fails bool
	}{
		"int32": {int32(41), 42, false}, "int64": {int64(1 << 40), 1<<40 + 1, false}, "double": {41.0, 42, false},
		"text": {"x", 0, true}, "half": {1.5, 0, true}, "null": {nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, database := mongotest.Standalone(t).Database(t)
			s, err := New(client, Config{Database: database})
			require.NoError(t, err)
			_, err = s.counters.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "outbox"}, {Key: "n", Value: c.n}})
			require.NoError(t, err)
			res, err := s.Commit(t.Context(), &plainRun{Header{ID: "o"}}, Changes{Emits: []Emit{{}}})
			if c.fails {
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorContains(t, err, "counters.n")
				return
			}
			require.NoError(t, err)
			require.Equal(t, []int64{c.want}, res.OutboxSeqs)
		})
	}
}

// A counter that was lost by hand starts above what the execution already has.
func TestALostCounterStartsAboveWhatTheExecutionHas(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s, err := New(client, Config{Database: database, SeqBlock: 5})
	require.NoError(t, err)
	o := &plainRun{Header{ID: "o"}}
	for range 3 {
		_, err = s.Commit(t.Context(), o, Changes{Emits: []Emit{{}, {}, {}}})
		require.NoError(t, err)
	}
	_, err = s.counters.DeleteOne(t.Context(), byID("outbox"))
	require.NoError(t, err)
	fresh, err := New(client, Config{Database: database, SeqBlock: 5})
	require.NoError(t, err)
	var again plainRun
	require.NoError(t, fresh.Load(t.Context(), "o", &again))
	res, err := fresh.Commit(t.Context(), &again, Changes{Emits: []Emit{{}}})
	require.NoError(t, err)
	require.Greater(t, res.OutboxSeqs[0], o.known.seqHigh[outboxSeq])
}

func TestCombiningOnARealServer(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	_, database := server.Database(t)
	var sent mongotest.Commands
	s, err := New(server.Client(t, options.Client().SetMonitor(sent.Monitor())), Config{Database: database})
	require.NoError(t, err)
	const callers, each = 64, 20
	var wg sync.WaitGroup
	var seen sync.Map
	var twice atomic.Int64
	for range callers {
		wg.Go(func() {
			for range each {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				n, err := s.seqs.wait(ctx, s.seqs.ask(ctx, events(2), perKind{}))
				cancel()
				if err != nil {
					t.Error(err)
				}
				for _, n := range []int64{n[outboxSeq], n[outboxSeq] + 1} {
					if _, had := seen.LoadOrStore(n, true); had {
						twice.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, twice.Load(), "no number is given twice")
	require.Less(t, len(sent.Names()), callers*each/4, "callers share increments")
	require.NoError(t, s.Close(t.Context()))
}

// Both counters are moved in one command while nobody else moves them; where somebody
// has, they are read again, and no number is given twice.
func TestBothCountersInOneCommand(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	client, database := server.Database(t)
	var sent mongotest.Commands
	mine, err := New(server.Client(t, options.Client().SetMonitor(sent.Monitor())), Config{Database: database})
	require.NoError(t, err)
	other, err := New(client, Config{Database: database})
	require.NoError(t, err)
	both := Changes{Emits: []Emit{{}, {}}, Spawns: []Spawn{{ChildID: "c"}}}
	o, theirs := &plainRun{Header{ID: "o"}}, &plainRun{Header{ID: "theirs"}}
	commit := func(s *Store, r *plainRun, ch Changes, want ...string) CommitResult {
		t.Helper()
		sent.Reset()
		res, err := s.Commit(t.Context(), r, ch)
		require.NoError(t, err)
		if want != nil {
			require.ElementsMatch(t, want, sent.Names())
		}
		return res
	}
	fam, up := "findAndModify", "update"
	commit(mine, o, both, fam, fam, "insert")
	res := commit(mine, o, both, up, up)
	require.Equal(t, []int64{3, 4}, res.OutboxSeqs)
	require.Equal(t, []int64{2}, res.SpawnSeqs)

	require.Equal(t, []int64{5}, commit(other, theirs, Changes{Emits: []Emit{{}}}).OutboxSeqs)
	res = commit(mine, o, both, up, fam, fam, up)
	require.Equal(t, []int64{6, 7}, res.OutboxSeqs, "another process was there")
	require.Equal(t, []int64{4}, res.SpawnSeqs, "3 is a gap: only this counter stood where it was left")
	commit(mine, o, both, fam, fam, up)
	require.Equal(t, []int64{10, 11}, commit(mine, o, both, up, up).OutboxSeqs)

	_, err = mine.counters.UpdateByID(t.Context(), "spawn", bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: "x"}}}})
	require.NoError(t, err)
	_, err = mine.Commit(t.Context(), o, both)
	require.ErrorIs(t, err, ErrDamaged)
	require.Equal(t, []int64{16}, commit(mine, o, Changes{Emits: []Emit{{}}}).OutboxSeqs, "the other counter goes on")
}

func TestErrorsOfTheFunnel(t *testing.T) {
	t.Parallel()
	driver := mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: mongoerr.UpdateTooLarge}}, Labels: []string{"mine"}}
	err := wrapErr("commit", "o", driver)
	require.ErrorIs(t, err, ErrTooLarge)
	var labelled mongo.LabeledError
	require.True(t, errors.As(err, &labelled) && labelled.HasErrorLabel("mine"), "the driver's error stays inside")
	require.Same(t, err, wrapErr("again", "o", err), "nothing is wrapped twice")
}
