package mongotest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

func journaled(client *mongo.Client) *mongo.Collection {
	return client.Database("d", options.Database().SetWriteConcern(writeconcern.Journaled())).Collection("c")
}

// soon bounds what could otherwise wait for ever for a server that is gone.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestKilledNodeComesBackWithItsData(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{"Standalone": {}, "SetOfOne": {ReplicaSet: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := Start(t, opts)
			node := cluster.Node(0)
			c := journaled(cluster.Client())
			_, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
			require.NoError(t, err)
			addr := node.Addr()
			node.Kill()
			node.Kill() // once more does no harm
			node.Restart()
			require.Equal(t, addr, node.Addr())
			require.Same(t, node, cluster.Primary())
			n, err := c.CountDocuments(t.Context(), bson.D{})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.Contains(t, node.Log(), "Waiting for connections")
		})
	}
}

func TestSetOfThreeElectsAnotherPrimary(t *testing.T) {
	t.Parallel()
	cluster := Start(t, Options{ReplicaSet: true, Nodes: 3})
	require.Len(t, cluster.Nodes(), 3)
	ctx := soon(t)
	c := cluster.Client().Database("d", options.Database().SetWriteConcern(writeconcern.Majority())).Collection("c")
	_, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, err)

	first := cluster.Primary()
	first.Kill()
	_, err = c.InsertOne(ctx, bson.D{{Key: "_id", Value: 2}})
	require.NoError(t, err)
	require.NotSame(t, first, cluster.Primary())

	first.Restart()
	_, err = c.Database().Collection("c", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 3})).InsertOne(ctx, bson.D{{Key: "_id", Value: 3}})
	require.NoError(t, err, "the old primary catches up")
	n, err := first.Client(options.Client().SetReadPreference(readpref.Nearest())).Database("d").Collection("c").CountDocuments(ctx, bson.D{})
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
}

func TestPausedNodeKeepsItsConnectionsAndAnswersLater(t *testing.T) {
	t.Parallel()
	cluster := Start(t, Options{})
	c := journaled(cluster.Client())
	_, err := c.InsertOne(t.Context(), bson.D{})
	require.NoError(t, err)
	cluster.Node(0).Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.InsertOne(ctx, bson.D{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cluster.Node(0).Resume()
	_, err = c.InsertOne(t.Context(), bson.D{})
	require.NoError(t, err)
}

func TestFailCommand(t *testing.T) {
	t.Parallel()
	client := Start(t, Options{ReplicaSet: true}).Client(options.Client().SetRetryWrites(false))
	c := journaled(client)
	insert := func(id int) error {
		_, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
		return err
	}
	stored := func(id int) bool {
		n, err := c.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: id}})
		require.NoError(t, err)
		return n == 1
	}
	inserts := []string{"insert"}

	FailCommand(t, client, FailPoint{Commands: inserts, Times: 1, ErrorCode: 11602})
	var failed mongo.CommandError
	require.ErrorAs(t, insert(1), &failed)
	require.EqualValues(t, 11602, failed.Code)
	require.False(t, stored(1))
	require.NoError(t, insert(2))

	FailCommand(t, client, FailPoint{Commands: inserts, Times: 1, CloseConnection: true})
	require.True(t, mongo.IsNetworkError(insert(3)))
	require.False(t, stored(3))

	FailCommand(t, client, FailPoint{Commands: inserts, Times: 1,
		WriteConcernError: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "waiting for replication timed out"}}})
	var written mongo.WriteException
	require.ErrorAs(t, insert(4), &written)
	require.EqualValues(t, 64, written.WriteConcernError.Code)
	require.True(t, stored(4), "a write concern error comes after the write")

	clear := FailCommand(t, client, FailPoint{Commands: inserts, Block: 100 * time.Millisecond})
	start := time.Now()
	require.NoError(t, insert(5))
	require.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond)
	clear()

	FailCommand(t, client, FailPoint{Commands: inserts, AppName: "another", ErrorCode: 11602})
	require.NoError(t, insert(6))
}
