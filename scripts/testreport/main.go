// Testreport runs a command that prints what `go test -json` prints, and shows it
// to people: each package's result as it comes, the output of what failed, every
// skipped test by name, and one line of totals.
//
//	go run ./scripts/testreport [-skips FILE] -- go test -json ./...
//
// It exits non-zero if the command did, if a test failed, if no test ran, or if a
// test was skipped that FILE does not name: one a line, # begins a comment. Without
// FILE any test may be skipped.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	skips := flag.String("skips", "", "a `file` that names the only tests that may be skipped")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	err := run(*skips, flag.Args(), os.Stdout)
	if err != nil && !errors.Is(err, errSilent) {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// errSilent needs no words of ours.
var errSilent = errors.New("the command failed before any test")

func run(skips string, command []string, out io.Writer) error {
	allowed, err := readNames(skips)
	if err != nil {
		return err
	}
	// A Ctrl-C reaches the command too; here it only must not cut the report.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	// go test leaves its folder behind when it is interrupted while it builds.
	folder, err := os.MkdirTemp("", "testreport-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }() // nothing to be done about it
	cmd.Env = append(os.Environ(), "GOTMPDIR="+folder)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := newReport(out)
	readErr := r.read(stdout)
	waitErr := cmd.Wait()
	if waitErr != nil && !r.began {
		return errSilent // the command has said why
	}
	r.print()
	return errors.Join(readErr, r.verdict(allowed), waitErr)
}

// readNames reads the names of tests, nil without a file.
func readNames(file string) (map[string]bool, error) {
	if file == "" {
		return nil, nil
	}
	names := map[string]bool{}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, _, _ := strings.Cut(lines.Text(), "#")
		if name = strings.TrimSpace(name); name != "" {
			names[name] = true
		}
	}
	return names, lines.Err()
}
