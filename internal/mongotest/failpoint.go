package mongotest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// FailPoint is a failCommand fail point: what the server does to the next
// commands of these names.
type FailPoint struct {
	Commands []string
	Times    int    // how many; 0: all, until it is cleared
	AppName  string // of this client only; "": of all, other tests' included

	ErrorCode         int           // fails the command, which is not run
	ErrorLabels       []string      // on the error; nil: the server's own
	WriteConcernError bson.D        // runs the command and adds this to its reply
	CloseConnection   bool          // closes the connection, the command is not run
	Block             time.Duration // waits before the command is run
}

// FailCommand sets the fail point on the server that client reaches (of a
// replica set, the primary) and returns what clears it; the end of the test
// clears it too. A server has one failCommand at a time: on a shared server
// give AppName, and set it in one test only; [Start] gives a server without
// neighbours.
func FailCommand(tb testing.TB, client *mongo.Client, fp FailPoint) (clear func()) {
	tb.Helper()
	set := func(mode any, data bson.D) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return client.Database("admin").RunCommand(ctx, bson.D{
			{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: mode},
			{Key: "data", Value: data},
		}).Err()
	}
	var mode any = "alwaysOn"
	if fp.Times > 0 {
		mode = bson.D{{Key: "times", Value: fp.Times}}
	}
	require.NoError(tb, set(mode, fp.data()))
	clear = func() {
		if err := set("off", bson.D{}); err != nil {
			tb.Errorf("clear the fail point: %v", err)
		}
	}
	tb.Cleanup(clear)
	return clear
}

func (fp FailPoint) data() bson.D {
	data := bson.D{{Key: "failCommands", Value: fp.Commands}}
	add := func(given bool, key string, value any) {
		if given {
			data = append(data, bson.E{Key: key, Value: value})
		}
	}
	add(fp.AppName != "", "appName", fp.AppName)
	add(fp.ErrorCode != 0, "errorCode", fp.ErrorCode)
	add(fp.ErrorLabels != nil, "errorLabels", fp.ErrorLabels)
	add(fp.WriteConcernError != nil, "writeConcernError", fp.WriteConcernError)
	add(fp.CloseConnection, "closeConnection", true)
	add(fp.Block > 0, "blockConnection", true)
	add(fp.Block > 0, "blockTimeMS", fp.Block.Milliseconds())
	return data
}
