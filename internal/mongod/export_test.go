package mongod

// For tests in package mongod_test.
var (
	StartOn      = startOn
	ErrPortTaken = errPortTaken
)
