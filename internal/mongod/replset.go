package mongod

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// SetName is the name of the replica sets that this package makes.
const SetName = "rs0"

// Initiate makes processes, each started with Config.ReplicaSet SetName, one
// replica set, and waits until it has a primary and all others are in step
// with it, or until ctx ends. An election follows within about three seconds
// after a primary is gone.
func Initiate(ctx context.Context, processes ...*Process) error {
	hosts := make([]string, len(processes))
	for i, p := range processes {
		hosts[i] = p.addr
	}
	if err := InitiateAt(ctx, processes[0].URI(), hosts...); err != nil {
		return err
	}
	if _, err := WaitPrimary(ctx, processes...); err != nil {
		return err
	}
	for _, p := range processes {
		// one that still copies the data counts for no majority
		if err := WaitMember(ctx, p.URI()); err != nil {
			return err
		}
	}
	return nil
}

// InitiateAt makes hosts a replica set through the server at uri. The hosts
// are named as the members reach one another.
func InitiateAt(ctx context.Context, uri string, hosts ...string) error {
	members := bson.A{}
	for i, host := range hosts {
		members = append(members, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: host}})
	}
	initiate := bson.D{{Key: "replSetInitiate", Value: bson.D{
		{Key: "_id", Value: SetName},
		{Key: "members", Value: members},
		{Key: "settings", Value: bson.D{
			{Key: "electionTimeoutMillis", Value: 2000},
			{Key: "heartbeatIntervalMillis", Value: 200},
		}},
	}}}
	err := withClient(ctx, uri, func(client *mongo.Client) error {
		return client.Database("admin").RunCommand(ctx, initiate).Err()
	})
	if err != nil {
		return fmt.Errorf("initiate the replica set: %w", err)
	}
	return nil
}

// WaitPrimary returns the index of the process that is the primary, once there
// is one that says so.
func WaitPrimary(ctx context.Context, processes ...*Process) (int, error) {
	for {
		for i, p := range processes {
			p.mu.Lock()
			running := p.pid != 0
			p.mu.Unlock()
			if running && IsWritable(ctx, p.URI()) {
				return i, nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("no primary: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// WaitWritable returns when the server at uri, a direct connection, takes
// writes, or when ctx ends.
func WaitWritable(ctx context.Context, uri string) error {
	return waitHello(ctx, uri, "no primary", func(h Hello) bool { return h.Writable })
}

// WaitMember returns when the server at uri, a direct connection, is a primary
// or a secondary of its set, or when ctx ends.
func WaitMember(ctx context.Context, uri string) error {
	return waitHello(ctx, uri, "not in step with its set", func(h Hello) bool { return h.Writable || h.Secondary })
}

func waitHello(ctx context.Context, uri, failure string, is func(Hello) bool) error {
	for {
		hello, err := askSoon(ctx, uri)
		if err == nil && is(hello) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", failure, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// IsWritable says whether the server at uri, a direct connection, answers and
// takes writes: a standalone or a primary.
func IsWritable(ctx context.Context, uri string) bool {
	hello, err := askSoon(ctx, uri)
	return err == nil && hello.Writable
}

// askSoon asks a server that may be down or paused.
func askSoon(ctx context.Context, uri string) (Hello, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return AskHello(ctx, uri)
}

// Hello is the part of a server's answer to hello that tells its kind.
type Hello struct {
	Writable  bool   `bson:"isWritablePrimary"`
	Secondary bool   `bson:"secondary"`
	SetName   string `bson:"setName"`
	Msg       string `bson:"msg"` // "isdbgrid": a mongos
}

// AskHello asks the server at uri what it is.
func AskHello(ctx context.Context, uri string) (Hello, error) {
	var hello Hello
	err := withClient(ctx, uri, func(client *mongo.Client) error {
		return client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	})
	return hello, err
}

// SetURI returns a connection string for a replica set of processes.
func SetURI(processes ...*Process) string {
	hosts := make([]string, len(processes))
	for i, p := range processes {
		hosts[i] = p.addr
	}
	return "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=" + SetName
}
