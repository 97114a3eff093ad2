package mongostoretest_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/mongostoretest"
)

// A user has no mongotest.Main: nothing may be left that goleak finds.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serverGiven() bool {
	return os.Getenv(mongostoretest.EnvURI)+os.Getenv(mongostoretest.EnvRSURI) != ""
}

// haveMongod makes sure that there is a mongod to find, as mongotest does.
func haveMongod(t *testing.T) {
	t.Helper()
	if !serverGiven() {
		mongotest.HaveMongod(t)
	}
}

func TestDatabaseIsTheTestsOwnAndDropped(t *testing.T) {
	t.Parallel()
	haveMongod(t)
	var first string
	t.Run("Inner", func(t *testing.T) {
		client, db := mongostoretest.Database(t)
		_, err := client.Database(db).Collection("c").InsertOne(t.Context(), bson.D{})
		require.NoError(t, err)
		first = db
	})
	client, second := mongostoretest.Database(t)
	require.NotEqual(t, first, second)
	left, err := client.ListDatabaseNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.NotContains(t, left, first)
}

func TestDatabaseHasTransactionsWithoutAnySetting(t *testing.T) {
	t.Parallel()
	mongotest.HaveMongod(t)
	if serverGiven() {
		out, err := runAgain(t)
		require.NoError(t, err, out)
		return
	}
	client, db := mongostoretest.Database(t)
	var hello struct{ SetName string }
	require.NoError(t, client.Database(db).RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello))
	require.NotEmpty(t, hello.SetName)
}

func TestDatabaseSaysWhatToDoWhereThereIsNoServer(t *testing.T) {
	t.Parallel()
	if os.Getenv("PATH") == "" {
		mongostoretest.Database(t)
		return
	}
	out, err := runAgain(t, "PATH=", "HOME="+t.TempDir(), "XDG_CACHE_HOME=")
	require.Error(t, err)
	require.Contains(t, out, "--- FAIL")
	require.Contains(t, out, "install mongod")
	require.Contains(t, out, mongostoretest.EnvURI)
}

// runAgain runs this test in a process of its own, without a server given.
func runAgain(t *testing.T, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mongostoretest.EnvURI+"=", mongostoretest.EnvRSURI+"=")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
