package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore"
)

// The row memory/sweep: the most memory that a process had resident while it
// drained a backlog, against one that drained a hundredth of it.

func memoryPart() part {
	r := row{name: "memory/sweep", unit: "MiB", better: lower, ours: "backlog", floor: "hundredth", bar: 1.5}
	return part{rows: []row{r}, on: []string{standalone}, run: func(ctx context.Context, b *bench, t *target, rows []row) error {
		m := measure{workers: 1, ops: 1, pairs: b.size(7, 1)}
		entries := b.size(100_000, 5_000)
		for name, n := range map[string]int{"backlog": entries, "hundredth": entries / 100} {
			db := t.database("memory_" + name)
			defer t.drop(db)
			shape, err := backlogMould(ctx, t, db)
			if err != nil {
				return err
			}
			m.sides = append(m.sides, memorySide(t, db, name, shape, n))
		}
		rows[0].note = fmt.Sprintf("peak resident memory of a process that drains %d entries, 100 at a time; floor: of one that drains a hundredth", entries)
		return b.compare(ctx, t, m, rows)
	}}
}

// entriesEach is how many pending entries an execution of the backlog has.
const entriesEach = 10

// backlogMould is a document with entriesEach pending events, as the store wrote it.
func backlogMould(ctx context.Context, t *target, db string) (*mould, error) {
	store, err := t.store(ctx, db, mongostore.Config{})
	if err != nil {
		return nil, err
	}
	var ch mongostore.Changes
	for range entriesEach {
		ch.Emits = append(ch.Emits, mongostore.Emit{TargetID: "billing-7", Event: anEvent()})
	}
	return mouldOf(ctx, t.raw(db, "executions"), store, newOrder(newID(), 0), ch)
}

func memorySide(t *target, db, name string, shape *mould, entries int) side {
	coll := fastCollection(t, db)
	var peak float64
	return side{
		name: name,
		before: func(ctx context.Context) error {
			if _, err := coll.DeleteMany(ctx, bson.D{}); err != nil {
				return err
			}
			return insertAll(ctx, coll, entries/entriesEach, func(k int) (bson.Raw, error) {
				return withNumbers(shape.pour(idOf(k)), int64(k*entriesEach))
			})
		},
		op: func(ctx context.Context, _, _ int) (err error) {
			peak, err = drain(ctx, task{URI: t.uri, Topology: t.topology, Database: db}, entries)
			return err
		},
		gauge: func() float64 { return peak },
	}
}

// drain runs the child and gives its peak memory in MiB.
func drain(ctx context.Context, work task, entries int) (float64, error) {
	c, err := startChild(ctx, "drain", work)
	if err != nil {
		return 0, err
	}
	answer, err := c.line()
	if ended := c.end(); err != nil || ended != nil {
		return 0, fmt.Errorf("child: %q, %w", answer, ended)
	}
	var drained int
	var peak int64
	if _, err := fmt.Sscan(answer, &drained, &peak); err != nil {
		return 0, fmt.Errorf("child: %q, %w", answer, err)
	}
	if drained != entries {
		return 0, fmt.Errorf("drained %d of %d entries", drained, entries)
	}
	return float64(peak) / (1 << 20), nil
}

// drainChild drains all pending events and prints how many, and its peak memory.
func drainChild(ctx context.Context, work task, out io.Writer) error {
	t, err := work.target()
	if err != nil {
		return err
	}
	defer t.close()
	store, err := mongostore.New(t.client, mongostore.Config{Database: work.Database, WriteConcern: t.concern})
	if err != nil {
		return err
	}
	drained := 0
	for {
		entries, err := store.PendingOutbox(ctx, 100)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			break
		}
		if err := store.AckOutbox(ctx, entries...); err != nil {
			return err
		}
		drained += len(entries)
	}
	_, err = fmt.Fprintln(out, drained, peakMemory())
	return err
}

// peakMemory is the most that was ever resident, in bytes. The usage that the
// system tells of a child would include its parent's at the fork.
func peakMemory() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err == nil {
		if _, rest, found := bytes.Cut(status, []byte("VmHWM:")); found {
			if kib, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	var stats runtime.MemStats // no Linux: what Go has from the system
	runtime.ReadMemStats(&stats)
	return int64(stats.Sys)
}
