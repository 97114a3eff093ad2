package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
)

// Result is one row of results.json.
type Result struct {
	Name       string  `json:"name"`
	Topology   string  `json:"topology"`
	Unit       string  `json:"unit"`
	Ours       float64 `json:"ours"`
	Floor      float64 `json:"floor"`
	Seed       float64 `json:"seed,omitempty"` // the seed's algorithm, where it is a third column
	Ratio      float64 `json:"ratio"`          // median of ours divided by floor, pair by pair
	RatioWorse float64 `json:"ratio_worse"`    // its worse quartile
	Better     string  `json:"better"`         // lower or higher
	Bar        float64 `json:"bar,omitempty"`  // what the ratio has to meet on this topology
	P99Ours    float64 `json:"p99_ours"`       // µs; 0 where nothing is timed
	Note       string  `json:"note"`
}

const (
	lower  = "lower"
	higher = "higher"
)

// row says how a result is made from the sides of a measure.
type row struct {
	name, unit, better string
	ours, floor, seed  string             // sides; seed "": no third column
	bar                float64            // 0: none
	barOn              map[string]float64 // topologies with a bar; nil: bar on standalone
	exact              bool               // no noise in it: to miss the bar is a failure, in a short run too
	note               string
}

func (r row) barFor(topology string) float64 {
	if r.barOn != nil {
		return r.barOn[topology]
	}
	if topology == standalone {
		return r.bar
	}
	return 0
}

// sides are the names of those that the row needs.
func (r row) sides() []string { return []string{r.ours, r.floor, r.seed} }

// result makes the row from what the sides showed.
func (r row) result(topology string, m measure, got map[string]*samples) Result {
	ours, floor := got[r.ours], got[r.floor]
	res := Result{
		Name: r.name, Topology: topology, Unit: r.unit, Better: r.better, Bar: r.barFor(topology),
		Ours: round(quantile(ours.values, 0.5)), Floor: round(quantile(floor.values, 0.5)),
		P99Ours: round(ours.p99()),
		Note:    fmt.Sprintf("%d pairs of %d ops, %d warm-up", len(ours.values), m.ops, warmUps),
	}
	if r.note != "" {
		res.Note += "; " + r.note
	}
	if third := got[r.seed]; third != nil {
		res.Seed = round(quantile(third.values, 0.5))
	}
	worse := 0.75
	if r.better == higher {
		worse = 0.25
	}
	all := ratios(ours.values, floor.values)
	res.Ratio, res.RatioWorse = round(quantile(all, 0.5)), round(quantile(all, worse))
	return res
}

// verdict says whether the bar is met; empty: there is none.
func (r Result) verdict() string {
	switch {
	case r.Bar == 0:
		return ""
	case r.Better == lower && r.Ratio <= r.Bar:
		return fmt.Sprintf("ok (≤ %.2f)", r.Bar)
	case r.Better == higher && r.Ratio >= r.Bar:
		return fmt.Sprintf("ok (≥ %.2f)", r.Bar)
	case r.Better == lower:
		return fmt.Sprintf("MISSED (≤ %.2f)", r.Bar)
	default:
		return fmt.Sprintf("MISSED (≥ %.2f)", r.Bar)
	}
}

func (r Result) missed() bool { return strings.HasPrefix(r.verdict(), "MISSED") }

// round keeps four digits: more would be noise.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

func (r Result) seedText() string {
	if r.Seed == 0 {
		return ""
	}
	return number(r.Seed)
}

func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

const lineFormat = "%-28s %-13s %-15s %9s %9s %9s  %6s %6s  %9s  %s\n"

func printHead(w io.Writer) {
	fmt.Fprintf(w, lineFormat, "name", "topology", "unit", "ours", "floor", "seed", "ratio", "worse", "p99 µs", "bar")
}

func (r Result) print(w io.Writer) {
	p99 := ""
	if r.P99Ours != 0 {
		p99 = number(r.P99Ours)
	}
	fmt.Fprintf(w, lineFormat, r.Name, r.Topology, r.Unit, number(r.Ours), number(r.Floor), r.seedText(),
		fmt.Sprintf("%.3f", r.Ratio), fmt.Sprintf("%.3f", r.RatioWorse), p99, r.verdict())
}

func readResults(path string) ([]Result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var results []Result
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return results, nil
}

// writeResults puts results in place of those of the same name and topology that
// the file has, so that a run of a part keeps the rest.
func writeResults(path string, results []Result) error {
	all, err := readResults(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, r := range results {
		if i := slices.IndexFunc(all, r.sameRow); i >= 0 {
			all[i] = r
		} else {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b Result) int {
		return cmp.Compare(topologyRank(a.Topology), topologyRank(b.Topology))
	})
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func (r Result) sameRow(other Result) bool {
	return r.Name == other.Name && r.Topology == other.Topology
}

func topologyRank(name string) int { return slices.Index(topologies, name) }

// compare prints two runs side by side.
func compare(w io.Writer, base, now []Result) {
	const format = "%-28s %-13s %-15s %9s %9s  %6s %6s\n"
	fmt.Fprintf(w, "\n"+format, "name", "topology", "unit", "ours was", "ours is", "was", "is")
	for _, r := range now {
		i := slices.IndexFunc(base, r.sameRow)
		if i < 0 {
			continue
		}
		b := base[i]
		fmt.Fprintf(w, format, r.Name, r.Topology, r.Unit, number(b.Ours), number(r.Ours),
			fmt.Sprintf("%.3f", b.Ratio), fmt.Sprintf("%.3f", r.Ratio))
	}
}

// printMarkdown prints the table for the README.
func printMarkdown(w io.Writer, results []Result) {
	fmt.Fprintln(w, "| name | topology | unit | ours | floor | seed | ratio | worse quartile | p99 µs | bar |")
	fmt.Fprintln(w, "|---|---|---|--:|--:|--:|--:|--:|--:|---|")
	for _, r := range results {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %.2f | %.2f | %s | %s |\n", r.Name, r.Topology, r.Unit,
			number(r.Ours), number(r.Floor), r.seedText(), r.Ratio, r.RatioWorse, number(r.P99Ours), r.verdict())
	}
}
