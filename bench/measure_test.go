package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Every op runs once in each pair, the warm-up included, and neighbours alternate.
func TestSidesAlternateAndRunEveryOp(t *testing.T) {
	var trail []string
	took := map[string]time.Duration{"a": 30 * time.Microsecond, "b": 10 * time.Microsecond}
	make := func(name string) side {
		return side{name: name, timed: func(_ context.Context, i int) (time.Duration, error) {
			trail = append(trail, name)
			return took[name], nil
		}}
	}
	m := measure{workers: 1, ops: 4, chunks: 2, pairs: 7, value: p50, sides: []side{make("a"), make("b")}}
	got, err := m.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (7 + warmUps) * 2 * 4; len(trail) != want {
		t.Fatalf("%d ops, not %d", len(trail), want)
	}
	first := []string{"a", "a", "b", "b", "b", "b", "a", "a", "b", "b", "a", "a"}
	if !slices.Equal(trail[:len(first)], first) {
		t.Fatalf("order %v", trail[:len(first)])
	}
	res := row{name: "x", ours: "a", floor: "b", better: lower, bar: 2}.result(standalone, m, got)
	if res.Ours != 30 || res.Floor != 10 || res.Ratio != 3 || res.P99Ours != 30 || !res.missed() {
		t.Fatalf("%+v", res)
	}
}

func TestManyWorkersShareTheOps(t *testing.T) {
	done := make(chan int, 100)
	m := measure{workers: 8, ops: 100, pairs: 1, value: perSecond}
	s := side{name: "a", op: func(_ context.Context, _, i int) error { done <- i; return nil }}
	var seg segment
	seg.latencies = make([]time.Duration, m.ops)
	if err := m.chunk(t.Context(), s, &seg, 0, m.ops); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for range m.ops {
		seen[<-done] = true
	}
	if len(seen) != m.ops {
		t.Fatalf("%d different ops", len(seen))
	}
}

func TestWorseQuartileIsOnTheWrongSide(t *testing.T) {
	got := map[string]*samples{"a": {values: []float64{1, 2, 3, 4, 5}}, "b": {values: []float64{1, 1, 1, 1, 1}}}
	r := row{ours: "a", floor: "b", better: lower}
	if res := r.result(standalone, measure{}, got); res.Ratio != 3 || res.RatioWorse != 4 {
		t.Fatalf("%+v", res)
	}
	r.better = higher
	if res := r.result(standalone, measure{}, got); res.RatioWorse != 2 {
		t.Fatalf("%+v", res)
	}
}

func TestAPartKeepsTheOtherRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	first := []Result{{Name: "a", Topology: replicaset, Ours: 1}, {Name: "a", Topology: standalone, Ours: 2}}
	if err := writeResults(path, first); err != nil {
		t.Fatal(err)
	}
	if err := writeResults(path, []Result{{Name: "a", Topology: standalone, Ours: 3}}); err != nil {
		t.Fatal(err)
	}
	got, err := readResults(path)
	if err != nil || len(got) != 2 || got[0].Ours != 3 || got[1].Ours != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeResults(path, first); err == nil {
		t.Fatal("a file that cannot be read was written over")
	}
}

func TestMouldPoursAnotherIDAndTime(t *testing.T) {
	at := float64(fireAt.Unix())
	raw := mustBSON(bson.D{{Key: "_id", Value: idOf(0)}, {Key: "data", Value: "x" + idOf(0)}, {Key: "timer_at", Value: at}})
	m := &mould{raw: raw, ids: positions(raw, []byte(idOf(0))), times: positions(raw, double(at))}
	doc := m.pourAt(idOf(7), 5)
	if doc.Lookup("_id").StringValue() != idOf(7) || doc.Lookup("data").StringValue() != "x"+idOf(7) || doc.Lookup("timer_at").Double() != 5 {
		t.Fatal(doc)
	}
	if raw.Lookup("_id").StringValue() != idOf(0) {
		t.Fatal("the mould has changed")
	}
}
