package mongod

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// DatabaseName makes a database name out of a test's that no other test or
// process uses: at most 63 bytes, lower case because the server tells no case
// apart.
func DatabaseName(test string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	return fmt.Sprintf("t_%s_%012x", clean[:min(len(clean), 48)], rand.Uint64()>>16)
}
