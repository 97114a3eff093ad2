package main

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// The topologies. The first two are one server, written to in two ways.
const (
	standalone   = "standalone"    // majority, journaled: the store's default
	standaloneW1 = "standalone-w1" // w:1
	replicaset   = "replicaset"    // one member; majority, journaled
)

var topologies = []string{standalone, standaloneW1, replicaset}

// cacheGB is the cache of each server.
const cacheGB = 4

// target is where a part runs: a server and the write concern of all sides.
type target struct {
	topology string
	uri      string
	client   *mongo.Client
	concern  *writeconcern.WriteConcern
}

func concernOf(topology string) *writeconcern.WriteConcern {
	if topology == standaloneW1 {
		return writeconcern.W1()
	}
	journal := true
	return &writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}
}

// openServer starts the server of a topology by the ladder of the tests.
func openServer(ctx context.Context, topology string) (*mongotest.Server, error) {
	kind := mongotest.StandaloneServer
	if topology == replicaset {
		kind = mongotest.ReplicaSetOfOne
	}
	return mongotest.Open(ctx, kind, mongotest.OpenOptions{CacheGB: cacheGB})
}

func newTarget(topology, uri string, opts ...*options.ClientOptions) (*target, error) {
	client, err := mongo.Connect(append([]*options.ClientOptions{options.Client().ApplyURI(uri)}, opts...)...)
	if err != nil {
		return nil, err
	}
	return &target{topology: topology, uri: uri, client: client, concern: concernOf(topology)}, nil
}

func (t *target) close() { _ = t.client.Disconnect(context.Background()) }

// fast is t by w:1, for what is prepared off the clock.
func (t *target) fast() *target {
	other := *t
	other.concern = writeconcern.W1()
	return &other
}

// database is a name of the run's own.
func (t *target) database(part string) string { return "mongostore_bench_" + part }

// store opens ours on a database and sets it up.
func (t *target) store(ctx context.Context, database string, cfg mongostore.Config) (*mongostore.Store, error) {
	cfg.Database, cfg.WriteConcern = database, t.concern
	s, err := mongostore.New(t.client, cfg)
	if err != nil {
		return nil, err
	}
	return s, s.Setup(ctx)
}

// raw is a collection with the write concern of the target and nothing else set.
func (t *target) raw(database, collection string) *mongo.Collection {
	return t.client.Database(database, options.Database().SetWriteConcern(t.concern)).Collection(collection)
}

func (t *target) drop(database string) {
	if err := t.client.Database(database).Drop(context.Background()); err != nil {
		fmt.Println("drop", database+":", err)
	}
}

func (t *target) version(ctx context.Context) string {
	var info struct{ Version string }
	if err := t.client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return "of unknown version: " + err.Error()
	}
	return info.Version
}
