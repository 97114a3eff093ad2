package mongostore_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

func TestAnUpdateWhoseFnChangesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	for _, id := range []string{"a", "b"} {
		_, err := s.Commit(t.Context(), newOrder(id), mongostore.Changes{})
		require.NoError(t, err)
	}
	for name, c := range map[string]struct {
		id     string
		change func(o *order)
	}{
		"the ID to another's":          {"a", func(o *order) { o.ID = "b" }},
		"the ID to a new one":          {"a", func(o *order) { o.ID = "new" }},
		"the Version":                  {"a", func(o *order) { o.Version++ }},
		"all of the Header":            {"a", func(o *order) { *o = *newOrder("a") }},
		"the ID of one that it makes":  {"new", func(o *order) { o.ID = "other" }},
		"the Version of one it makes":  {"new", func(o *order) { o.Version = 1 }},
		"the ID of one made to be b's": {"new", func(o *order) { o.ID = "b" }},
	} {
		runs := 0
		var o order
		_, err := s.Update(in20s(t), c.id, &o, mongostore.UpdateOptions{Create: true}, func(*mongostore.Changes) error {
			runs++
			c.change(&o)
			return nil
		})
		require.ErrorIs(t, err, mongostore.ErrInvalid, name)
		require.Equal(t, 1, runs, name)
	}
	page, err := s.List(t.Context(), mongostore.ListOptions{})
	require.NoError(t, err)
	require.Len(t, page.Items, 2)
	for _, item := range page.Items {
		require.EqualValues(t, 1, item.Version)
	}
}

func TestNothingFollowsTheLastVersion(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	_, err := client.Database(database).Collection("executions").InsertOne(t.Context(), bson.D{
		{Key: "_id", Value: "o"}, {Key: "version", Value: int64(math.MaxInt64)}, {Key: "data", Value: "{}"},
	})
	require.NoError(t, err)
	var o order
	require.NoError(t, s.Load(t.Context(), "o", &o))
	_, err = s.Commit(t.Context(), &o, mongostore.Changes{})
	require.ErrorIs(t, err, mongostore.ErrInvalid)
	require.NoError(t, s.Load(t.Context(), "o", &o), "it stands as it was")
	require.EqualValues(t, int64(math.MaxInt64), o.Version)
}

type withoutHeader struct{ mongostore.Header }

func (*withoutHeader) ExecutionHeader() *mongostore.Header { return nil }

func TestAnExecutionWithoutAHeader(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{})
	_, err := s.Commit(t.Context(), &withoutHeader{}, mongostore.Changes{})
	require.ErrorIs(t, err, mongostore.ErrInvalid)
	require.ErrorIs(t, s.Load(t.Context(), "o", &withoutHeader{}), mongostore.ErrInvalid)
	_, err = s.Update(t.Context(), "o", &withoutHeader{}, mongostore.UpdateOptions{Create: true}, func(*mongostore.Changes) error { return nil })
	require.ErrorIs(t, err, mongostore.ErrInvalid)
}

type stoppedClock struct{ at time.Time }

func (c stoppedClock) Now() time.Time { return c.at }

func TestAClockThatWasNeverSet(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	s := newStore(t, client, database, mongostore.Config{Clock: stoppedClock{}})
	_, err := s.Commit(t.Context(), newOrder("o"), everything("e"))
	var refused *mongostore.ValidationError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "Config.Clock", refused.Field)
	require.ErrorIs(t, s.Load(t.Context(), "o", &order{}), mongostore.ErrNotFound, "nothing was written")
}

// So many commits are on top that neither the document's memory of commits nor its
// dedupe window tells whether ours landed: to run fn again could apply it twice.
func TestAnUpdateWhoseEventMayBeForgottenDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	cfg := mongostore.Config{ProcessedMax: 1}
	b := newBehind(t, server, cfg)
	other := newStore(t, server.Client(t), b.executions.Database().Name(), cfg)
	_, err := other.Commit(t.Context(), newOrder("o"), mongostore.Changes{})
	require.NoError(t, err)
	var once sync.Once
	b.proxy.OnReply(func(m *mongotest.Message) mongotest.Action {
		action := mongotest.Pass
		if m.Command == "update" {
			once.Do(func() {
				action = mongotest.Cut
				for n := range 8 {
					var on order
					_, err := other.Update(context.Background(), "o", &on, mongostore.UpdateOptions{EventID: fmt.Sprint("other-", n)}, func(*mongostore.Changes) error { return nil })
					noError(t, err, "on top")
				}
			})
		}
		return action
	})
	runs := 0
	var o order
	_, err = b.store.Update(t.Context(), "o", &o, mongostore.UpdateOptions{EventID: "e"}, func(*mongostore.Changes) error {
		runs++
		o.Total++
		return nil
	})
	require.ErrorIs(t, err, mongostore.ErrUnknownOutcome)
	require.Equal(t, 1, runs)
	require.Equal(t, 1, b.load(t, "o").Total)
}
