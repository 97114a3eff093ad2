package outbox

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A claim leases first and looks second: what it sees then decides whether it may keep
// what it has leased.

// held is a delivery that this claim has leased.
type held struct {
	before stored // as it was selected
	now    stored
	view   *view // of its lane; nil: it has none
	why    block
}

// secondLook reads back what the token holds, and with it the lanes: both rules decide.
func (c *claim) secondLook(ctx context.Context, candidates []stored, now time.Time, token string) (kept, blocked []held, err error) {
	var lanes, unkeyed []string
	for _, d := range candidates {
		if d.lane != "" {
			lanes = append(lanes, d.lane)
		} else {
			unkeyed = append(unkeyed, d.id)
		}
	}
	views, loose, err := c.look(ctx, lanes, unkeyed, token)
	if err != nil {
		return nil, nil, err
	}
	found := make(map[string]stored, len(candidates))
	for _, d := range loose {
		found[d.id] = d
	}
	for _, v := range views {
		for _, d := range v.active {
			found[d.id] = d
		}
	}
	for _, candidate := range candidates { // in their order: the longest due first
		h := held{before: candidate, now: found[candidate.id], view: views[candidate.lane]}
		if h.now.token != token || h.now.status != processing {
			continue
		}
		if h.view != nil {
			c.taken[candidate.lane] = true
			h.why = h.view.blocks(h.now, now)
		}
		if h.why == free || noSecondLook() {
			kept = append(kept, h)
		} else {
			blocked = append(blocked, h)
		}
	}
	return kept, blocked, nil
}

// durable leaves of what seems to be held that which the majority has, where the reply to
// the lease was lost: a lease that is rolled back holds nothing.
func (c *claim) durable(ctx context.Context, all []held, leaseErr error) (kept []held, err error) {
	from, err := c.readBack(ctx, leaseErr)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	ids := make([]string, 0, len(all))
	for _, h := range all {
		ids = append(ids, h.now.id)
	}
	docs, err := c.find(ctx, from, heldBy(ids, all[0].now.token), options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	there := make(map[string]bool, len(docs))
	for _, doc := range docs {
		there[text(doc.Lookup("_id"))] = true
	}
	for _, h := range all {
		if there[h.now.id] {
			kept = append(kept, h)
		}
	}
	return kept, err
}

// block is why a delivery cannot run.
type block int

const (
	free    block = iota
	behind        // an unfinished one stands before it
	running       // another one of the lane is under a live lease
)

func (v *view) blocks(d stored, now time.Time) block {
	why := free
	for _, other := range v.active {
		switch {
		case other.id == d.id:
		case other.sequence < d.sequence:
			return behind
		case other.status == processing && other.dueAt.After(now):
			why = running
		}
	}
	if v.next != "" && v.number < d.sequence {
		return behind
	}
	return why
}

// giveWay puts blocked deliveries back as they were selected, a crashed worker's lease
// included. One that stands behind an unfinished one then waits outside the claim index.
func (c *claim) giveWay(ctx context.Context, blocked []held, token string, now time.Time) error {
	if len(blocked) == 0 {
		return nil
	}
	var models []mongo.WriteModel
	var lanes []string
	for _, h := range blocked {
		back := bson.D{{Key: "status", Value: h.before.status}, {Key: "due_at", Value: h.before.dueAt}}
		change := bson.D{{Key: "$set", Value: back}, {Key: "$inc", Value: op("attempts", int64(-1))}}
		if h.before.token != "" {
			change[0].Value = append(back, bson.E{Key: "token", Value: h.before.token})
		} else {
			change = append(change, bson.E{Key: "$unset", Value: op("token", "")})
		}
		models = append(models, mongo.NewUpdateOneModel().SetUpdate(change).SetFilter(
			bson.D{{Key: "_id", Value: h.now.id}, {Key: "status", Value: processing}, {Key: "token", Value: token}}))
		if h.why == behind && h.before.status == pending {
			models = append(models, demotion(h.now.id, now))
			lanes = append(lanes, h.now.lane)
		}
	}
	err := c.write(ctx, models...)
	for _, h := range blocked {
		c.front.lower(h.before.dueAt)
	}
	if err != nil {
		return err
	}
	return c.promoteHeads(ctx, lanes)
}

// demotion lets a pending delivery wait, until its lane comes to it.
func demotion(id string, now time.Time) mongo.WriteModel {
	set := bson.D{{Key: "status", Value: waiting}, {Key: "waiting_lane", Value: "$active_lane"}}
	if !noSuspects() {
		set = append(set, bson.E{Key: "suspect_since", Value: now})
	}
	return mongo.NewUpdateOneModel().
		SetFilter(bson.D{{Key: "_id", Value: id}, {Key: "status", Value: pending}, {Key: "active_lane", Value: op("$exists", true)}}).
		SetUpdate(bson.A{op("$set", set), op("$unset", bson.A{"due_at", "active_lane"})})
}
