package mongostore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// order is the execution that most tests commit.
type order struct {
	mongostore.Header
	Total int `json:"total"`
}

func newOrder(id string) *order {
	return &order{Header: mongostore.Header{ID: id, DefinitionID: "order", Status: "NEW"}}
}

// topologies are the servers that a test runs on.
var topologies = map[string]func(testing.TB) *mongotest.Server{
	"standalone":  mongotest.Standalone,
	"replica set": mongotest.ReplicaSet,
}

// onEach runs test in parallel on a standalone and on a replica set of one.
func onEach(t *testing.T, test func(t *testing.T, server *mongotest.Server)) {
	for name, server := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server(t))
		})
	}
}

// newStore makes a store over client on a database, with indexes.
func newStore(t testing.TB, client *mongo.Client, database string, cfg mongostore.Config) *mongostore.Store {
	t.Helper()
	cfg.Database = database
	s, err := mongostore.New(client, cfg)
	require.NoError(t, err)
	require.NoError(t, s.Setup(t.Context()))
	return s
}

// everything is a commit with all there is.
func everything(eventID string) mongostore.Changes {
	return mongostore.Changes{
		Emits:     []mongostore.Emit{{TargetID: "bill-7", Event: map[string]any{"kind": "Billed"}}},
		Spawns:    []mongostore.Spawn{{ChildID: "child-" + eventID, RootPath: "Fork.A", Input: bson.D{{Key: "n", Value: 1}}}},
		Timers:    []mongostore.TimerOp{{Path: "Pay.Wait", FireAt: someTime}},
		Processed: eventID,
		Trace:     bson.D{{Key: "event_kind", Value: "Paid"}},
	}
}

var someTime = time.Unix(1_800_000_000, 0).UTC()

// noError is require.NoError for other goroutines than the test's own.
func noError(t *testing.T, err error, what string) bool {
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return err == nil
}
