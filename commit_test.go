package mongostore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

func TestAValueFromElsewhereStillConflicts(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	o := loadedOrder(t, s, "o")
	_, err := s.Commit(t.Context(), o, mongostore.Changes{})
	require.NoError(t, err)

	decoded := &order{Header: mongostore.Header{ID: "o", Version: 1}}
	_, err = s.Commit(t.Context(), decoded, mongostore.Changes{})
	var conflict *mongostore.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, mongostore.ConflictError{ExecutionID: "o", Expected: 1, Actual: 2}, *conflict)
	require.EqualValues(t, 1, decoded.Version)
}

// An execution that was deleted and made again is another one, even at the same
// version: a value of the old one must not overwrite it.
func TestAnOldIncarnationConflicts(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	old := loadedOrder(t, s, "o")
	require.NoError(t, s.Delete(t.Context(), "o", 1))
	again := newOrder("o")
	again.Total = 7
	_, err := s.Commit(t.Context(), again, mongostore.Changes{})
	require.NoError(t, err)

	_, err = s.Commit(t.Context(), old, mongostore.Changes{})
	require.ErrorIs(t, err, mongostore.ErrConflict)
	require.NotErrorIs(t, err, mongostore.ErrUnknownOutcome)
	var found order
	require.NoError(t, s.Load(t.Context(), "o", &found))
	require.Equal(t, 7, found.Total)
}
