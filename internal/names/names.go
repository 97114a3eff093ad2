// Package names holds MongoDB's rules for names, counted in bytes. Reasons are
// worded to follow the name of the field that is refused.
package names

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Database says why MongoDB refuses the name of a database; empty: it does not. An
// empty name passes: it is for the caller to put a default in its place.
func Database(name string) (reason string) {
	const most = 63
	switch {
	case len(name) > most:
		return fmt.Sprintf("has %d bytes, MongoDB allows %d", len(name), most)
	case strings.ContainsAny(name, "/\\. \"$*<>:|?\x00"):
		return "holds a character that MongoDB refuses (one of /\\. \"$*<>:|? or NUL)"
	case !utf8.ValidString(name):
		return "is not UTF-8"
	}
	return ""
}

// Prefix says why MongoDB refuses collections in database whose names begin with
// prefix; empty: it does not. Longest is the longest of the names behind the prefix.
// An empty prefix is fine.
func Prefix(database, prefix, longest string) (reason string) {
	const most = 255
	namespace := database + "." + prefix + longest
	switch {
	case len(namespace) > most:
		return fmt.Sprintf("makes a namespace of %d bytes, MongoDB allows %d", len(namespace), most)
	case strings.ContainsAny(prefix, "$\x00"):
		return "holds $ or NUL, which MongoDB refuses"
	case strings.HasPrefix(prefix, ".") || strings.Contains(prefix, ".."):
		return "makes an empty part between dots, which MongoDB refuses"
	case strings.HasPrefix(prefix, "system."):
		return `starts with "system.", which is MongoDB's own`
	case !utf8.ValidString(prefix):
		return "is not UTF-8"
	}
	return ""
}

// Text is why a text cannot be stored or asked for; empty: it can.
func Text(s string) (reason string) {
	switch {
	case !utf8.ValidString(s):
		return "is not UTF-8"
	case strings.IndexByte(s, 0) >= 0:
		return "holds a NUL byte"
	}
	return ""
}
