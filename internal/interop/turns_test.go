package interop

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

const (
	rounds = 100 // turns of each side
	shared = "shared"
)

// testTurns: both sides commit on one execution in turns, each on what the other
// left: events, children, timers, dedupe marks, trace.
func testTurns(t *testing.T, b *bundle) {
	turns := &turns{bundle: b}
	for round := range rounds {
		turns.whileAdopting(t, func() { turns.goTurn(t, round) })
		require.Len(t, b.list(t, mongostore.ListOptions{Statuses: []string{"RUNNING"}}), 1, "Adopt takes back nothing that Go wrote")
		if round%10 >= 8 { // both ways of goAcks
			turns.requireRing(t)
		}
		turns.whileAdopting(t, func() { turns.harelTurn(t, round) })
		if round%10 == 9 {
			turns.requireRing(t)
			turns.staleTurns(t)
			turns.requireAgreement(t, round)
		}
	}
	exe := b.load(t, shared)
	require.EqualValues(t, 2*rounds, exe.Version)
	for _, name := range turns.said {
		turns.requireDone(t, exe, name)
	}
	b.damage.requireNone(t)
}

// turns remembers what was committed so far.
type turns struct {
	*bundle
	said      []string // events handled and steps traced, in order
	outboxSeq int64    // the highest number so far
	spawnSeq  int64
}

// name is the turn's event, trace step and mark in the context.
func (s *turns) name(side string, round int) string {
	name := fmt.Sprintf("%s-%03d", side, round)
	s.said = append(s.said, name)
	return name
}

// goTurn takes from harel's turn what it owes, and owes something itself.
func (s *turns) goTurn(t *testing.T, round int) {
	t.Helper()
	name := s.name("go", round)
	var exe Execution
	if round == 0 {
		exe.Header = mongostore.Header{ID: shared, DefinitionID: "Shared", ParentID: "family"}
		exe.Context = json.RawMessage(`{"float":1.0,"huge":1180591620717411303424}`)
	} else {
		seen, err := s.store.LoadForEvent(t.Context(), shared, name, &exe)
		require.NoError(t, err)
		require.False(t, seen)
		require.Equal(t, fmt.Sprintf("Harel.%d", round-1), exe.ActivePath, "harel's turn is seen without Adopt")
	}
	exe.Status, exe.ActivePath = "RUNNING", fmt.Sprintf("Go.%d", round)
	exe.Context = withField(exe.Context, name, "1.0")
	ch := mongostore.Changes{
		Emits:     []mongostore.Emit{{TargetID: shared, Event: Event{ID: name, Kind: "Go"}}, {Event: Event{ID: name + "x", Kind: "Go"}}},
		Spawns:    []mongostore.Spawn{{ChildID: name, RootPath: "A", Input: bson.D{{Key: "a.b", Value: 1.0}}}},
		Timers:    []mongostore.TimerOp{{Path: "Both.Sides", FireAt: dueAt.Add(time.Duration(round) * time.Second)}, {Path: "Harel.Own", Cancel: true}},
		Processed: name,
		Trace:     bson.D{{Key: "event_kind", Value: name}},
	}
	s.goAcks(t, round, &ch)
	res, err := s.store.Commit(t.Context(), &exe, ch)
	require.NoError(t, err)
	require.EqualValues(t, len(s.said), res.Version)
	require.False(t, res.Deduplicated)
	s.requireRising(t, &s.outboxSeq, res.OutboxSeqs...)
	s.requireRising(t, &s.spawnSeq, res.SpawnSeqs...)
}

// goAcks takes all that harel's turn left pending, with the commit or before it.
func (s *turns) goAcks(t *testing.T, round int, ch *mongostore.Changes) {
	t.Helper()
	outbox, err := s.store.PendingOutbox(t.Context(), 0)
	require.NoError(t, err)
	spawns, err := s.store.PendingSpawns(t.Context(), 0)
	require.NoError(t, err)
	if round%2 == 0 {
		require.NoError(t, s.store.AckOutbox(t.Context(), outbox...))
		require.NoError(t, s.store.AckSpawn(t.Context(), spawns...))
		return
	}
	for _, e := range outbox {
		require.Equal(t, "harel", decodedEvent(t, string(e.Event)).Kind)
		ch.Acks = append(ch.Acks, e)
	}
	for _, e := range spawns {
		ch.Acks = append(ch.Acks, e)
	}
	require.Len(t, ch.Acks, 3)
}

// whileAdopting takes a turn while Adopt walks the documents.
func (s *turns) whileAdopting(t *testing.T, turn func()) {
	t.Helper()
	adopted := make(chan error, 1)
	go func() {
		_, err := s.store.Adopt(t.Context())
		adopted <- err
	}()
	turn()
	require.NoError(t, <-adopted)
}

// harelTurn does the same from the other side.
func (s *turns) harelTurn(t *testing.T, round int) {
	t.Helper()
	name := s.name("harel", round)
	data, seen := s.harel.loadForEvent(shared, name)
	require.False(t, seen)
	exe := decoded(t, data)
	require.Equal(t, fmt.Sprintf("Go.%d", round), exe.ActivePath)
	require.Equal(t, "family", exe.ParentID)
	exe.Status, exe.ActivePath = "SUSPENDED", fmt.Sprintf("Harel.%d", round)
	exe.Context = withField(exe.Context, name, "1.0")
	target, event := shared, fmt.Sprintf(`{"id":%q,"kind":"harel","created_time":null,"received_time":null,"data":{}}`, name)
	done := s.harel.commit(harelCommit{
		Data:      encoded(t, exe),
		Emits:     [][2]*string{{&target, &event}, {nil, &event}},
		Processed: &name,
		Timers:    []harelTimer{{"schedule", "Harel.Own", Seconds(dueAt) + float64(round)}, {"cancel", "Both.Sides", 0}},
		Spawns:    [][3]any{{name, "A", args{"a.b": 1.5}}},
		Trace:     args{"event_kind": name},
	})
	require.EqualValues(t, len(s.said), done.Version)
	s.requireRising(t, &s.outboxSeq, done.Seqs...)
	s.harelAcks(t)
}

// harelAcks takes what Go left pending.
func (s *turns) harelAcks(t *testing.T) {
	t.Helper()
	for _, e := range s.harel.pendingOutbox() {
		if decodedEvent(t, e.Event).Kind == "Go" {
			s.harel.call("ack_outbox", args{"seq": e.Seq}, nil)
		}
	}
	for _, e := range s.harel.pendingSpawns() {
		if e.ChildID[:2] == "go" {
			s.harel.call("ack_spawn", args{"seq": e.Seq}, nil)
		} else {
			s.requireRising(t, &s.spawnSeq, e.Seq)
		}
	}
}

func decodedEvent(t *testing.T, text string) (event Event) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &event))
	return event
}

func (s *turns) requireRising(t *testing.T, highest *int64, seqs ...int64) {
	t.Helper()
	for _, seq := range seqs {
		require.Greater(t, seq, *highest)
		*highest = seq
	}
}

// staleTurns: each side refuses the value that the other has overtaken.
func (s *turns) staleTurns(t *testing.T) {
	t.Helper()
	exe, snapshot := s.load(t, shared), s.harel.load(shared)
	exe.Version -= 2
	_, err := s.store.Commit(t.Context(), exe, mongostore.Changes{Processed: "stale"})
	require.ErrorIs(t, err, mongostore.ErrConflict)
	old := decoded(t, snapshot)
	old.Version--
	_, err = s.harel.tryCommit(harelCommit{Data: encoded(t, old)})
	require.ErrorContains(t, err, "conflict")
	require.False(t, s.harel.isProcessed(shared, "stale"))
}

// requireDone: the turn left its mark in the snapshot, and both sides know its event.
func (s *turns) requireDone(t *testing.T, exe *Execution, name string) {
	t.Helper()
	require.Contains(t, string(exe.Context), `"`+name+`":1.0`)
	require.True(t, s.harel.isProcessed(shared, name))
	seen, err := s.store.IsProcessed(t.Context(), shared, name)
	require.NoError(t, err)
	require.True(t, seen)
}

// requireRing: the newest steps, in the order of the turns.
func (s *turns) requireRing(t *testing.T) {
	t.Helper()
	steps := []string{}
	for _, step := range s.requireSameTrace(t, shared) {
		steps = append(steps, step.Lookup("event_kind").StringValue())
	}
	require.Equal(t, s.said[max(0, len(s.said)-ringSize):], steps)
}

// requireAgreement: both sides see the same, and it is what was committed.
func (s *turns) requireAgreement(t *testing.T, round int) {
	t.Helper()
	exe := s.load(t, shared)
	requireSameSnapshot(t, s.harel.load(shared), encoded(t, exe))
	for _, name := range s.said[max(0, len(s.said)-20):] {
		s.requireDone(t, exe, name)
	}
	outbox, spawns := s.requireSamePending(t)
	require.Len(t, outbox, 2, "all but harel's last turn is acknowledged")
	require.Len(t, spawns, 1)
	_, err := s.store.Adopt(t.Context())
	require.NoError(t, err)
	timers := s.requireSameTimers(t, forever)
	require.Len(t, timers, 1)
	require.Equal(t, "Harel.Own", timers[0].Path)
	require.Equal(t, Seconds(dueAt)+float64(round), Seconds(timers[0].FireAt))
	for _, filter := range []mongostore.ListOptions{{}, {Statuses: []string{"SUSPENDED"}}, {ParentID: "family"}} {
		requireSameRows(t, s.harel.list(nil), s.list(t, filter))
	}
	require.Empty(t, s.list(t, mongostore.ListOptions{Statuses: []string{"RUNNING"}}))
}

// testBothAtOnce: writers on both sides race for one execution, each again after a
// conflict, Go for as long as harel does. No commit is lost and none is there twice.
func testBothAtOnce(t *testing.T, b *bundle) {
	const harels = 50
	created := &Execution{Header: mongostore.Header{ID: shared, DefinitionID: "Shared", Status: "RUNNING"}, Context: json.RawMessage(`{}`)}
	_, err := b.store.Commit(t.Context(), created, mongostore.Changes{})
	require.NoError(t, err)

	var conflicts int
	ended := make(chan error, 1)
	go func() { ended <- b.harel.try("add", args{"id": shared, "times": harels}, &conflicts) }()
	goes, runs, running := 0, 0, true
	for ; running; goes++ {
		runs += b.addFromGo(t, fmt.Sprintf("go-%d", goes))
		select {
		case err := <-ended:
			require.NoError(t, err)
			running = false
		default:
		}
	}
	require.Positive(t, conflicts+runs-goes, "nobody met anybody")

	exe := b.load(t, shared)
	require.EqualValues(t, 1+goes+harels, exe.Version)
	outbox, err := b.store.PendingOutbox(t.Context(), 1000)
	require.NoError(t, err)
	require.Len(t, outbox, goes+harels)
	require.Len(t, b.harel.pendingOutbox(), goes+harels)
	seqs, events := map[int64]bool{}, map[string]bool{}
	for _, e := range outbox {
		event := decodedEvent(t, string(e.Event))
		seqs[e.Seq], events[event.ID] = true, true
		require.Contains(t, string(exe.Context), `"`+event.ID+`"`)
	}
	require.Len(t, seqs, goes+harels, "each number was given once")
	require.Len(t, events, goes+harels, "each event is there once")
	require.GreaterOrEqual(t, b.counterDocuments(t)["outbox"], int64(goes+harels))
}

// addFromGo commits one event and tells how often it had to try.
func (b *bundle) addFromGo(t *testing.T, name string) (runs int) {
	t.Helper()
	var exe Execution
	_, err := b.store.Update(t.Context(), shared, &exe, mongostore.UpdateOptions{EventID: name}, func(ch *mongostore.Changes) error {
		runs++
		exe.Context = withField(exe.Context, name, "1")
		ch.Emits = []mongostore.Emit{{Event: Event{ID: name, Kind: "Go"}}}
		return nil
	})
	require.NoError(t, err)
	return runs
}
