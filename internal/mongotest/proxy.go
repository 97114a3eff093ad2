package mongotest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Proxy is a TCP proxy before one server that understands the framing of the
// wire protocol, so that single commands and replies can be lost, delayed and
// held. Its settings may be changed at any time, from any goroutine. It ends
// with its test.
type Proxy struct {
	tb       testing.TB
	target   string
	listener net.Listener
	done     chan struct{} // closed at the end
	wg       sync.WaitGroup

	onRequest    atomic.Pointer[Hook]
	onReply      atomic.Pointer[Hook]
	housekeeping atomic.Bool
	refuse       atomic.Bool

	mu       sync.Mutex
	conns    map[*proxyConn]struct{}
	accepted int
	seen     map[string]int // commands by name
	requests Counts
	replies  Counts
}

// NewProxy starts a proxy before the server at addr, host:port.
func NewProxy(tb testing.TB, addr string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	p := &Proxy{
		tb: tb, target: addr, listener: listener, done: make(chan struct{}),
		conns: map[*proxyConn]struct{}{}, seen: map[string]int{},
	}
	p.wg.Go(p.accept)
	tb.Cleanup(func() {
		close(p.done)
		_ = listener.Close()
		p.CutAll()
		p.wg.Wait()
	})
	return p
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URI returns a connection string for a direct connection through the proxy.
// For a replica set as a whole see [Through].
func (p *Proxy) URI() string { return "mongodb://" + p.Addr() + "/?directConnection=true" }

// Through returns client options that reach the servers of these proxies
// through them, under the servers' own addresses: a driver that follows a
// replica set's member list stays behind the proxies.
func Through(proxies ...*Proxy) *options.ClientOptions {
	return options.Client().SetDialer(proxyDialer(proxies))
}

type proxyDialer []*Proxy

func (d proxyDialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	for _, p := range d {
		if p.target == addr {
			addr = p.Addr()
			break
		}
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, addr)
}

// OnRequest sets the hook for commands on their way to the server; nil: all
// pass.
func (p *Proxy) OnRequest(hook Hook) { setHook(&p.onRequest, hook) }

// OnReply sets the hook for replies on their way to the client; nil: all pass.
func (p *Proxy) OnReply(hook Hook) { setHook(&p.onReply, hook) }

func setHook(to *atomic.Pointer[Hook], hook Hook) {
	if hook == nil {
		to.Store(nil)
		return
	}
	to.Store(&hook)
}

// ShowHousekeeping says whether the hooks see the driver's own commands too
// (hello, ping, endSessions); else these pass.
func (p *Proxy) ShowHousekeeping(show bool) { p.housekeeping.Store(show) }

// Refuse says whether new connections are closed at once.
func (p *Proxy) Refuse(refuse bool) { p.refuse.Store(refuse) }

// CutAll closes all open connections on both sides. What they held is lost.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// Requests says what was done with commands.
func (p *Proxy) Requests() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// Replies says what was done with replies.
func (p *Proxy) Replies() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replies
}

// Seen returns how many commands of the name have come.
func (p *Proxy) Seen(command string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[command]
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed by the cleanup
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve runs one client's connection until it ends.
func (p *Proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	if p.refuse.Load() {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return // the server is down: the client sees it as a closed connection
	}
	c := &proxyConn{p: p, client: client, server: server, done: make(chan struct{}), pending: map[int32]*Message{}, repeated: map[int32]bool{}}
	defer c.close()
	if !p.register(c) {
		return
	}
	p.wg.Go(c.forwardReplies)
	c.forwardRequests()
	<-c.done // stays until the last reply that is still due
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// register adds c to those that CutAll closes. It reports false if the proxy
// has ended.
func (p *Proxy) register(c *proxyConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return false
	default:
	}
	p.accepted++
	c.number = p.accepted
	p.conns[c] = struct{}{}
	return true
}

// decide asks the hook about m and counts its answer.
func (p *Proxy) decide(hook *atomic.Pointer[Hook], counts *Counts, m *Message) Action {
	if isHousekeeping(m.Command) && !p.housekeeping.Load() {
		return Pass
	}
	action := Pass
	if h := hook.Load(); h != nil {
		action = (*h)(m)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	counts.add(action.kind)
	return action
}

// errCompressed tells a test that its URI asks for what a proxy cannot read.
var errCompressed = errors.New("mongotest: a compressed message; the proxy reads plain ones only, take the compressors out of the URI")
