package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// killable is the client of a simulated process. Once it is dead no connection of it
// reads, writes, or can be made: for the server that is the death of a process, between
// any two commands or in the midst of one.
type killable struct {
	client *mongo.Client
	died   context.Context
	bury   context.CancelFunc

	mu       sync.Mutex
	conns    map[net.Conn]bool
	sessions map[string]bson.Raw // with an open transaction
	dead     bool
	fate     fate
	giveWays *atomic.Int64
}

// fate is when a killable dies: at the left-th command from now, of that name if it has
// one.
type fate struct {
	left    int // 0: it lives on
	command string
	moment  moment
	during  time.Duration
}

type moment int

const (
	beforeCommand moment = iota
	duringCommand
	afterCommand
)

// someFate dies at one of the next commands.
func someFate(rnd *rand.Rand, most int, commands ...string) fate {
	f := fate{left: 1 + rnd.IntN(most), moment: moment(rnd.IntN(3)), during: time.Duration(rnd.IntN(3000)) * time.Microsecond}
	if len(commands) > 0 {
		f.command = commands[rnd.IntN(len(commands))]
	}
	return f
}

var errKilled = errors.New("the process is dead")

// newKillable makes a client for uri. Who has it calls close.
func newKillable(tb testing.TB, uri string, giveWays *atomic.Int64) *killable {
	tb.Helper()
	k := &killable{conns: map[net.Conn]bool{}, sessions: map[string]bson.Raw{}, giveWays: giveWays}
	k.died, k.bury = context.WithCancel(context.Background())
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetDialer(k).SetMonitor(k.monitor()).
		SetServerSelectionTimeout(time.Second).SetMaxPoolSize(4).SetServerMonitoringMode("poll"))
	require.NoError(tb, err)
	k.client = client
	return k
}

// close lets go of what the driver keeps for a client, dead or not.
func (k *killable) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = k.client.Disconnect(ctx) // it may be dead
	k.bury()
}

// DialContext is options.ContextDialer.
func (k *killable) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		_ = conn.Close()
		return nil, errKilled
	}
	k.conns[conn] = true
	return &killableConn{Conn: conn, of: k}, nil
}

type killableConn struct {
	net.Conn
	of *killable
}

func (c *killableConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// kill ends it. Closed connections neither read nor write.
func (k *killable) kill() {
	k.mu.Lock()
	k.dead = true
	conns := k.conns
	k.conns = map[net.Conn]bool{}
	k.mu.Unlock()
	for conn := range conns {
		_ = conn.Close()
	}
	k.bury()
}

func (k *killable) isDead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dead
}

// arm sets its fate, over one that it has.
func (k *killable) arm(f fate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fate = f
}

// orphans are the sessions whose transactions its death has left open.
func (k *killable) orphans() bson.A {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all bson.A
	for _, lsid := range k.sessions {
		all = append(all, lsid)
	}
	return all
}

func (k *killable) monitor() *event.CommandMonitor {
	oneAttemptLess := append([]byte("attempts\x00"), bytes.Repeat([]byte{0xff}, 8)...)
	return &event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "update" && bytes.Contains(e.Command, oneAttemptLess) {
				k.giveWays.Add(1)
			}
			k.follow(e)
			k.moment(e.CommandName, false)
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { k.moment(e.CommandName, true) },
	}
}

// follow keeps which transactions are open.
func (k *killable) follow(e *event.CommandStartedEvent) {
	lsid, ok := e.Command.Lookup("lsid").DocumentOK()
	if !ok || e.Command.Lookup("autocommit").Type == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.Command.Lookup("startTransaction").Type != 0 {
		k.sessions[string(lsid)] = bson.Raw(bytes.Clone(lsid))
	}
}

// moment is one at which it may die.
func (k *killable) moment(command string, succeeded bool) {
	k.mu.Lock()
	f := &k.fate
	if f.left == 0 || succeeded != (f.moment == afterCommand) || f.command != "" && f.command != command {
		k.mu.Unlock()
		return
	}
	f.left--
	now := *f
	k.mu.Unlock()
	switch {
	case now.left > 0:
	case now.moment == duringCommand:
		time.AfterFunc(now.during, k.kill)
	default:
		k.kill()
	}
}
