package mongod

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

func startOne(t *testing.T, cfg Config) *Process {
	t.Helper()
	t0 := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := Start(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	t.Log("started in", time.Since(t0))
	return p
}

func TestKilledProcessKeepsItsDataAndPort(t *testing.T) {
	t.Parallel()
	p := startOne(t, Config{})
	insert := func(id int) error {
		return p.withClient(t.Context(), func(c *mongo.Client) error {
			_, err := c.Database("d", options.Database().SetWriteConcern(writeconcern.Journaled())).Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
			return err
		})
	}
	require.NoError(t, insert(1))
	addr := p.Addr()
	require.NoError(t, p.Kill())
	t0 := time.Now()
	require.NoError(t, p.Restart(t.Context()))
	t.Log("restarted in", time.Since(t0))
	require.Equal(t, addr, p.Addr())
	require.True(t, mongo.IsDuplicateKeyError(insert(1)))
	t0 = time.Now()
	p.Stop()
	t.Log("stopped in", time.Since(t0))
	_, err := os.Stat(p.dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestReplicaSets(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		var ps []*Process
		for range n {
			ps = append(ps, startOne(t, Config{ReplicaSet: SetName}))
		}
		t0 := time.Now()
		require.NoError(t, Initiate(t.Context(), ps...))
		t.Log(n, "initiated in", time.Since(t0))
	}
}
