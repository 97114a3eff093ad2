package main

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driverevent "go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/outbox"
)

// repairRow times the question that each store asks once a second. Every new store asks
// it with its first claim, here of a handler for whom there is nothing.
func repairRow(ctx context.Context, b *bench, t *target, o *outboxDB, r row) error {
	var clock findClock
	watched, err := newTarget(t.topology, t.uri, options.Client().SetMonitor(clock.monitor()))
	if err != nil {
		return err
	}
	defer watched.close()
	coll := watched.raw(o.name, "outbox_events")
	m := measure{workers: 1, ops: b.size(20, 2), chunks: b.size(10, 1), pairs: b.size(15, 1), value: p50, sides: []side{
		{name: "blocked", timed: func(ctx context.Context, _ int) (time.Duration, error) {
			s, err := o.on(watched.client)
			if err == nil {
				_, err = s.Claim(ctx, outbox.ClaimOptions{Handlers: []string{"nobody"}})
			}
			return clock.took("suspect_since"), err
		}},
		{name: "by _id", timed: func(ctx context.Context, i int) (time.Duration, error) {
			err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: publishedID(i)}}).Err()
			return clock.took("_id"), err
		}},
	}}
	return b.compare(ctx, t, m, []row{r})
}

// findClock keeps how long the last find by a field took, to the driver.
type findClock struct {
	mu    sync.Mutex
	sent  map[int64]string // field by request
	spans map[string]time.Duration
}

func (c *findClock) monitor() *driverevent.CommandMonitor {
	c.sent, c.spans = map[int64]string{}, map[string]time.Duration{}
	return &driverevent.CommandMonitor{
		Started: func(_ context.Context, e *driverevent.CommandStartedEvent) {
			if filter, ok := e.Command.Lookup("filter").DocumentOK(); ok && e.CommandName == "find" {
				if first, err := filter.IndexErr(0); err == nil {
					c.mu.Lock()
					defer c.mu.Unlock()
					c.sent[e.RequestID] = first.Key()
				}
			}
		},
		Succeeded: func(_ context.Context, e *driverevent.CommandSucceededEvent) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if field, ours := c.sent[e.RequestID]; ours {
				c.spans[field] = e.Duration
				delete(c.sent, e.RequestID)
			}
		},
	}
}

func (c *findClock) took(field string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans[field]
}
