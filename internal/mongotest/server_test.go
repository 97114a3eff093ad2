package mongotest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestMain(m *testing.M) { Main(m) }

func TestDatabaseIsTheTestsOwnAndDropped(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) *Server{"Standalone": Standalone, "ReplicaSet": ReplicaSet} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var names []string
			s := server(t)
			t.Run("Inner", func(t *testing.T) {
				for range 2 {
					client, db := s.Database(t)
					_, err := client.Database(db).Collection("c").InsertOne(t.Context(), bson.D{})
					require.NoError(t, err)
					names = append(names, db)
				}
			})
			require.NotEqual(t, names[0], names[1])
			left, err := s.Client(t).ListDatabaseNames(t.Context(), bson.D{})
			require.NoError(t, err)
			for _, db := range names {
				require.NotContains(t, left, db)
			}
		})
	}
}

func TestReplicaSetHasTransactions(t *testing.T) {
	t.Parallel()
	client, db := ReplicaSet(t).Database(t)
	session, err := client.StartSession()
	require.NoError(t, err)
	defer session.EndSession(t.Context())
	require.NoError(t, session.StartTransaction())
	ctx := mongo.NewSessionContext(t.Context(), session)
	_, err = client.Database(db).Collection("c").InsertOne(ctx, bson.D{})
	require.NoError(t, err)
	require.NoError(t, session.CommitTransaction(ctx))
}

func TestCommandsLeaveHousekeepingOut(t *testing.T) {
	t.Parallel()
	var rec Commands
	server := Standalone(t)
	_, db := server.Database(t)
	client := server.Client(t, options.Client().SetMonitor(rec.Monitor()))
	_, err := client.Database(db).Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, err)
	_, err = client.Database(db).Collection("c").UpdateOne(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}})
	require.NoError(t, err)
	require.Equal(t, []string{"insert", "update"}, rec.Names())
	require.Equal(t, db, rec.Commands()[0].Database)
	rec.Reset()
	require.Empty(t, rec.Names())
}
