package mongostoretest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongod"
)

// The environment variables with the connection string of the server that
// [Database] uses; the first that is set counts.
const (
	EnvRSURI = "MONGOSTORE_TEST_RS_URI" // a replica set, where both kinds run
	EnvURI   = "MONGOSTORE_TEST_URI"
)

// Database returns a client and the name of a database that is the test's own.
// The database is dropped and the client disconnected when the test ends.
//
// The server is the one that MONGOSTORE_TEST_RS_URI or MONGOSTORE_TEST_URI
// names, whatever its kind. If neither is set it is a mongod on PATH, or in the cache that
// mongostore's own tests fill, started once a process as a replica set of one,
// so that transactions work; it and its data are gone when the process is,
// however that ends. If there is none either, the test fails with what to do:
// it is never skipped.
//
// Safe for tests that run in parallel.
func Database(tb testing.TB) (*mongo.Client, string) {
	tb.Helper()
	uri, err := serverURI()
	if err != nil {
		tb.Fatalf("mongostoretest: %v", err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		tb.Fatalf("mongostoretest: %v", err)
	}
	name := mongod.DatabaseName(tb.Name())
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := client.Database(name).Drop(ctx); err != nil {
			tb.Errorf("mongostoretest: drop the test's database: %v", err)
		}
		_ = client.Disconnect(ctx) // all there is to lose is gone already
	})
	return client, name
}

// errNone says what to do where there is no server.
var errNone = fmt.Errorf("no MongoDB to test on: install mongod (so that it is on PATH), or set %s to a running server, "+
	"for example one from Docker: docker run -p 27017:27017 mongo:6.0, %s=mongodb://127.0.0.1:27017", EnvURI, EnvURI)

// server is the replica set of this process, started at its first use.
var server struct {
	mu  sync.Mutex
	uri string
	err error
}

func serverURI() (string, error) {
	if uri := cmp.Or(os.Getenv(EnvRSURI), os.Getenv(EnvURI)); uri != "" {
		return uri, nil
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.uri == "" && server.err == nil {
		server.uri, server.err = startServer()
	}
	return server.uri, server.err
}

func startServer() (string, error) {
	if !mongod.Supported {
		return "", errNone
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := mongod.Start(ctx, mongod.Config{ReplicaSet: mongod.SetName})
	if errors.Is(err, mongod.ErrNotFound) {
		return "", errNone
	}
	if err != nil {
		return "", err
	}
	if err := mongod.Initiate(ctx, p); err != nil {
		p.Stop()
		return "", err
	}
	return mongod.SetURI(p), nil
}
