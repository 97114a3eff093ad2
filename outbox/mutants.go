package outbox

import "github.com/execstore/mongostore/internal/mutant"

// The rules that a test build can break, to prove that the tests would notice.

func noSuspects() bool    { return mutant.On("outbox: no suspect mark") }
func noSecondLook() bool  { return mutant.On("outbox: no second look") }
func finishesFirst() bool { return mutant.On("outbox: finish before promote") }
