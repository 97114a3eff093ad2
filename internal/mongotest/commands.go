package mongotest

import (
	"context"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
)

// Commands records the commands that a client sends, to count round trips and
// to hand a captured one to [Explain]. The zero value is ready; safe for
// concurrent use.
//
//	var rec mongotest.Commands
//	client := server.Client(t, options.Client().SetMonitor(rec.Monitor()))
type Commands struct {
	mu   sync.Mutex
	list []Command
}

// Command is one command as it was sent.
type Command struct {
	Name     string
	Database string
	Body     bson.Raw
}

// Monitor returns the monitor to put into the client's options. Commands of
// the driver's own housekeeping (hello, endSessions) are left out.
func (c *Commands) Monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if isHousekeeping(e.CommandName) && e.CommandName != "ping" { // a ping was asked for
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list = append(c.list, Command{e.CommandName, e.DatabaseName, slices.Clone(e.Command)})
	}}
}

// Reset forgets what was recorded.
func (c *Commands) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = nil
}

// Commands returns the recorded commands in the order they were sent.
func (c *Commands) Commands() []Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// Names returns the names of the recorded commands in the order they were
// sent.
func (c *Commands) Names() []string {
	names := []string{}
	for _, command := range c.Commands() {
		names = append(names, command.Name)
	}
	return names
}

// isHousekeeping says whether the driver sends this command by itself: to
// shake hands, watch the server, or say goodbye.
func isHousekeeping(name string) bool {
	switch name {
	case "hello", "isMaster", "ismaster", "ping", "endSessions", "saslStart", "saslContinue", "buildInfo":
		return true
	}
	return false
}
