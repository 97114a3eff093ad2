// Bench measures the store against raw driver calls that write the same, and
// against the algorithm of the original, on a real server. See README.md.
//
//	go run .                 the whole; writes results.json and the plots
//	BENCH=prefix go run .    the rows whose names start so
//	BENCH_SHORT=1 go run .   each row once, tiny: that nothing rots; writes nothing
//	BASE=old.json go run .   prints both runs side by side
//	go run . table|plot      from results.json, without measuring
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if role := os.Getenv(envChild); role != "" {
		return runChild(ctx, role)
	}
	if len(os.Args) > 1 {
		return show(os.Args[1])
	}
	b := &bench{
		short:  os.Getenv("BENCH_SHORT") != "",
		prefix: os.Getenv("BENCH"),
		only:   os.Getenv("BENCH_TOPOLOGY"),
		start:  time.Now(),
	}
	if err := b.all(ctx); err != nil {
		return err
	}
	return b.finish()
}

const resultsFile = "results.json"

func show(what string) error {
	results, err := readResults(resultsFile)
	if err != nil {
		return err
	}
	switch what {
	case "table":
		printMarkdown(os.Stdout, results)
		return nil
	case "plot":
		return drawPlots(results)
	}
	return fmt.Errorf("%q is neither table nor plot", what)
}

// bench is one run.
type bench struct {
	short        bool
	prefix, only string
	start        time.Time
	results      []Result
	failures     []string // exact rows that missed their bar
}

// part measures some rows together, because they share their data or a side.
type part struct {
	rows []row
	on   []string // topologies
	run  func(ctx context.Context, b *bench, t *target, rows []row) error
}

func parts() []part {
	return append([]part{
		noisePart(1), noisePart(64),
		plainPart(1), plainPart(64),
		fullPart(1), fullPart(64),
		firstPart(), largePart(), hopPart(), historyPart(),
		loadPart(), allocsPart(), curvePart(), memoryPart(), sweepPart(),
	}, slices.Concat(relayParts(), outboxParts())...)
}

// all runs the parts, topology by topology, one server at a time.
func (b *bench) all(ctx context.Context) error {
	fmt.Printf("%d cores, %s, %s/%s, server cache %d GiB\n", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, cacheGB)
	for _, served := range [][]string{{standalone, standaloneW1}, {replicaset}} {
		if err := b.serve(ctx, served); err != nil {
			return err
		}
	}
	if len(b.results) == 0 {
		return fmt.Errorf("no row starts with BENCH=%q on BENCH_TOPOLOGY=%q", b.prefix, b.only)
	}
	return nil
}

// serve runs what is wanted on the topologies of one server, if anything is.
func (b *bench) serve(ctx context.Context, served []string) error {
	var wanted []func(uri string) error
	for _, topology := range served {
		for _, p := range parts() {
			if rows := b.wanted(p, topology); len(rows) > 0 {
				wanted = append(wanted, func(uri string) error { return b.runPart(ctx, p, topology, uri, rows) })
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	server, err := openServer(ctx, served[0])
	if err != nil {
		return err
	}
	defer server.Stop()
	b.printServer(ctx, served[0], server.URI())
	for _, run := range wanted {
		if err := run(server.URI()); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) printServer(ctx context.Context, topology, uri string) {
	if t, err := newTarget(topology, uri); err == nil {
		fmt.Printf("mongod %s\n", t.version(ctx))
		t.close()
	}
	printHead(os.Stdout)
}

func (b *bench) wanted(p part, topology string) (rows []row) {
	for _, on := range p.on {
		if on != topology || b.only != "" && b.only != topology {
			continue
		}
		for _, r := range p.rows {
			if strings.HasPrefix(r.name, b.prefix) {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

func (b *bench) runPart(ctx context.Context, p part, topology, uri string, rows []row) error {
	t, err := newTarget(topology, uri)
	if err != nil {
		return err
	}
	defer t.close()
	if err := p.run(ctx, b, t, rows); err != nil {
		return fmt.Errorf("%s on %s: %w", rows[0].name, topology, err)
	}
	return nil
}

// size is how much of something a run does.
func (b *bench) size(whole, short int) int {
	if b.short {
		return short
	}
	return whole
}

// compare runs a measure with those sides that the rows need, and reports the rows.
func (b *bench) compare(ctx context.Context, t *target, m measure, rows []row) error {
	needed := map[string]bool{}
	for _, r := range rows {
		for _, name := range r.sides() {
			needed[name] = true
		}
	}
	var sides []side
	for _, s := range m.sides {
		if needed[s.name] {
			sides = append(sides, s)
		}
	}
	m.sides = sides
	got, err := m.run(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		b.report(r, r.result(t.topology, m, got))
	}
	return nil
}

// report prints and keeps a row. What a short run times is not judged.
func (b *bench) report(r row, res Result) {
	if b.short && !r.exact {
		res.Bar = 0
	}
	res.print(os.Stdout)
	b.results = append(b.results, res)
	if r.exact && res.missed() {
		b.failures = append(b.failures, res.Name)
	}
}

// finish writes what a whole run writes, and fails on what no noise can excuse.
func (b *bench) finish() error {
	fmt.Printf("%d rows in %s\n", len(b.results), time.Since(b.start).Round(time.Second))
	if base := os.Getenv("BASE"); base != "" {
		old, err := readResults(base)
		if err != nil {
			return err
		}
		compare(os.Stdout, old, b.results)
	}
	if err := b.write(); err != nil {
		return err
	}
	if len(b.failures) > 0 {
		return fmt.Errorf("missed without noise to blame: %s", strings.Join(b.failures, ", "))
	}
	return nil
}

func (b *bench) write() error {
	path := os.Getenv("BENCH_OUT")
	if path == "" && !b.short {
		path = resultsFile
	}
	if path == "" {
		return nil
	}
	if err := writeResults(path, b.results); err != nil || path != resultsFile {
		return err
	}
	all, err := readResults(path)
	if err != nil {
		return err
	}
	return drawPlots(all)
}
