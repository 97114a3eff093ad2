package stage

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const reportEvery = 200 * time.Millisecond

// URI is the connection string that a fleet hands to its processes.
func URI() string { return os.Getenv(uriVariable) }

// ByParent is the life of a process of a fleet: it ends when the pipe on stdin closes,
// which it also does when the parent dies.
func ByParent() (context.Context, context.CancelFunc) {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // they reach all processes; the parent decides
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, cancel
}

// Report writes the counts to stdout, one JSON document a line, and once more at the end.
func Report[C any](ctx context.Context, counts func() C) {
	out := json.NewEncoder(os.Stdout)
	for ctx.Err() == nil {
		_ = out.Encode(counts()) // a parent that is gone closes stdin too
		Pause(ctx, reportEvery)
	}
	_ = out.Encode(counts())
}

// Pause lasts d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
