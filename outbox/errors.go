package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/indexes"
	"github.com/execstore/mongostore/internal/mongoerr"
)

// The errors that only this package has. All others are those of the root package:
// mongostore.ErrInvalid, ErrLeaseLost, ErrTooLarge, ErrUnknownOutcome, with their types.
var (
	// ErrNoTransactions is returned on a standalone server. Nothing was created.
	ErrNoTransactions = errors.New("outbox: the server has no transactions, use a replica set")
	// ErrOutsideTransaction is returned where a write must be part of the caller's
	// transaction and there is none: no session in ctx, or one whose transaction was not
	// started, or has ended.
	ErrOutsideTransaction = errors.New("outbox: no started transaction in ctx, use Store.Transaction")
)

const codeIllegalOperation = 20 // "Transaction numbers are only allowed on a replica set member or mongos"

func invalid(field, reason string) error {
	return &mongostore.ValidationError{Field: field, Reason: reason}
}

// at makes the field of a part's error that of the whole.
func at(whole string, err error) error {
	var v *mongostore.ValidationError
	if errors.As(err, &v) {
		v.Field = whole + v.Field
	}
	return err
}

// tooLargeError is invalid input that is also ErrTooLarge.
type tooLargeError struct{ *mongostore.ValidationError }

func (e tooLargeError) Is(target error) bool {
	return target == mongostore.ErrTooLarge || e.ValidationError.Is(target)
}

func (e tooLargeError) Unwrap() error { return e.ValidationError }

func tooLarge(field string, bytes int) error {
	return tooLargeError{&mongostore.ValidationError{
		Field: field, Reason: fmt.Sprintf("makes a document of %d bytes, %d are allowed", bytes, maxEvent),
	}}
}

func leaseLost(ids ...string) error { return &mongostore.LeaseLostError{IDs: ids} }

// wrapErr is the one place where a driver's error becomes this package's: codes, never
// texts; the driver's error stays inside, labels and all.
func wrapErr(op string, err error) error {
	var mismatch *indexes.Mismatch
	switch {
	case err == nil:
		return nil
	case errors.As(err, &mismatch):
		return invalid(mismatch.Name, mismatch.Reason)
	case isVerdict(err), errors.As(err, new(*opError)):
		return err
	case mongoerr.HasCode(err, mongoerr.ObjectTooLarge, mongoerr.UpdateTooLarge):
		return fmt.Errorf("outbox: %s: %w: %w", op, mongostore.ErrTooLarge, err)
	case mongoerr.HasCode(err, codeIllegalOperation):
		return fmt.Errorf("%w (%s: %w)", ErrNoTransactions, op, err)
	}
	return &opError{op: op, cause: err}
}

// opError is the driver's error with the operation.
type opError struct {
	op    string
	cause error
}

func (e *opError) Error() string { return "outbox: " + e.op + ": " + e.cause.Error() }
func (e *opError) Unwrap() error { return e.cause }

// isVerdict reports whether err is one of this package's own.
func isVerdict(err error) bool {
	for _, sentinel := range []error{
		ErrNoTransactions, ErrOutsideTransaction,
		mongostore.ErrInvalid, mongostore.ErrLeaseLost, mongostore.ErrUnknownOutcome, mongostore.ErrTooLarge,
	} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

func unknownOutcome(op string, cause, ended error) error {
	err := fmt.Errorf("outbox: %s: %w: %w", op, mongostore.ErrUnknownOutcome, cause)
	if ended != nil && !errors.Is(cause, ended) {
		return fmt.Errorf("%w (%w)", err, ended)
	}
	return err
}

// isOpen reports whether a write that ended with err may have landed, or may yet.
func isOpen(err error) bool {
	return err != nil && (mongoerr.IsOpen(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
}
