package stage

import (
	"fmt"
	"io"
	"slices"
)

// Finding is one thing that was checked.
type Finding struct {
	Text  string
	Wrong []string // empty: as it should be
}

// Wrongf notes something that is not as it should be.
func (f *Finding) Wrongf(format string, args ...any) {
	f.Wrong = append(f.Wrong, fmt.Sprintf(format, args...))
}

// Print reports whether all is as it should be.
func Print(out io.Writer, findings []Finding) bool {
	const most = 5
	good := true
	for _, f := range findings {
		mark := "ok  "
		if len(f.Wrong) > 0 {
			good, mark = false, "FAIL"
		}
		fmt.Fprintf(out, "  %s %s\n", mark, f.Text)
		slices.Sort(f.Wrong)
		for i, wrong := range f.Wrong {
			if i == most {
				fmt.Fprintf(out, "         and %d more\n", len(f.Wrong)-most)
				break
			}
			fmt.Fprintf(out, "         %s\n", wrong)
		}
	}
	return good
}
