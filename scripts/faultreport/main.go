// Faultreport writes the tables of docs/reliability.md, and the paragraph of the README
// that sums them up, from what runs of the fault suite have reported.
//
//	go run ./scripts/faultreport [-page docs/reliability.md] [-readme README.md] FILE...
//
// Each FILE has a JSON document a line; the lines of several runs may stand in one file.
// What stands between <!-- NAME:begin --> and <!-- NAME:end --> is written anew.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	page := flag.String("page", "docs/reliability.md", "the `file` with the tables")
	readme := flag.String("readme", "README.md", "the `file` with the summary")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Args(), *page, *readme); err != nil {
		fmt.Fprintln(os.Stderr, "faultreport:", err)
		os.Exit(1)
	}
}

func run(files []string, page, readme string) error {
	s := newSums()
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = s.read(f)
		_ = f.Close() // it was only read
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	err := rewrite(page, map[string]string{"faults": s.faultTable(), "histories": s.historyTable(), "mutants": s.mutantTable()})
	if err != nil {
		return err
	}
	return rewrite(readme, map[string]string{"reliability": s.summary()})
}

// rewrite puts new text between the markers of a file.
func rewrite(file string, parts map[string]string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(old)
	for name, part := range parts {
		if text, err = between(text, name, part); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if text == string(old) {
		return nil
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
