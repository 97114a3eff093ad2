package mongostore

import "strings"

// Node paths become field names of the timers sub-document. A dot would be a path
// operator there, so it becomes U+FF0E, as harel writes it. What else would trip
// over MongoDB or over that rule is escaped by U+FF3C and a letter, so that
// decodePath(encodePath(p)) == p for every path:
//
//	.            U+FF0E
//	U+FF0E       U+FF3C d
//	U+FF3C       U+FF3C e
//	leading $    U+FF3C s
//	empty path   U+FF3C z
//
// Keys that harel wrote decode as harel means them: U+FF3C before anything else is
// itself. Escaping a look-alike that users may type is the lesson of several
// trackers.
const (
	dotKey    = "\uFF0E"
	escapeKey = "\uFF3C"
)

func encodePath(path string) string {
	if path == "" {
		return escapeKey + "z"
	}
	if !strings.ContainsAny(path, "."+dotKey+escapeKey) && path[0] != '$' {
		return path
	}
	if path[0] == '$' {
		return escapeKey + "s" + pathEncoder.Replace(path[1:])
	}
	return pathEncoder.Replace(path)
}

func decodePath(key string) string {
	if !strings.Contains(key, dotKey) && !strings.Contains(key, escapeKey) {
		return key
	}
	if key == escapeKey+"z" {
		return ""
	}
	if rest, ok := strings.CutPrefix(key, escapeKey+"s"); ok {
		return "$" + pathDecoder.Replace(rest)
	}
	return pathDecoder.Replace(key)
}

var (
	pathEncoder = strings.NewReplacer(escapeKey, escapeKey+"e", dotKey, escapeKey+"d", ".", dotKey)
	pathDecoder = strings.NewReplacer(escapeKey+"e", escapeKey, escapeKey+"d", dotKey, dotKey, ".")
)

// pathKeys are the field names that a timer of path may stand under: ours, and harel's
// where that is another.
func pathKeys(path string) []string {
	keys := []string{encodePath(path)}
	if other, ok := harelKey(path); ok {
		keys = append(keys, other)
	}
	return keys
}

// harelKey gives the field name that harel uses for path, where it is another than
// ours and means the same: such a timer is found, re-armed and cancelled too.
func harelKey(path string) (string, bool) {
	key := strings.ReplaceAll(path, ".", dotKey)
	positional := key == "$" || strings.HasPrefix(key, "$[")
	if key == "" || positional || key == encodePath(path) || decodePath(key) != path {
		return "", false
	}
	return key, true
}
