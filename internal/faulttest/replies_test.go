//go:build faults

package faulttest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// lossy is a proxy that loses, delays, cuts and doubles what goes through it, at random.
type lossy struct {
	proxy *mongotest.Proxy
	mu    sync.Mutex
	rnd   *rand.Rand
}

func newLossy(t *testing.T, addr string, seed, stream uint64) *lossy {
	t.Helper()
	return &lossy{proxy: mongotest.NewProxy(t, addr), rnd: rand.New(rand.NewPCG(seed, stream))}
}

// weather is how many messages in ten thousand are struck, each way.
type weather struct {
	cut, strand, drop, delay, twice int // requests
	replyCut, replyDrop, replyDelay int
}

var (
	badWeather = weather{cut: 50, strand: 30, drop: 4, delay: 96, twice: 80, replyCut: 80, replyDrop: 4, replyDelay: 96}
	// worseWeather lets above all writes arrive after their client has gone.
	worseWeather = weather{cut: 50, strand: 150, drop: 20, delay: 50, twice: 30, replyCut: 200, replyDrop: 20, replyDelay: 80}
)

// start lets the weather begin.
func (l *lossy) start(w weather) {
	l.proxy.OnRequest(func(m *mongotest.Message) mongotest.Action {
		switch l.lot(w.cut, w.strand, w.drop, w.delay, w.twice) {
		case 0:
			return mongotest.Cut
		case 1:
			return mongotest.Strand(l.soon())
		case 2:
			return mongotest.Drop
		case 3:
			return l.delay()
		case 4:
			if !inTransaction(m) {
				return mongotest.Twice
			}
		}
		return mongotest.Pass
	})
	l.proxy.OnReply(func(*mongotest.Message) mongotest.Action {
		switch l.lot(w.replyCut, w.replyDrop, w.replyDelay) {
		case 0:
			return mongotest.Cut
		case 1:
			return mongotest.Drop
		case 2:
			return l.delay()
		}
		return mongotest.Pass
	})
}

// lot draws one of the chances, of so many in ten thousand each, or none.
func (l *lossy) lot(chances ...int) int {
	n := l.roll(10_000)
	for i, chance := range chances {
		if n -= chance; n < 0 {
			return i
		}
	}
	return -1
}

func (l *lossy) delay() mongotest.Action {
	return mongotest.Delay(time.Duration(l.roll(30)) * time.Millisecond)
}

func (l *lossy) stop() {
	l.proxy.OnRequest(nil)
	l.proxy.OnReply(nil)
}

func (l *lossy) struck() int64 { return struck(l.proxy) }

// struck is how often a proxy did something.
func struck(p *mongotest.Proxy) int64 {
	n := 0
	for _, c := range []mongotest.Counts{p.Requests(), p.Replies()} {
		n += c.Cut + c.Dropped + c.Delayed + c.Held + c.Stranded + c.Doubled
	}
	return int64(n)
}

func (l *lossy) roll(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rnd.IntN(n)
}

// soon is closed within a second.
func (l *lossy) soon() <-chan struct{} {
	release := make(chan struct{})
	time.AfterFunc(time.Duration(l.roll(1000))*time.Millisecond, func() { close(release) })
	return release
}

// inTransaction: what is sent twice inside of one is not done once, and no driver does so.
func inTransaction(m *mongotest.Message) bool {
	_, err := m.Request.LookupErr("autocommit")
	return err == nil
}

// briefly ends transactions that a request has opened which came after its abort: the
// server does so by itself after a minute.
var briefly = []string{"--setParameter", "transactionLifetimeLimitSeconds=3"}

// topologies are the servers of the faults on the wire; each test has its own.
var topologies = []struct {
	name string
	opts mongotest.Options
}{
	{"standalone", mongotest.Options{}},
	{"replica set of one", mongotest.Options{ReplicaSet: true, Args: briefly}},
}

// lossyClients are clients that each have a lossy proxy: a cut one makes the driver
// distrust the server, for all who share a client.
func lossyClients(t *testing.T, cluster *mongotest.Cluster, seed uint64, n int, opts ...*options.ClientOptions) (clients []*mongo.Client, proxies []*lossy) {
	t.Helper()
	for i := range n {
		l := newLossy(t, cluster.Node(0).Addr(), seed, uint64(100+i))
		through := append([]*options.ClientOptions{mongotest.Through(l.proxy), options.Client().SetServerSelectionTimeout(2 * time.Second)}, opts...)
		clients, proxies = append(clients, cluster.Client(through...)), append(proxies, l)
	}
	return clients, proxies
}

// TestRepliesAndRequestsAreLost runs both workloads, with and without the driver's own
// retries, while the network does what it likes.
func TestRepliesAndRequestsAreLost(t *testing.T) {
	t.Parallel()
	from := seed(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var finish []func()
	for _, topology := range topologies {
		cluster := mongotest.Start(t, topology.opts)
		for _, retries := range []bool{false, true} {
			r := row{Fault: fmt.Sprintf("replies lost, cut, late; requests lost, cut, late, twice; driver's retries %t", retries), Topology: topology.name}
			finish = append(finish, lossyCommits(ctx, t, cluster, from, retries, r))
			if topology.opts.ReplicaSet {
				finish = append(finish, lossyEvents(ctx, t, cluster, from, retries, r))
			}
		}
	}
	time.Sleep(duration(t))
	stop()
	for _, f := range finish {
		f()
	}
}

// lossyCommits starts the commits, and gives what ends and checks them.
func lossyCommits(ctx context.Context, t *testing.T, cluster *mongotest.Cluster, from uint64, retries bool, r row) (finish func()) {
	t.Helper()
	database := fmt.Sprintf("commits_%t", retries)
	clients, proxies := lossyClients(t, cluster, from, 6, options.Client().SetRetryWrites(retries))
	work := newCommits(8, &r)
	sound, err := mongostore.New(cluster.Client(), mongostore.Config{Database: database})
	require.NoError(t, err)
	require.NoError(t, sound.Setup(t.Context()))
	var workers sync.WaitGroup
	for i, client := range clients {
		store, err := mongostore.New(client, mongostore.Config{Database: database})
		require.NoError(t, err)
		proxies[i].start(badWeather)
		for w := range 4 {
			w += 4 * i
			workers.Go(func() { work.work(ctx, t, store, w, rand.New(rand.NewPCG(from, uint64(w)))) })
		}
	}
	return func() {
		workers.Wait()
		calm(&r, proxies)
		work.check(t, cluster.Client().Database(database))
		enter(t, &r)
	}
}

func lossyEvents(ctx context.Context, t *testing.T, cluster *mongotest.Cluster, from uint64, retries bool, r row) (finish func()) {
	t.Helper()
	database := fmt.Sprintf("events_%t", retries)
	clients, proxies := lossyClients(t, cluster, from, 6, options.Client().SetRetryWrites(retries))
	work := newEvents(20, &r)
	sound, err := outbox.New(cluster.Client(), outbox.Config{Database: database})
	require.NoError(t, err)
	require.NoError(t, sound.Setup(t.Context()))
	require.NoError(t, cluster.Client().Database(database).CreateCollection(t.Context(), "orders"))
	var workers sync.WaitGroup
	for i, client := range clients {
		store, err := outbox.New(client, outbox.Config{Database: database})
		require.NoError(t, err)
		orders := client.Database(database).Collection("orders")
		proxies[i].start(badWeather)
		rnd := rand.New(rand.NewPCG(from, uint64(i)))
		if i%2 == 0 {
			workers.Go(func() { work.publish(ctx, t, store, orders, i, rnd) })
		} else {
			workers.Go(func() { work.consume(ctx, t, store, rnd) })
		}
	}
	return func() {
		workers.Wait()
		calm(&r, proxies)
		work.check(t, sound, cluster.Client().Database(database))
		enter(t, &r)
	}
}

// calm ends the faults, and counts them.
func calm(r *row, proxies []*lossy) {
	for _, l := range proxies {
		l.stop()
		r.Injected += l.struck()
	}
}
