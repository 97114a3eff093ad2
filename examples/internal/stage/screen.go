package stage

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Screen shows one line of progress that is written over on a terminal, and is a
// plain line now and then elsewhere.
type Screen struct {
	io.Writer
	terminal bool
	began    time.Time
	last     time.Time
}

const plainEvery = 2 * time.Second

// NewScreen is one on a file, which may be a terminal.
func NewScreen(f *os.File) *Screen {
	s := Plain(f)
	info, err := f.Stat()
	s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return s
}

// Plain is one without a terminal.
func Plain(w io.Writer) *Screen { return &Screen{Writer: w, began: time.Now()} }

// Progress shows how far it is.
func (s *Screen) Progress(format string, args ...any) {
	text := fmt.Sprintf(format, args...) + fmt.Sprintf(" · %.0f s", time.Since(s.began).Seconds())
	switch {
	case s.terminal:
		fmt.Fprintf(s, "\r%s\x1b[K", text)
	case time.Since(s.last) >= plainEvery:
		s.last = time.Now()
		fmt.Fprintln(s, text)
	}
}

// Line writes a line that stays.
func (s *Screen) Line(format string, args ...any) {
	if s.terminal {
		fmt.Fprint(s, "\r\x1b[K")
	}
	fmt.Fprintf(s, format+"\n", args...)
}
