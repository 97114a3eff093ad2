package mongotest

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongod"
)

// Options says what private cluster [Start] makes.
type Options struct {
	ReplicaSet bool
	Nodes      int      // 0: 1; more only in a replica set
	CacheGB    float64  // WiredTiger cache of each; 0: 0.25
	Args       []string // more arguments for each mongod
}

// Cluster is a standalone or a replica set of mongod processes that one test
// has to itself: its nodes may be killed, restarted and paused. It ends with
// the test.
type Cluster struct {
	tb    testing.TB
	opts  Options
	nodes []*Node
}

// Node is one mongod of a [Cluster]. What cannot be done fails the test.
type Node struct {
	c *Cluster
	p *mongod.Process
}

// Start starts a private cluster and waits until it takes writes. A machine
// whose servers come from Docker or a URI alone has no mongod to kill: there
// the test is skipped, saying so.
func Start(tb testing.TB, opts Options) *Cluster {
	tb.Helper()
	binary := HaveMongod(tb)
	if opts.Nodes == 0 {
		opts.Nodes = 1
	}
	require.True(tb, opts.ReplicaSet || opts.Nodes == 1, "more than one node makes a replica set")
	cfg := mongod.Config{Binary: binary, CacheGB: opts.CacheGB, Args: opts.Args}
	if opts.ReplicaSet {
		cfg.ReplicaSet = mongod.SetName
	}
	c := &Cluster{tb: tb, opts: opts, nodes: make([]*Node, opts.Nodes)}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	errs := make([]error, opts.Nodes)
	var wg sync.WaitGroup
	for i := range c.nodes {
		wg.Go(func() {
			var p *mongod.Process
			p, errs[i] = mongod.Start(ctx, cfg)
			c.nodes[i] = &Node{c, p}
		})
	}
	wg.Wait()
	tb.Cleanup(c.stop)
	require.NoError(tb, errors.Join(errs...))
	if opts.ReplicaSet {
		require.NoError(tb, mongod.Initiate(ctx, c.processes()...))
	}
	return c
}

// HaveMongod returns the path of a mongod that can be run here, fetched if need
// be. It skips the test, saying so, where [Start] does.
func HaveMongod(tb testing.TB) string {
	tb.Helper()
	rungs, err := allowedRungs()
	require.NoError(tb, err)
	var reasons []string
	for _, r := range rungs {
		if r.binary == nil {
			continue
		}
		binary, err := r.binary(context.Background())
		if err == nil {
			return binary
		}
		reasons = append(reasons, err.Error())
	}
	if elsewhere(rungs) {
		tb.Skip("left out: this test needs mongod processes of its own to kill and pause, and the servers here come from Docker or a URI")
	}
	tb.Fatal(noServer(reasons))
	return ""
}

// elsewhere says whether the shared servers come from a URI or Docker.
func elsewhere(rungs []rung) bool {
	for _, r := range rungs {
		if r.name == "uri" && os.Getenv(EnvURI) != "" || r.name == "docker" && dockerAnswers(context.Background()) {
			return true
		}
	}
	return false
}

func (c *Cluster) processes() []*mongod.Process {
	processes := make([]*mongod.Process, len(c.nodes))
	for i, n := range c.nodes {
		processes[i] = n.p
	}
	return processes
}

// AtEnd looks at every server that this process has started, before it is stopped; its
// error fails the test, or the run. Nil: nobody looks.
var AtEnd func(uri string) error

func (c *Cluster) stop() {
	alone := len(c.nodes) == 1 // else the members keep cursors open on one another
	if AtEnd != nil && alone && !slices.ContainsFunc(c.nodes, func(n *Node) bool { return n == nil || n.p == nil }) {
		if err := AtEnd(c.URI()); err != nil {
			c.tb.Errorf("at the end of the test: %v", err)
		}
	}
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		if n.p != nil {
			wg.Go(n.p.Stop)
		}
	}
	wg.Wait()
}

// URI returns a connection string for the whole cluster.
func (c *Cluster) URI() string {
	if c.opts.ReplicaSet {
		return mongod.SetURI(c.processes()...)
	}
	return c.nodes[0].URI()
}

// Client returns a client for the whole cluster, opts applied over its URI in
// order. It is disconnected when the test ends.
func (c *Cluster) Client(opts ...*options.ClientOptions) *mongo.Client {
	c.tb.Helper()
	return Connect(c.tb, c.URI(), opts...)
}

// Node returns the node of index i.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// Nodes returns all nodes.
func (c *Cluster) Nodes() []*Node { return append([]*Node(nil), c.nodes...) }

// Primary returns the node that says it is the primary, once there is one; of a
// standalone, the node.
func (c *Cluster) Primary() *Node {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	i, err := mongod.WaitPrimary(ctx, c.processes()...)
	require.NoError(c.tb, err)
	return c.nodes[i]
}

// Addr returns host:port. It stays the same over Kill and Restart.
func (n *Node) Addr() string { return n.p.Addr() }

// URI returns a connection string for a direct connection to this node.
func (n *Node) URI() string { return n.p.URI() }

// Client returns a client on a direct connection to this node, opts applied
// over its URI in order. It is disconnected when the test ends.
func (n *Node) Client(opts ...*options.ClientOptions) *mongo.Client {
	n.c.tb.Helper()
	return Connect(n.c.tb, n.URI(), opts...)
}

// Kill ends the node with SIGKILL and returns when it is gone.
func (n *Node) Kill() {
	n.c.tb.Helper()
	require.NoError(n.c.tb, n.p.Kill())
}

// Restart starts the node again, killed before or not, on its port and data,
// and returns when it answers; one that is its whole cluster, when it takes
// writes.
func (n *Node) Restart() {
	n.c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	require.NoError(n.c.tb, n.p.Restart(ctx))
	if len(n.c.nodes) == 1 {
		require.NoError(n.c.tb, mongod.WaitWritable(ctx, n.URI()))
	}
}

// Pause stops the node with SIGSTOP: its connections stay open, nothing
// answers.
func (n *Node) Pause() {
	n.c.tb.Helper()
	require.NoError(n.c.tb, n.p.Pause())
}

// Resume lets a paused node go on, with SIGCONT.
func (n *Node) Resume() {
	n.c.tb.Helper()
	require.NoError(n.c.tb, n.p.Resume())
}

// Log returns what the node has written to its log.
func (n *Node) Log() string {
	n.c.tb.Helper()
	log, err := n.p.Log()
	require.NoError(n.c.tb, err)
	return log
}
