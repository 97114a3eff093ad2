package mongotest

import (
	"net"
	"sync"
	"time"
)

// proxyConn is one client's connection through a proxy. Requests and replies
// have a goroutine each.
type proxyConn struct {
	p      *Proxy
	number int
	client net.Conn
	server net.Conn
	done   chan struct{} // closed when both sides are
	once   sync.Once

	mu         sync.Mutex
	pending    map[int32]*Message // unanswered, by the id their reply names
	repeated   map[int32]bool     // sent twice, the first answer is due
	clientGone bool
}

// close ends both sides.
func (c *proxyConn) close() {
	c.once.Do(func() {
		_ = c.client.Close()
		_ = c.server.Close()
		close(c.done)
	})
}

// leaveClient ends the client's side. The server's follows when nothing that
// was asked is unanswered: a server may give up on the command of a client
// that has gone.
func (c *proxyConn) leaveClient() {
	_ = c.client.Close()
	c.mu.Lock()
	c.clientGone = true
	c.mu.Unlock()
	c.closeIfIdle()
}

func (c *proxyConn) closeIfIdle() {
	c.mu.Lock()
	idle := c.clientGone
	for _, m := range c.pending {
		idle = idle && isHousekeeping(m.Command)
	}
	c.mu.Unlock()
	if idle {
		c.close()
	}
}

// forwardRequests runs the way from the client to the server.
func (c *proxyConn) forwardRequests() {
	for {
		f, err := readFrame(c.client)
		if err != nil {
			c.leaveClient()
			return
		}
		m, ok := c.request(f)
		if !ok {
			c.close()
			return
		}
		action := c.p.decide(&c.p.onRequest, &c.p.requests, m)
		switch action.kind {
		case cut:
			c.close()
			return
		case dropped:
			c.answered(f.requestID)
			continue
		case stranded:
			_ = c.client.Close()
		}
		if !c.wait(action) {
			return
		}
		if action.kind == doubled {
			c.mu.Lock()
			c.repeated[f.requestID] = true
			c.mu.Unlock()
			f.raw = append(f.raw, f.raw...)
		}
		if _, err := c.server.Write(f.raw); err != nil {
			c.close()
			return
		}
	}
}

// request reads a frame from the client as a message and notes that its reply
// is due. It reports false for one that cannot be read.
func (c *proxyConn) request(f frame) (*Message, bool) {
	m := &Message{Conn: c.number}
	switch f.opCode {
	case opMsg:
		body, err := f.body()
		if err != nil {
			c.p.tb.Errorf("mongotest: proxy: %v", err)
			return nil, false
		}
		m.Request, m.Command = body, commandName(body)
	case opQuery:
		m.Command = "hello" // nothing else is asked this way today
	case opCompressed:
		c.p.tb.Error(errCompressed)
		return nil, false
	default:
		c.p.tb.Errorf("mongotest: proxy: a message with opcode %d", f.opCode)
		return nil, false
	}
	c.p.mu.Lock()
	c.p.seen[m.Command]++
	m.N = c.p.seen[m.Command]
	c.p.mu.Unlock()
	if f.flags()&moreToCome == 0 { // else nothing answers it
		c.mu.Lock()
		c.pending[f.requestID] = m
		c.mu.Unlock()
	}
	return m, true
}

// answered forgets a request whose reply has come, or will not.
func (c *proxyConn) answered(requestID int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, requestID)
}

// forwardReplies runs the way from the server to the client.
func (c *proxyConn) forwardReplies() {
	defer c.close()
	for {
		f, err := readFrame(c.server)
		if err != nil {
			return
		}
		if c.isFirstOfTwo(f) {
			continue
		}
		m := c.reply(f)
		action := c.p.decide(&c.p.onReply, &c.p.replies, m)
		switch action.kind {
		case cut, stranded:
			return
		case dropped:
			c.closeIfIdle()
			continue
		}
		if !c.wait(action) {
			return
		}
		if action.kind == doubled {
			f.raw = append(f.raw, f.raw...)
		}
		if _, err := c.client.Write(f.raw); err != nil {
			c.leaveClient()
			continue
		}
		c.closeIfIdle()
	}
}

// isFirstOfTwo is whether another answer to the same request follows.
func (c *proxyConn) isFirstOfTwo(f frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.repeated[f.responseTo]
	delete(c.repeated, f.responseTo)
	return first
}

// reply finds the request that a frame from the server answers.
func (c *proxyConn) reply(f frame) *Message {
	c.mu.Lock()
	request := c.pending[f.responseTo]
	delete(c.pending, f.responseTo)
	if request != nil && f.flags()&moreToCome != 0 {
		c.pending[f.requestID] = request // the next reply of the stream names this one
	}
	c.mu.Unlock()
	if request == nil || f.opCode != opMsg {
		return &Message{Command: "hello", Conn: c.number}
	}
	m := *request
	body, err := f.body()
	if err != nil {
		c.p.tb.Errorf("mongotest: proxy: reply to %s: %v", m.Command, err)
	}
	m.Reply = body
	return &m
}

// wait lets a message wait as its action says. It reports false if the
// connection has ended meanwhile.
func (c *proxyConn) wait(action Action) bool {
	switch action.kind {
	case delayed:
		timer := time.NewTimer(action.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
			return false
		}
	case held, stranded:
		select {
		case <-action.release:
		case <-c.done:
			return false
		}
	}
	return true
}
