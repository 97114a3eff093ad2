package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// screen shows one line of progress that is written over on a terminal, and is a
// plain line now and then elsewhere.
type screen struct {
	w        io.Writer
	terminal bool
	began    time.Time
	last     time.Time
}

const plainEvery = 2 * time.Second

func newScreen(f *os.File) *screen {
	info, err := f.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &screen{w: f, terminal: terminal, began: time.Now()}
}

func (s *screen) progress(format string, args ...any) {
	text := fmt.Sprintf(format, args...) + fmt.Sprintf(" · %.0f s", time.Since(s.began).Seconds())
	switch {
	case s.terminal:
		fmt.Fprintf(s.w, "\r%s\x1b[K", text)
	case time.Since(s.last) >= plainEvery:
		s.last = time.Now()
		fmt.Fprintln(s.w, text)
	}
}

// line writes a line that stays.
func (s *screen) line(format string, args ...any) {
	if s.terminal {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
	fmt.Fprintf(s.w, format+"\n", args...)
}
