package mongostore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// The errors that callers act on. Test for them with errors.Is; the facts are in
// the typed errors below, by errors.As. The driver's own error, with its labels,
// stays reachable inside each of them.
var (
	// ErrNotFound is returned when no execution with the id has ever been committed.
	ErrNotFound = errors.New("mongostore: not found")
	// ErrConflict is returned when another writer committed first. Load again and
	// decide again; Update does both. The error is a *ConflictError.
	ErrConflict = errors.New("mongostore: conflict")
	// ErrExists is returned when a first commit meets an execution that is already
	// there. The error is a *ConflictError and matches ErrConflict too.
	ErrExists = errors.New("mongostore: exists")
	// ErrUnknownOutcome is returned when the server could not be asked in time
	// whether a write landed. Call Commit again with the same value and changes: it
	// goes on from there and lands at most once.
	ErrUnknownOutcome = errors.New("mongostore: unknown outcome")
	// ErrTooLarge is returned when a document would pass the server's limit of
	// 16 MiB. Nothing was written.
	ErrTooLarge = errors.New("mongostore: too large")
	// ErrLeaseLost is returned when the lease named by a token is not held any more.
	// The error is a *LeaseLostError.
	ErrLeaseLost = errors.New("mongostore: lease lost")
	// ErrInvalid is returned for input that can never succeed, before anything is
	// written. The error is a *ValidationError.
	ErrInvalid = errors.New("mongostore: invalid")
	// ErrDamaged is returned for a stored document that cannot be read as an
	// execution. The error is a *DamagedError.
	ErrDamaged = errors.New("mongostore: damaged")
)

// ConflictError says that the stored version was not the expected one. It
// matches ErrConflict; ErrExists too when Expected is 0 and something is stored;
// ErrNotFound too when Actual is 0, because the execution is gone.
type ConflictError struct {
	// ExecutionID is the execution that was not written.
	ExecutionID string
	// Expected is the version that the caller had loaded, 0 for a first commit.
	Expected int64
	// Actual is the version found, 0 if the execution is gone.
	Actual int64
	// Own says that an earlier Commit of this same value, with other contents, did
	// land after its outcome had been unknown. Load again to see what it stored.
	Own bool
}

// Error tells the id and both versions.
func (e *ConflictError) Error() string {
	if e.Is(ErrExists) {
		return fmt.Sprintf("mongostore: execution %s exists already, at version %d", quoted(e.ExecutionID), e.Actual)
	}
	found := "none"
	if e.Actual != 0 {
		found = "version " + strconv.FormatInt(e.Actual, 10)
	}
	own := ""
	if e.Own {
		own = " (an earlier commit of this value, with other contents, has landed)"
	}
	return fmt.Sprintf("mongostore: conflict on execution %s: expected version %d, found %s%s", quoted(e.ExecutionID), e.Expected, found, own)
}

// Is matches the sentinels that the facts stand for.
func (e *ConflictError) Is(target error) bool {
	switch target {
	case ErrConflict:
		return true
	case ErrExists:
		return e.Expected == 0 && e.Actual != 0 && !e.Own
	case ErrNotFound:
		return e.Actual == 0
	}
	return false
}

// LeaseLostError names what was claimed by somebody else, or freed, before this
// call. It matches ErrLeaseLost. Nothing of what it names was changed.
type LeaseLostError struct {
	// IDs are the executions.
	IDs []string
}

// Error lists the ids.
func (e *LeaseLostError) Error() string {
	return "mongostore: lease lost: " + strings.Join(e.IDs, ", ")
}

// Is matches ErrLeaseLost.
func (e *LeaseLostError) Is(target error) bool { return target == ErrLeaseLost }

// ValidationError names the input that was refused, before anything was written.
// It matches ErrInvalid.
type ValidationError struct {
	// Field is the name of the argument or field, such as "Changes.Timers[1].FireAt".
	Field string
	// Reason says what is wrong with it.
	Reason string

	cause error
}

// Error tells field and reason.
func (e *ValidationError) Error() string {
	return "mongostore: invalid " + e.Field + ": " + e.Reason
}

// Is matches ErrInvalid.
func (e *ValidationError) Is(target error) bool { return target == ErrInvalid }

// Unwrap gives the error of the codec or the BSON encoder, if one was the reason.
func (e *ValidationError) Unwrap() error { return e.cause }

// DamagedError names a stored document that cannot be read, and the field that
// is in the way. It matches ErrDamaged. The document is left as it is.
type DamagedError struct {
	// ExecutionID is the document's _id.
	ExecutionID string
	// Field is the path inside the document, such as "outbox.seq".
	Field string
	// Reason says what was found there.
	Reason string

	cause error
}

// Error tells id, field and reason.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("mongostore: damaged execution %s: %s: %s", quoted(e.ExecutionID), e.Field, e.Reason)
}

// Is matches ErrDamaged.
func (e *DamagedError) Is(target error) bool { return target == ErrDamaged }

// Unwrap gives the error of the decoder, if one was the reason.
func (e *DamagedError) Unwrap() error { return e.cause }

// unknownError is an ErrUnknownOutcome with its reasons. Final means that asking
// again cannot tell any more: the slot that would is overwritten, or gone.
type unknownError struct {
	id    string
	final bool
	cause error
	ended error
}

func (e *unknownError) Error() string {
	msg := fmt.Sprintf("mongostore: unknown outcome of a write to execution %s", quoted(e.id))
	if e.cause != nil {
		msg += ": " + e.cause.Error()
	}
	return msg
}

func (e *unknownError) Is(target error) bool { return target == ErrUnknownOutcome }

func (e *unknownError) Unwrap() []error {
	var out []error
	for _, err := range []error{e.cause, e.ended} {
		if err != nil {
			out = append(out, err)
		}
	}
	return out
}

// quoted is an id for a message; of a very long one the beginning.
func quoted(id string) string {
	const most = 256
	if len(id) > most {
		return strconv.Quote(id[:most]) + fmt.Sprintf("... (%d bytes)", len(id))
	}
	return strconv.Quote(id)
}

func invalid(field, reason string) error { return &ValidationError{Field: field, Reason: reason} }

// opError is the driver's error with the operation and the id, and with the
// sentinel that it stands for, if any.
type opError struct {
	op, id   string
	sentinel error
	cause    error
}

func (e *opError) Error() string {
	msg := "mongostore: " + e.op
	if e.id != "" {
		msg += " " + quoted(e.id)
	}
	if e.sentinel != nil {
		msg += ": " + strings.TrimPrefix(e.sentinel.Error(), "mongostore: ")
	}
	if e.cause != nil {
		msg += ": " + e.cause.Error()
	}
	return msg
}

func (e *opError) Is(target error) bool { return e.sentinel != nil && target == e.sentinel }
func (e *opError) Unwrap() error        { return e.cause }

// wrapErr is the one place where a driver's error becomes the store's: codes,
// never texts; the driver's error stays inside, labels and all.
func wrapErr(op, id string, err error) error {
	if err == nil {
		return nil
	}
	if isFinal(err) || errors.As(err, new(*opError)) {
		return err
	}
	wrapped := &opError{op: op, id: id, cause: err}
	if mongoerr.HasCode(err, mongoerr.ObjectTooLarge, mongoerr.UpdateTooLarge) {
		wrapped.sentinel = ErrTooLarge
	}
	return wrapped
}

func tooLarge(op, id string, bytes int) error {
	cause := fmt.Errorf("%d bytes, one document holds %d; Inspect shows what is in it", bytes, maxDocument)
	return &opError{op: op, id: id, sentinel: ErrTooLarge, cause: cause}
}

// isOpen reports whether a write that ended with err may have landed, or may yet.
func isOpen(err error) bool { return !isFinal(err) && mongoerr.IsOpen(err) }

// isFinal reports whether err is a verdict of the store itself.
func isFinal(err error) bool {
	for _, sentinel := range []error{ErrConflict, ErrUnknownOutcome, ErrTooLarge, ErrLeaseLost, ErrInvalid, ErrDamaged} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}
