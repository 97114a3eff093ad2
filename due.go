package mongostore

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// When a document needs a relay. due_at is that time, a lower bound at worst: a
// write may leave it too early, never too late, and whoever meets a stale one mends
// it. It is absent where nothing is owed, so a sparse index holds what is owed alone.

// op is one aggregation operator.
func op(name string, arg any) bson.D { return bson.D{{Key: name, Value: arg}} }

func cond(when, then, otherwise any) bson.D { return op("$cond", bson.A{when, then, otherwise}) }

// owed is when the document needs a relay, whoever holds it: now where there is an
// entry or something that should be one, the earliest time of a timer; else null.
func (s *Store) owed(now float64) bson.D {
	var times bson.A
	if s.cfg.RelayKinds&KindOutbox != 0 {
		times = append(times, cond(holdsEntries("outbox"), now, nil))
	}
	if s.cfg.RelayKinds&KindSpawn != 0 {
		times = append(times, cond(holdsEntries("spawns"), now, nil))
	}
	if s.cfg.RelayKinds&KindTimer != 0 {
		times = append(times, cond(timersAreDamaged, now, nil), earliestTimerOrNull)
	}
	return op("$min", times)
}

// holdsEntries is whether there is an entry, or something that is no array, which a
// relay puts aside.
func holdsEntries(field string) bson.D {
	return op("$ne", bson.A{op("$ifNull", bson.A{"$" + field, bson.A{}}), bson.A{}})
}

// timersAreDamaged is whether timers is no document, or has a value that is no time.
var timersAreDamaged = mustEncode(op("$or", bson.A{
	op("$not", bson.A{op("$in", bson.A{op("$type", "$timers"), bson.A{"object", "missing", "null", "undefined"}})}),
	op("$anyElementTrue", bson.A{op("$map", bson.D{{Key: "input", Value: timersArray}, {Key: "in", Value: op("$not", bson.A{isTime("$$this.v")})}})}),
}))

// heldUntil is the end of a lease or a backoff that lasts beyond now, else null.
func heldUntil(now float64) bson.D {
	return cond(op("$and", bson.A{isTime("$lease.until"), op("$gt", bson.A{"$lease.until", now})}), "$lease.until", nil)
}

// whenDue makes timer_at and due_at true, from what stands there when it runs.
func (s *Store) whenDue(now float64) bson.D {
	return op("$set", bson.D{
		{Key: "timer_at", Value: earliestTimer},
		{Key: "due_at", Value: op("$let", bson.D{
			{Key: "vars", Value: bson.D{{Key: "owed", Value: s.owed(now)}}},
			{Key: "in", Value: cond(op("$eq", bson.A{"$$owed", nil}), "$$REMOVE", op("$max", bson.A{"$$owed", heldUntil(now)}))},
		})},
	})
}

// dueFields is whenDue for a document that may have been waiting: what stands in
// due_at already keeps its place.
func (s *Store) dueFields() bson.D {
	existing := cond(isTime("$due_at"), "$due_at", nil)
	return bson.D{
		{Key: "timer_at", Value: earliestTimer},
		{Key: "due_at", Value: op("$let", bson.D{
			{Key: "vars", Value: bson.D{{Key: "owed", Value: s.owed(s.now())}}},
			{Key: "in", Value: cond(op("$eq", bson.A{"$$owed", nil}), "$$REMOVE", op("$min", bson.A{existing, "$$owed"}))},
		})},
	}
}
