//go:build faults

package faulttest_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongod"
	"github.com/execstore/mongostore/internal/mongotest"
)

// members is a replica set of three whose members know one another by the addresses of
// proxies, one before each, so that one of them can be cut off from the others. Clients
// go to the members themselves: they can reach both sides.
type members struct {
	*mongotest.Cluster
	proxies []*mongotest.Proxy
	real    map[string]string // address of a member by that of its proxy
}

// cutElection is how long a primary goes on that hears of nobody.
const cutElection = 6 * time.Second

func startMembers(t *testing.T) *members {
	t.Helper()
	plain := []string{"--networkMessageCompressors", "disabled"} // the proxies read what goes through
	m := &members{Cluster: mongotest.Start(t, mongotest.Options{ReplicaSet: true, Nodes: 3, Args: plain}), real: map[string]string{}}
	hosts := make([]string, 0, 3)
	for _, n := range m.Nodes() {
		p := mongotest.NewProxy(t, n.Addr())
		m.proxies, hosts, m.real[p.Addr()] = append(m.proxies, p), append(hosts, p.Addr()), n.Addr()
	}
	admin := m.Primary().Client().Database("admin")
	var reply struct{ Config bson.D }
	require.NoError(t, admin.RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply))
	force := bson.D{{Key: "replSetReconfig", Value: named(reply.Config, hosts)}, {Key: "force", Value: true}} // all at once
	require.NoError(t, admin.RunCommand(t.Context(), force).Err())
	m.settled(t)
	return m
}

// named is a configuration with other hosts, and the time of cutElection.
func named(config bson.D, hosts []string) bson.D {
	for i, e := range config {
		switch e.Key {
		case "version":
			config[i].Value = e.Value.(int32) + 1
		case "members":
			for n, member := range e.Value.(bson.A) {
				set(member.(bson.D), "host", hosts[n])
			}
		case "settings":
			set(e.Value.(bson.D), "electionTimeoutMillis", cutElection.Milliseconds())
		}
	}
	return config
}

func set(doc bson.D, key string, v any) {
	for i := range doc {
		if doc[i].Key == key {
			doc[i].Value = v
		}
	}
}

// settled waits until all members are in step.
func (m *members) settled(t *testing.T) {
	t.Helper()
	allInStep(t, m.Cluster)
}

func allInStep(t *testing.T, cluster *mongotest.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, n := range cluster.Nodes() {
		require.NoError(t, mongod.WaitMember(ctx, n.URI()))
	}
	cluster.Primary()
}

// index is the place of a node.
func (m *members) index(n *mongotest.Node) int {
	for i, other := range m.Nodes() {
		if other == n {
			return i
		}
	}
	return -1
}

// cut takes one member away from the others, both ways: nothing reaches it, and its own
// heartbeats and questions for votes do not arrive. heal brings it back.
func (m *members) cut(member int) (heal func()) {
	isIts := func(msg *mongotest.Message) bool {
		switch msg.Command {
		case "replSetHeartbeat":
			from, _ := msg.Request.Lookup("from").StringValueOK()
			return from == m.proxies[member].Addr()
		case "replSetRequestVotes":
			candidate, _ := msg.Request.Lookup("candidateIndex").AsInt64OK()
			return candidate == int64(member)
		}
		return false
	}
	for i, p := range m.proxies {
		hook := func(msg *mongotest.Message) mongotest.Action {
			if i == member || isIts(msg) {
				return mongotest.Cut
			}
			return mongotest.Pass
		}
		p.OnRequest(hook)
		p.OnReply(hook) // to what is under way
		if i == member {
			p.Refuse(true)
			p.CutAll()
		}
	}
	return func() {
		for _, p := range m.proxies {
			p.OnRequest(nil)
			p.OnReply(nil)
			p.Refuse(false)
		}
	}
}

// client follows the set, around the proxies.
func (m *members) client(t *testing.T, opts ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	var hosts []string
	for _, p := range m.proxies {
		hosts = append(hosts, p.Addr())
	}
	uri := fmt.Sprintf("mongodb://%s/?replicaSet=%s", strings.Join(hosts, ","), mongod.SetName)
	return mongotest.Connect(t, uri, append([]*options.ClientOptions{options.Client().SetDialer(around(m.real))}, opts...)...)
}

// around dials a member where its proxy is asked for.
type around map[string]string

func (a around) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialer net.Dialer
	if member, ok := a[addr]; ok {
		addr = member
	}
	return dialer.DialContext(ctx, network, addr)
}

// pinned is how a client reaches one member and knows no other, until it is pointed
// elsewhere: it believes whom it talks to.
type pinned struct {
	mu    sync.Mutex
	addr  string
	conns []net.Conn
}

func (p *pinned) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	p.mu.Lock()
	addr := p.addr
	p.mu.Unlock()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr != p.addr {
		_ = conn.Close() // pointed elsewhere meanwhile
		return nil, net.ErrClosed
	}
	p.conns = append(p.conns, conn)
	return conn, nil
}

// point lets the client talk to another member from now on.
func (p *pinned) point(n *mongotest.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addr == n.Addr() {
		return
	}
	p.addr = n.Addr()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *pinned) client(t *testing.T, opts ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	const uri = "mongodb://one.invalid/?directConnection=true"
	return mongotest.Connect(t, uri, append([]*options.ClientOptions{options.Client().SetDialer(p)}, opts...)...)
}
