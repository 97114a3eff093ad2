package main

import (
	"fmt"
	"strconv"
	"strings"
)

// between puts part between the markers of a name.
func between(text, name, part string) (string, error) {
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
	before, rest, ok := strings.Cut(text, begin)
	_, after, also := strings.Cut(rest, end)
	if !ok || !also {
		return "", fmt.Errorf("has no markers for %s", name)
	}
	return before + begin + part + end + after, nil
}

// table is one of Markdown; numbers stand on the right.
type table struct {
	columns []string
	rows    [][]string
	numbers map[int]bool
}

func newTable(columns ...string) *table { return &table{columns: columns, numbers: map[int]bool{}} }

func (t *table) row(cells ...any) {
	var row []string
	for i, cell := range cells {
		switch cell := cell.(type) {
		case int64:
			t.numbers[i] = true
			row = append(row, grouped(cell))
		default:
			row = append(row, fmt.Sprint(cell))
		}
	}
	t.rows = append(t.rows, row)
}

func (t *table) String() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.columns)
	rule := make([]string, len(t.columns))
	for i := range rule {
		if rule[i] = "---"; t.numbers[i] {
			rule[i] = "---:"
		}
	}
	line(rule)
	for _, row := range t.rows {
		line(row)
	}
	return b.String()
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// wrapped breaks text into lines of at most so many bytes.
func wrapped(text string, width int) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return strings.Join(append(lines, line), "\n")
}
