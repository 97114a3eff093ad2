package mongostore

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore/internal/mutant"
)

// The rules that a test build can break, to prove that the tests would notice.

func matchesAnyVersion() bool  { return mutant.On("cas filter without version") }
func believesOldVersion() bool { return mutant.On("old version is final after a lost reply") }
func ignoresCommits() bool     { return mutant.On("no commits in the filter") }
func acksWithoutToken() bool   { return mutant.On("ack without token") }
func claimsUnread() bool       { return mutant.On("claim without read-back") }
func repeatsNumbers() bool     { return mutant.On("counter that repeats") }

// errOldVersion is what a store would say that takes the old version for an answer.
var errOldVersion = errors.New("the version has not moved")

// written is the write concern of every write.
func written(wc *writeconcern.WriteConcern) *writeconcern.WriteConcern {
	if mutant.On("w:1") {
		journal := false
		return &writeconcern.WriteConcern{W: 1, Journal: &journal}
	}
	return wc
}
