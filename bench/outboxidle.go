package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// outboxIdlePart counts what a bus sends that has nothing to do.
func outboxIdlePart() part {
	const most = 3
	r := row{name: "outbox/idle", unit: "commands/s", better: lower, ours: "ours", floor: "allowed", barOn: map[string]float64{replicaset: 1},
		note: "a running bus at its defaults, 4 handlers, nothing due; floor: 3"}
	return part{rows: []row{r}, on: []string{replicaset}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		var sent mongotest.Commands
		watched, err := newTarget(t.topology, t.uri, options.Client().SetMonitor(sent.Monitor()))
		if err != nil {
			return err
		}
		defer watched.close()
		o, err := openOutbox(ctx, watched, "idle")
		if err != nil {
			return err
		}
		defer o.drop()
		bus, err := outbox.NewBus(o.store, outbox.BusConfig{})
		if err != nil {
			return err
		}
		for i := range 4 {
			handle := func(context.Context, outbox.Event[orderPaid]) error { return nil }
			if err := outbox.Subscribe(bus, fmt.Sprintf("handler-%d", i), handle, outbox.SubscribeOptions{}); err != nil {
				return err
			}
		}
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- bus.Run(running) }()
		time.Sleep(time.Duration(b.size(5, 1)) * time.Second)
		sent.Reset()
		span := time.Duration(b.size(20, 1)) * time.Second
		time.Sleep(span)
		n := len(sent.Names())
		stop()
		if err := <-ended; err != nil {
			return err
		}
		b.reportCount(t, rows[0], "ours", float64(n)/span.Seconds(), most)
		return nil
	}}
}
