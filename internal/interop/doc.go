// Package interop holds mongostore against harel, the Python system whose
// MongoDB documents it shares: same collections, same documents, both at once.
//
// [Execution] is an engine type that keeps every field of a harel execution
// through a Go round trip. The command in folder bridge serves a mongostore by
// JSON lines, and python/bridge_store.py makes an ExecutionStore of harel's out
// of it, so that harel's contracts for foreign stores and its own engine run on
// mongostore. python/harel_side.py serves harel's stores by the same lines.
//
// The tests need Python 3.11 or newer with venv and pip; scripts/interop-venv
// installs harel from PyPI into the user's cache, once. They can be left out by
// MONGOSTORE_TEST_WITHOUT=interop.
package interop
