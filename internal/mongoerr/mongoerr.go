// Package mongoerr tells what an error of the driver means for a write: which code
// the server gave, and whether the write may have landed. It reads codes and labels,
// never texts.
package mongoerr

import (
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Server codes that mean something to a store; HasCode asks for them.
const (
	BadValue        = 2     // a field cannot take what an update does to it
	Unauthorized    = 13    // the user lacks a right, or there is none
	TypeMismatch    = 14    // a field has another type than an update needs
	PathNotViable   = 28    // a field on the path of an update is no document
	NamespaceExists = 48    // the collection is there already
	IndexConflict   = 85    // an index with the name or the keys has other options
	IndexKeyClash   = 86    // an index with the name has other keys
	ObjectTooLarge  = 10334 // the document would pass 16 MiB
	UpdateTooLarge  = 17419 // the document would pass 16 MiB after an update
)

// openCodes are command errors after which the write may still have been applied,
// or may yet be: the server was interrupted, not asked to refuse.
var openCodes = []int{
	6, 7, 89, // host unreachable, not found, network timeout
	50, 262, // MaxTimeMSExpired, ExceededTimeLimit
	64, 91, // WriteConcernFailed, ShutdownInProgress
	189, 10107, 13435, 13436, // stepped down, not primary
	9001, 11600, 11601, 11602, // socket, interrupted
}

// HasCode reports whether the server answered with one of the codes, anywhere in
// err. It is false for nil and for an error that is not the server's.
func HasCode(err error, codes ...int) bool {
	var se mongo.ServerError
	return errors.As(err, &se) && slices.ContainsFunc(codes, se.HasErrorCode)
}

// IsOpen reports whether a write that ended with err may have landed, or may yet.
// It is false for nil, and true for an error that is not the driver's, such as the
// end of a context.
func IsOpen(err error) bool {
	if err == nil || NeverSent(err) {
		return false
	}
	var we mongo.WriteException
	if errors.As(err, &we) {
		return len(we.WriteErrors) == 0 || HasCode(err, openCodes...)
	}
	var bwe mongo.BulkWriteException
	if errors.As(err, &bwe) {
		return bwe.WriteConcernError != nil || HasCode(err, openCodes...)
	}
	var ce mongo.CommandError
	if errors.As(err, &ce) && ce.Code != 0 && !mongo.IsNetworkError(err) {
		return ce.HasErrorLabel("RetryableWriteError") || HasCode(err, openCodes...)
	}
	var marshal mongo.MarshalError
	var argument mongo.InvalidArgumentError
	return !errors.As(err, &marshal) && !errors.As(err, &argument)
}

// NeverSent reports whether no server was found to send the first attempt to; the
// driver returns the first attempt's error if a retry finds none. It is false for nil.
func NeverSent(err error) bool {
	var sel topology.ServerSelectionError
	return errors.As(err, &sel) || errors.Is(err, mongo.ErrClientDisconnected)
}
