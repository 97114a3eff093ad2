package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is a line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Output     string
	Elapsed    float64
}

// key names a test, or a package or build (no test).
type key struct{ pkg, test string }

// report adds up what the events say.
type report struct {
	out     io.Writer
	output  map[key]*bytes.Buffer // of what has not ended yet
	passed  int
	failed  []key
	skipped []skip
	open    map[string]bool // packages that have not ended
	began   bool            // there was an event
}

type skip struct {
	key
	reason string
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[key]*bytes.Buffer{}, open: map[string]bool{}}
}

// read takes events until the end; lines that are none are passed on.
func (r *report) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil && e.Action != "" {
			r.add(e)
		} else {
			fmt.Fprintf(r.out, "%s", line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	r.began = true
	k := key{e.Package, e.Test}
	if e.ImportPath != "" {
		k.pkg = "build of " + e.ImportPath
	}
	switch e.Action {
	case "start":
		r.open[e.Package] = true
	case "output", "build-output":
		if r.output[k] == nil {
			r.output[k] = &bytes.Buffer{}
		}
		r.output[k].WriteString(e.Output)
	case "build-fail":
		fmt.Fprintf(r.out, "%s", r.take(k))
		r.failed = append(r.failed, k)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e, k)
		}
	}
}

func (r *report) take(k key) string {
	buf := r.output[k]
	delete(r.output, k)
	if buf == nil {
		return ""
	}
	return buf.String()
}

func (r *report) endTest(e event, k key) {
	output := r.take(k)
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped = append(r.skipped, skip{k, reason(output)})
	case "fail":
		r.failed = append(r.failed, k)
		fmt.Fprintf(r.out, "%s", output)
	}
}

func (r *report) endPackage(e event) {
	delete(r.open, e.Package)
	output := r.take(key{pkg: e.Package})
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.out, "ok  \t%s\t%.1fs\n", e.Package, e.Elapsed)
	case "fail":
		r.unfinished(e.Package)
		if !r.hasFailed(e.Package) {
			r.failed = append(r.failed, key{pkg: e.Package})
		}
		fmt.Fprintf(r.out, "%s", output) // go test says FAIL in it
	}
}

func (r *report) hasFailed(pkg string) bool {
	return slices.ContainsFunc(r.failed, func(k key) bool { return k.pkg == pkg })
}

// unfinished shows what tests wrote that a crash or the timeout cut off.
func (r *report) unfinished(pkg string) {
	for k := range r.output {
		if k.pkg == pkg {
			fmt.Fprintf(r.out, "%s", r.take(k))
		}
	}
}

// reason is what a test said before it was skipped.
func reason(output string) string {
	for _, line := range strings.Split(output, "\n") {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			return line
		}
	}
	return ""
}

// print names what was skipped and gives the totals.
func (r *report) print() {
	for _, s := range r.skipped {
		fmt.Fprintf(r.out, "skipped: %s %s: %s\n", s.pkg, s.test, s.reason)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), len(r.skipped))
}

// verdict is what is wrong with the run as a whole. Allowed names the tests that may
// be skipped; nil: all may.
func (r *report) verdict(allowed map[string]bool) error {
	var problems []error
	for _, k := range r.failed {
		problems = append(problems, fmt.Errorf("failed: %s %s", k.pkg, k.test))
	}
	for _, s := range r.skipped {
		if allowed != nil && !allowed[s.test] {
			problems = append(problems, fmt.Errorf("skipped, and not named as one that may be: %s %s", s.pkg, s.test))
		}
	}
	for pkg := range r.open {
		problems = append(problems, fmt.Errorf("no end: %s", pkg))
	}
	if r.passed == 0 {
		problems = append(problems, errors.New("no test ran"))
	}
	return errors.Join(problems...)
}
