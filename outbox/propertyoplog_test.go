package outbox_test

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// commits is what the server's own log says of one database, in the order of commits.
type commits struct {
	log      *mongo.Collection
	database string
	violate  func(format string, args ...any)

	mu         sync.Mutex
	last       bson.Timestamp
	unfinished map[string][]bson.Raw // parts of transactions that are larger than one entry
	number     int                   // of commits
	deliveries map[string]inserted
	lanes      map[string][]string // deliveries in the order of commits
	gone       map[string]bool     // deliveries that were deleted
	events     map[string]int      // in which commit
	living     map[string]int      // deliveries by key
	highest    map[string]inserted // by key, since its counter began
	epochs     map[string]int      // how often a key's counter was deleted
}

// inserted is a delivery as it was committed.
type inserted struct {
	id, event, handler, key string

	sequence int64
	epoch    int
	commit   int
}

func (d inserted) lane() string { return d.handler + ":" + d.key }

// commitsSince follows the log from now on.
func commitsSince(ctx context.Context, client *mongo.Client, database string, violate func(string, ...any)) (*commits, error) {
	hello, err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
	if err != nil {
		return nil, err
	}
	c := &commits{
		log: client.Database("local").Collection("oplog.rs"), database: database, violate: violate,
		unfinished: map[string][]bson.Raw{}, deliveries: map[string]inserted{}, lanes: map[string][]string{}, gone: map[string]bool{},
		events: map[string]int{}, living: map[string]int{}, highest: map[string]inserted{}, epochs: map[string]int{},
	}
	c.last.T, c.last.I = hello.Lookup("lastWrite", "opTime", "ts").Timestamp()
	return c, nil
}

// read takes in what was committed since the last read.
func (c *commits) read(ctx context.Context) error {
	ours := bson.Regex{Pattern: "^" + regexp.QuoteMeta(c.database) + `\.`}
	cursor, err := c.log.Find(ctx, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: c.last}}},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: "ns", Value: ours}}, bson.D{{Key: "o.applyOps.ns", Value: ours}},
			bson.D{{Key: "o.commitTransaction", Value: bson.D{{Key: "$exists", Value: true}}}},
		}},
	}, options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}}))
	if err != nil {
		return err
	}
	var entries []bson.Raw
	if err := cursor.All(ctx, &entries); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		c.last.T, c.last.I = e.Lookup("ts").Timestamp()
		c.entry(e)
	}
	return nil
}

// written is whether the log has a write after a time on a head, or on what stands
// before it, or may have because the head is not known yet.
func (c *commits) written(ctx context.Context, head waitingHead, after bson.Timestamp) (bool, error) {
	c.mu.Lock()
	ids := slices.Clone(c.lanes[head.lane])
	c.mu.Unlock()
	at := slices.Index(ids, head.id)
	if at < 0 {
		return true, nil
	}
	these := bson.D{{Key: "$in", Value: ids[:at+1]}}
	n, err := c.log.CountDocuments(ctx, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: after}}},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: "ns", Value: c.database + ".outbox_deliveries"}, {Key: "o2._id", Value: these}},
			bson.D{{Key: "o.applyOps", Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "ns", Value: c.database + ".outbox_deliveries"}, {Key: "o2._id", Value: these}}}}}},
		}},
	}, options.Count().SetLimit(1))
	return n > 0, err
}

// entry is one of the log: a write, a transaction, or a part of one.
func (c *commits) entry(e bson.Raw) {
	ops := []bson.Raw{e}
	transaction := fmt.Sprintf("%s %s", e.Lookup("lsid"), e.Lookup("txnNumber"))
	if list, ok := e.Lookup("o", "applyOps").ArrayOK(); ok {
		values, _ := list.Values()
		ops = slices.Clone(c.unfinished[transaction])
		for _, v := range values {
			ops = append(ops, v.Document())
		}
		delete(c.unfinished, transaction)
		partial, _ := e.Lookup("o", "partialTxn").BooleanOK()
		prepared, _ := e.Lookup("o", "prepare").BooleanOK()
		if partial || prepared {
			c.unfinished[transaction] = ops
			return
		}
	} else if e.Lookup("o", "commitTransaction").Type != 0 {
		ops = c.unfinished[transaction]
		delete(c.unfinished, transaction)
	}
	c.number++
	for _, o := range ops {
		c.op(o)
	}
}

func (c *commits) op(o bson.Raw) {
	ns, kind := o.Lookup("ns").StringValue(), o.Lookup("op").StringValue()
	id, _ := o.Lookup("o", "_id").StringValueOK()
	switch {
	case ns == c.database+".outbox_deliveries" && kind == "i":
		c.delivery(o.Lookup("o").Document())
	case ns == c.database+".outbox_deliveries" && kind == "d":
		if c.gone[id] {
			c.violate("%s is deleted twice", id)
		}
		c.gone[id] = true
		c.living[c.deliveries[id].key]--
	case ns == c.database+".outbox_events" && kind == "i":
		if _, twice := c.events[id]; twice {
			c.violate("event %s is stored twice", id)
		}
		c.events[id] = c.number
	case ns == c.database+".outbox_keys" && kind == "d":
		if c.living[id] != 0 {
			c.violate("the counter of key %s is deleted while %d deliveries have it", id, c.living[id])
		}
		c.epochs[id]++
		delete(c.highest, id)
	}
}

// delivery checks that numbers follow the order of commits, and never repeat.
func (c *commits) delivery(doc bson.Raw) {
	d := inserted{commit: c.number}
	d.id, d.event, d.handler = doc.Lookup("_id").StringValue(), doc.Lookup("event_id").StringValue(), doc.Lookup("handler").StringValue()
	d.key, _ = doc.Lookup("key").StringValueOK()
	d.sequence, _ = doc.Lookup("sequence").AsInt64OK()
	d.epoch = c.epochs[d.key]
	if _, twice := c.deliveries[d.id]; twice {
		c.violate("%s is stored twice", d.id)
	}
	c.deliveries[d.id] = d
	c.living[d.key]++
	if d.key == "" {
		return
	}
	before := c.highest[d.key]
	if d.sequence < before.sequence || d.sequence == before.sequence && d.event != before.event || d.sequence < 1 {
		c.violate("%s has number %d, but %s, committed before it, has %d", d.id, d.sequence, before.id, before.sequence)
	}
	c.highest[d.key] = d
	c.lanes[d.lane()] = append(c.lanes[d.lane()], d.id)
}

// order sorts holds of a lane by their numbers, those of an earlier counter first.
func (d inserted) order(other inserted) int {
	return cmp.Or(cmp.Compare(d.epoch, other.epoch), cmp.Compare(d.sequence, other.sequence))
}
