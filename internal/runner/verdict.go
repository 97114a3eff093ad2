package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

// What handlers say about a delivery, and how they are called.

// Permanent marks an error that no retry can mend; nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ cause error }

func (e *permanentError) Error() string { return e.cause.Error() }
func (e *permanentError) Unwrap() error { return e.cause }

// RetryAfter marks an error after which the handler wants a pause of its own choice.
func RetryAfter(d time.Duration, err error) error { return &retryAfterError{after: d, cause: err} }

type retryAfterError struct {
	after time.Duration
	cause error
}

func (e *retryAfterError) Error() string {
	if e.cause == nil {
		return "again in " + e.after.String()
	}
	return e.cause.Error()
}

func (e *retryAfterError) Unwrap() error { return e.cause }

// IsPermanent is whether err was marked by Permanent; RetryAfter around or inside it
// takes that back.
func IsPermanent(err error) bool {
	return errors.As(err, new(*permanentError)) && !errors.As(err, new(*retryAfterError))
}

// WantsPause is whether err was marked by RetryAfter.
func WantsPause(err error) bool { return errors.As(err, new(*retryAfterError)) }

// longestPause keeps a time that is added to the clock within what databases hold.
const longestPause = 365 * 24 * time.Hour

// Pause is how long a delivery that failed with err is kept back: what RetryAfter said,
// else what backoff says, which is the user's code; from 0 to a year.
func Pause(logger *slog.Logger, backoff func(attempt int) time.Duration, attempt int, err error) time.Duration {
	var later *retryAfterError
	if errors.As(err, &later) {
		return min(max(later.after, 0), longestPause)
	}
	after := FullJitter(attempt)
	Guarded(logger, "Backoff", func() { after = backoff(max(attempt, 1)) })
	return min(max(after, 0), longestPause)
}

// FullJitter spreads retries over the whole of a doubling pause, 200 ms to 1 minute, as
// is best known from retries against overloaded services: those who failed together do
// not come together.
func FullJitter(attempt int) time.Duration {
	const first, most = 200 * time.Millisecond, time.Minute
	pause := most
	if attempt = max(attempt, 1); attempt < 10 {
		pause = min(first<<(attempt-1), most)
	}
	return time.Duration(rand.Int64N(int64(pause) + 1))
}

// Guarded runs user's code that must not fail, and logs its panic. It runs in a goroutine
// of its own, because it may end that.
func Guarded(logger *slog.Logger, name string, f func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				logger.Error("mongostore: "+name+" panicked", "panic", p, "stack", string(debug.Stack()))
			}
		}()
		f()
	}()
	<-ended
}

// Handle runs a handler in a goroutine of its own: a panic is an error, and so is
// runtime.Goexit, which tests call to end themselves.
func Handle(logger *slog.Logger, id string, handler func() error) (err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		returned := false
		defer func() {
			p := recover()
			switch {
			case p != nil:
				logger.Error("mongostore: a handler panicked", "entry", id, "panic", p, "stack", string(debug.Stack()))
				err = fmt.Errorf("panic: %v", p)
			case !returned:
				err = errors.New("the handler called runtime.Goexit")
			}
		}()
		if err = handler(); err != nil {
			_ = err.Error() // one that cannot tell what it is, or what it wraps, panics here
			_, _ = errors.Is(err, context.Canceled), IsPermanent(err)
		}
		returned = true
	}()
	<-ended
	return err
}
