package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// line is any of the lines that the suite reports; what tells them apart is which of
// the names is set.
type line struct {
	Fault   string `json:"fault"`
	History string `json:"history"`
	Mutant  string `json:"mutant"`

	Topology string `json:"topology"`
	Store    string `json:"store"`

	Injected     int64 `json:"injected"`
	Acknowledged int64 `json:"acknowledged"`
	Unknown      int64 `json:"unknown"`
	Resolved     int64 `json:"resolved"`
	Lost         int64 `json:"lost"`
	Doubled      int64 `json:"doubled"`
	Reordered    int64 `json:"reordered"`
	Wrong        int64 `json:"wrong"`

	Loads      int64 `json:"loads"`
	Commits    int64 `json:"commits"`
	Open       int64 `json:"open"`
	Stale      int64 `json:"stale"`
	Unwritten  int64 `json:"unwritten"`
	Violations int64 `json:"violations"`

	Test    string  `json:"test"`
	Caught  bool    `json:"caught"`
	Seconds float64 `json:"seconds"`
}

// sums are all runs together: rows of one fault, topology and store are added up.
type sums struct {
	faults    map[[3]string]*line
	histories map[[2]string]*line
	mutants   map[string]*line // the slowest time of each
}

func newSums() *sums {
	return &sums{faults: map[[3]string]*line{}, histories: map[[2]string]*line{}, mutants: map[string]*line{}}
}

func (s *sums) read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case l.Fault != "":
			addTo(s.faults, [3]string{l.Store, l.Fault, l.Topology}, l)
		case l.History != "":
			addTo(s.histories, [2]string{l.History, l.Topology}, l)
		case l.Mutant != "":
			s.addMutant(l)
		default:
			return fmt.Errorf("line %d is no fault, no history and no mutant", n)
		}
	}
	return lines.Err()
}

func addTo[K comparable](to map[K]*line, key K, l line) {
	sum, ok := to[key]
	if !ok {
		to[key] = &l
		return
	}
	for _, n := range []struct {
		sum *int64
		add int64
	}{
		{&sum.Injected, l.Injected}, {&sum.Acknowledged, l.Acknowledged}, {&sum.Unknown, l.Unknown}, {&sum.Resolved, l.Resolved},
		{&sum.Lost, l.Lost}, {&sum.Doubled, l.Doubled}, {&sum.Reordered, l.Reordered}, {&sum.Wrong, l.Wrong},
		{&sum.Loads, l.Loads}, {&sum.Commits, l.Commits}, {&sum.Open, l.Open}, {&sum.Stale, l.Stale}, {&sum.Unwritten, l.Unwritten}, {&sum.Violations, l.Violations},
	} {
		*n.sum += n.add
	}
}

// addMutant keeps one that was missed once, else the slowest.
func (s *sums) addMutant(l line) {
	had := s.mutants[l.Mutant]
	if had == nil || had.Caught && (!l.Caught || l.Seconds > had.Seconds) {
		s.mutants[l.Mutant] = &l
	}
}

func (s *sums) faultTable() string {
	t := newTable("store", "fault", "servers", "struck", "acknowledged", "unknown", "resolved", "lost", "doubled", "reordered", "told wrongly")
	for _, key := range slices.SortedFunc(maps.Keys(s.faults), func(a, b [3]string) int { return slices.Compare(a[:], b[:]) }) {
		l := s.faults[key]
		t.row(l.Store, l.Fault, l.Topology, l.Injected, l.Acknowledged, l.Unknown, l.Resolved, l.Lost, l.Doubled, l.Reordered, l.Wrong)
	}
	all := s.all()
	t.row("all", "", "", all.Injected, all.Acknowledged, all.Unknown, all.Resolved, all.Lost, all.Doubled, all.Reordered, all.Wrong)
	return t.String()
}

// all adds the faults up.
func (s *sums) all() line {
	sum := map[string]*line{"": {}}
	for _, l := range s.faults {
		addTo(sum, "", *l)
	}
	return *sum[""]
}

func (s *sums) historyTable() string {
	t := newTable("fault", "servers", "loads", "of them stale", "of them unwritten", "commits", "left open", "executions without an order")
	for _, key := range slices.SortedFunc(maps.Keys(s.histories), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		l := s.histories[key]
		t.row(l.History, l.Topology, l.Loads, l.Stale, l.Unwritten, l.Commits, l.Open, l.Violations)
	}
	return t.String()
}

func (s *sums) mutantTable() string {
	t := newTable("broken rule", "caught by", "seconds")
	for _, l := range s.sortedMutants() {
		by := "`" + l.Test + "`"
		if !l.Caught {
			by = "**nothing**"
		}
		t.row(l.Mutant, by, strconv.FormatFloat(l.Seconds, 'f', 1, 64))
	}
	return t.String()
}

func (s *sums) sortedMutants() []*line {
	return slices.SortedFunc(maps.Values(s.mutants), func(a, b *line) int { return cmp.Compare(a.Mutant, b.Mutant) })
}

// summary is a paragraph for those who will not read the tables.
func (s *sums) summary() string {
	all := s.all()
	text := fmt.Sprintf("Under %s faults of %d kinds, %s operations were acknowledged: %s lost, %s doubled, %s out of order, %s told to have failed that had not.",
		grouped(all.Injected), s.kinds(), grouped(all.Acknowledged), grouped(all.Lost), grouped(all.Doubled), grouped(all.Reordered), grouped(all.Wrong))
	text += fmt.Sprintf(" %s had an unknown outcome first; %s of them were settled by asking again.", grouped(all.Unknown), grouped(all.Resolved))
	var histories, asked, without int64
	for _, l := range s.histories {
		histories, asked, without = histories+1, asked+l.Loads+l.Commits, without+l.Violations
	}
	if histories > 0 {
		text += fmt.Sprintf(" %s loads and commits were checked against a register; %s executions had a history that no order explains.", grouped(asked), grouped(without))
	}
	if mutants := s.sortedMutants(); len(mutants) > 0 {
		missed, slowest := 0, 0.0
		for _, l := range mutants {
			if slowest = max(slowest, l.Seconds); !l.Caught {
				missed++
			}
		}
		text += fmt.Sprintf(" Of %d rules that were broken on purpose the suite caught %d, each within %.0f seconds.", len(mutants), len(mutants)-missed, slowest)
	}
	return wrapped(text, 95) + "\n"
}

// kinds counts the faults, whatever they were tried on.
func (s *sums) kinds() int {
	names := map[string]bool{}
	for key := range s.faults {
		names[key[1]] = true
	}
	return len(names)
}
