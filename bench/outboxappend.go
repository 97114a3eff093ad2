package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// outboxAppendPart counts the commands of one large transaction.
func outboxAppendPart() part {
	const most = 10
	r := row{name: "outbox/append/20k", unit: "commands", better: lower, ours: "commands", floor: "allowed", barOn: map[string]float64{replicaset: 1}, exact: true,
		note: "20,000 events of 1 KB in one transaction, of one key or of 20,000, whichever sends more; floor: 10"}
	return part{rows: []row{r}, on: []string{replicaset}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		var sent mongotest.Commands
		watched, err := newTarget(t.topology, t.uri, options.Client().SetMonitor(sent.Monitor()))
		if err != nil {
			return err
		}
		defer watched.close()
		o, err := openOutbox(ctx, watched, "append")
		if err != nil {
			return err
		}
		defer o.drop()
		r, n, worst := rows[0], b.size(20_000, 200), 0
		for _, keys := range []int{1, n} {
			msgs := make([]outbox.Message, n)
			for i := range msgs {
				msgs[i] = outbox.Message{ID: newID(), Type: outboxType, Key: fmt.Sprintf("%d-%d", keys, i%keys), Payload: prose(1000), Handlers: []string{outboxHandler}}
			}
			sent.Reset()
			start := time.Now()
			err := o.store.Transaction(ctx, func(ctx context.Context) error { return o.store.Append(ctx, msgs...) })
			if err != nil {
				return err
			}
			commands := len(sent.Names())
			worst = max(worst, commands)
			r.note += fmt.Sprintf("; %d keys: %d commands, %.1f s", keys, commands, time.Since(start).Seconds())
		}
		b.reportCount(t, r, "commands", float64(worst), most)
		return nil
	}}
}
