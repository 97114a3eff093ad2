package mongotest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/execstore/mongostore/internal/mongod"
)

// Server is a running server that tests share. Safe for concurrent use.
type Server struct {
	uri  string
	from string // where it came from, for the user
	stop func() // nil: not ours

	mu     sync.Mutex
	client *mongo.Client // for Database
}

// shared holds the servers of this process, each started at its first use.
var shared = map[Topology]*slot{StandaloneServer: {}, ReplicaSetOfOne: {}}

type slot struct {
	mu     sync.Mutex
	server *Server
	err    error
}

// Standalone returns the standalone server that all tests of this process
// share. It fails the test if none is to be had.
func Standalone(tb testing.TB) *Server {
	tb.Helper()
	return sharedServer(tb, StandaloneServer)
}

// ReplicaSet returns the replica set of one that all tests of this process
// share. It fails the test if none is to be had.
func ReplicaSet(tb testing.TB) *Server {
	tb.Helper()
	return sharedServer(tb, ReplicaSetOfOne)
}

func sharedServer(tb testing.TB, topology Topology) *Server {
	tb.Helper()
	server, err := Shared(topology)
	if err != nil {
		tb.Fatal(err)
	}
	return server
}

// Shared returns what [Standalone] and [ReplicaSet] do, for a runnable example,
// which has no test to fail.
func Shared(topology Topology) (*Server, error) {
	s := shared[topology]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.err == nil {
		// no test's context: the server outlives them
		s.server, s.err = Open(context.Background(), topology, OpenOptions{})
	}
	return s.server, s.err
}

// lookAtEnd is AtEnd of the shared servers that are this process's own.
func lookAtEnd() error {
	var errs []error
	for _, s := range shared {
		s.mu.Lock()
		if AtEnd != nil && s.server != nil && s.server.stop != nil {
			errs = append(errs, AtEnd(s.server.uri))
		}
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// stopShared stops the shared servers. The next use starts them again.
func stopShared() {
	for _, s := range shared {
		s.mu.Lock()
		if s.server != nil {
			s.server.Stop()
			s.server = nil
		}
		s.mu.Unlock()
	}
}

// Stop ends the server, if it was started by this process, and its clients.
func (s *Server) Stop() {
	s.mu.Lock()
	client := s.client
	s.client = nil
	s.mu.Unlock()
	if client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = client.Disconnect(ctx) // nothing to be done about it any more
	}
	if s.stop != nil {
		s.stop()
	}
}

// URI returns the connection string.
func (s *Server) URI() string { return s.uri }

// Addr returns host:port of the server, for a [Proxy] before it; of a replica
// set, of its primary.
func (s *Server) Addr(tb testing.TB) string {
	tb.Helper()
	cs, err := connstring.Parse(s.uri)
	require.NoError(tb, err)
	if len(cs.Hosts) == 1 {
		return cs.Hosts[0]
	}
	client, err := s.sharedClient()
	require.NoError(tb, err)
	var hello struct{ Primary string }
	require.NoError(tb, client.Database("admin").RunCommand(tb.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello))
	return hello.Primary
}

// Client returns a client of the test's own, opts applied over the server's
// URI in order. It is disconnected when the test ends.
func (s *Server) Client(tb testing.TB, opts ...*options.ClientOptions) *mongo.Client {
	tb.Helper()
	return Connect(tb, s.uri, opts...)
}

// Connect returns a client for uri with opts applied over it in order. It is
// disconnected when the test ends.
func Connect(tb testing.TB, uri string, opts ...*options.ClientOptions) *mongo.Client {
	tb.Helper()
	client, err := mongo.Connect(append([]*options.ClientOptions{options.Client().ApplyURI(uri)}, opts...)...)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = client.Disconnect(ctx) // its server may be dead by then
	})
	return client
}

// Database returns a client, shared with other tests, and the name of a
// database that is the test's own and is dropped when it ends.
func (s *Server) Database(tb testing.TB) (*mongo.Client, string) {
	tb.Helper()
	client, err := s.sharedClient()
	require.NoError(tb, err)
	name := mongod.DatabaseName(tb.Name())
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := client.Database(name).Drop(ctx); err != nil {
			tb.Errorf("drop the test's database: %v", err)
		}
	})
	return client, name
}

func (s *Server) sharedClient() (*mongo.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	client, err := mongo.Connect(options.Client().ApplyURI(s.uri))
	if err != nil {
		return nil, err
	}
	s.client = client
	return client, nil
}
