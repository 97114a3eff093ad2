// Package outbox keeps events that were written in the user's own transaction, and
// delivers each to the handlers that subscribed to it.
package outbox
