package mongostore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// Dead letters: entries that were given up. They stay in the document of their
// execution, with the reason, until they are requeued or the execution is purged.

// DeadLetter is an entry that was given up, with the reason.
type DeadLetter struct {
	// Entry is what Requeue takes. Of one that cannot be read it names the execution,
	// and what else could be read; Requeue leaves it where it is.
	Entry Entry
	// Cause is the last error as text, or what is wrong with the entry.
	Cause string
	// Attempts is how often it was tried.
	Attempts int
	// BuriedAt is when, by the clock of the store that buried it.
	BuriedAt time.Time
}

// Bury gives an entry up, with the reason: it goes to the dead letters of its
// execution and no longer holds back the entries after it. A lease on the execution
// stays. One that is gone is no error. With a Token the lease must be held. cause may
// be nil.
// Returns ErrLeaseLost, and nothing is changed, if the entry has a Token that does not
// hold the lease.
// Returns ErrInvalid if e is no entry or names no execution, or ctx has an open
// transaction.
func (s *Store) Bury(ctx context.Context, e Entry, cause error) error {
	key, err := keyOf(e)
	if err != nil {
		return of("entry", err)
	}
	ctx, err = refuseTransaction(ctx)
	if err != nil {
		return err
	}
	filter := byID(key.execution)
	if key.token != "" {
		filter = append(filter, bson.E{Key: "lease.token", Value: key.token})
	}
	now := s.now()
	matched, err := s.updateTwice(ctx, filter, s.burialStages(key, causeText(cause), now))
	if mongoerr.HasCode(err, mongoerr.ObjectTooLarge, mongoerr.UpdateTooLarge) {
		matched, err = s.updateTwice(ctx, filter, s.burialStages(key, "", now)) // a full document has no room for the reason
	}
	if err == nil && matched == 0 && key.token != "" {
		err = &LeaseLostError{IDs: []string{key.execution}}
	}
	return wrapErr("bury an entry of", key.execution, err)
}

func (s *Store) burialStages(key entryKey, cause string, now float64) bson.A {
	stages := bson.A{s.burial(key, cause, now), findDead(now)}
	if key.token != "" {
		return stages // due_at is the end of the lease
	}
	return append(stages, s.whenDue(now))
}

// updateTwice is one update that may be repeated after a lost reply without doing
// anything twice.
func (s *Store) updateTwice(ctx context.Context, filter bson.D, update any) (matched int64, err error) {
	for range 2 {
		bounded, cancel := s.bounded(ctx)
		res, failed := s.executions.UpdateOne(bounded, filter, update)
		cancel()
		if failed == nil {
			return res.MatchedCount, nil
		}
		if err = failed; !isOpen(err) || ctx.Err() != nil {
			break
		}
	}
	return 0, err
}

// entryKey is where an entry stands in its document.
type entryKey struct {
	kind             string // outbox, spawn or timer, as in the dead letters
	execution, token string
	seq              int64
	path             string
	at               float64
	attempt          int
}

// keyOf gives the key of e; its errors name a part of the entry.
func keyOf(e Entry) (key entryKey, err error) {
	switch e := e.(type) {
	case OutboxEntry:
		key = entryKey{kind: "outbox", execution: e.ExecutionID, token: e.Token, seq: e.Seq, attempt: e.Attempt}
	case SpawnEntry:
		key = entryKey{kind: "spawn", execution: e.ParentID, token: e.Token, seq: e.Seq, attempt: e.Attempt}
	case Timer:
		key = entryKey{kind: "timer", execution: e.ExecutionID, token: e.Token, path: e.Path, at: toSeconds(e.FireAt), attempt: e.Attempt}
		err = optionalText(".Path", e.Path)
	default:
		return key, invalid("", fmt.Sprintf("is a %T, not an OutboxEntry, SpawnEntry or Timer", e))
	}
	return key, cmp.Or(err, validText(".ExecutionID", key.execution))
}

// array is the field that holds entries of the kind.
func (k entryKey) array() string {
	if k.kind == "spawn" {
		return "spawns"
	}
	return "outbox"
}

// burial moves the entry, as it stands there, to the dead letters.
func (s *Store) burial(k entryKey, cause string, now float64) bson.D {
	letter := bson.D{
		{Key: "kind", Value: k.kind}, {Key: "cause", Value: literalText(cause)},
		{Key: "attempts", Value: max(k.attempt, 0)}, {Key: "at", Value: now},
	}
	if k.kind == "timer" {
		timer := Timer{Path: k.path, FireAt: fromSeconds(k.at)}
		stands := op("$ne", bson.A{withoutTimers([]Timer{timer}).Value, "$timers"})
		letter = append(letter, bson.E{Key: "path", Value: literalText(k.path)}, bson.E{Key: "fire_at", Value: k.at})
		return op("$set", bson.D{deadWith(cond(stands, bson.A{letter}, bson.A{})), withoutTimers([]Timer{timer})})
	}
	path := "$" + k.array()
	those := op("$filter", bson.D{{Key: "input", Value: orEmptyArray(path)}, {Key: "cond", Value: op("$eq", bson.A{"$$this.seq", k.seq})}})
	letter = append(letter, bson.E{Key: "seq", Value: k.seq}, bson.E{Key: "entry", Value: "$$this"})
	letters := op("$map", bson.D{{Key: "input", Value: those}, {Key: "in", Value: letter}})
	return op("$set", bson.D{deadWith(letters), withoutSeqs(k.array(), bson.A{k.seq})})
}

// deadWith adds letters to the dead ones; where dead itself is damaged, it becomes a
// letter. findDead has to follow.
func deadWith(letters any) bson.E {
	damaged := bson.D{{Key: "kind", Value: "damaged"}, {Key: "field", Value: "dead"}, {Key: "cause", Value: "is not an array"}, {Key: "value", Value: "$dead"}}
	return bson.E{Key: "dead", Value: op("$concatArrays", bson.A{
		cond(op("$isArray", "$dead"), "$dead", cond(op("$eq", bson.A{op("$ifNull", bson.A{"$dead", nil}), nil}), bson.A{}, bson.A{damaged})),
		letters,
	})}
}

// findDead makes dead_at true: since when there are dead letters.
func findDead(now float64) bson.D {
	some := op("$ne", bson.A{"$dead", bson.A{}})
	return op("$set", bson.D{
		{Key: "dead", Value: cond(some, "$dead", "$$REMOVE")},
		{Key: "dead_at", Value: cond(some, op("$ifNull", bson.A{"$dead_at", now}), "$$REMOVE")},
	})
}

// buryDamaged puts aside what a claim could not read, as it stands there, one at a time:
// together they may be larger than a command can be.
func (s *Store) buryDamaged(ctx context.Context, l *Lease, wrong []damagedEntry) error {
	for _, w := range wrong {
		now := s.now()
		matched, err := s.updateTwice(ctx, holder(l), bson.A{w.burial(now), findDead(now)})
		if err != nil {
			return err
		}
		if matched == 0 {
			return nil // somebody else holds it by now, and will see the same
		}
		s.reportDamage(w.err)
		s.cfg.Logger.Warn("mongostore: an entry that cannot be read is buried", "execution", l.ExecutionID, "field", w.err.Field, "reason", w.err.Reason)
	}
	return nil
}

// burial moves the damaged value, found by what it is: to do so again changes nothing.
func (w damagedEntry) burial(now float64) bson.D {
	kind := map[string]string{"outbox": "outbox", "spawns": "spawn", "timers": "timer"}[w.field]
	path := "$" + w.field
	letter := bson.D{
		{Key: "kind", Value: kind}, {Key: "field", Value: w.err.Field}, {Key: "damaged", Value: true},
		{Key: "cause", Value: literalText(causeText(w.err))}, {Key: "attempts", Value: 0}, {Key: "at", Value: now},
	}
	switch {
	case w.whole:
		sound, empty := bson.A{"array"}, any(bson.A{})
		if w.field == "timers" {
			sound, empty = bson.A{"object"}, op("$literal", bson.D{})
		}
		isWrong := op("$not", bson.A{op("$in", bson.A{op("$type", path), sound})})
		letters := cond(isWrong, bson.A{append(letter, bson.E{Key: "value", Value: path})}, bson.A{})
		return op("$set", bson.D{deadWith(letters), {Key: w.field, Value: cond(isWrong, empty, path)}})
	case w.field == "timers":
		is := op("$eq", bson.A{"$$this.k", op("$literal", w.key)})
		those := op("$filter", bson.D{{Key: "input", Value: timersArray}, {Key: "cond", Value: is}})
		letter = append(letter, bson.E{Key: "path", Value: literalText(w.key)}, bson.E{Key: "value", Value: "$$this.v"})
		rest := op("$arrayToObject", op("$filter", bson.D{{Key: "input", Value: timersArray}, {Key: "cond", Value: op("$not", bson.A{is})}}))
		return op("$set", bson.D{deadWith(op("$map", bson.D{{Key: "input", Value: those}, {Key: "in", Value: letter}})), {Key: w.field, Value: rest}})
	}
	is := op("$eq", bson.A{"$$this", op("$literal", w.value)})
	those := op("$filter", bson.D{{Key: "input", Value: orEmptyArray(path)}, {Key: "cond", Value: is}})
	letter = append(letter, bson.E{Key: "value", Value: "$$this"})
	rest := op("$filter", bson.D{{Key: "input", Value: orEmptyArray(path)}, {Key: "cond", Value: op("$not", bson.A{is})}})
	return op("$set", bson.D{deadWith(op("$map", bson.D{{Key: "input", Value: those}, {Key: "in", Value: letter}})), {Key: w.field, Value: rest}})
}

// shelve takes a document whose _id is no text out of the index of what is due: it is
// no execution, and no call could name it.
func (s *Store) shelve(ctx context.Context, id bson.RawValue) error {
	damaged := &DamagedError{ExecutionID: id.String(), Field: "_id", Reason: "is " + typeName(id) + ", not a string"}
	s.reportDamage(damaged)
	letter := bson.D{
		{Key: "kind", Value: "damaged"}, {Key: "field", Value: "_id"}, {Key: "cause", Value: literalText(causeText(damaged))},
		{Key: "attempts", Value: 0}, {Key: "at", Value: s.now()},
	}
	set := bson.D{deadWith(bson.A{letter}), {Key: "due_at", Value: "$$REMOVE"}}
	_, err := s.updateTwice(ctx, bson.D{{Key: "_id", Value: id}, {Key: "due_at", Value: op("$exists", true)}}, bson.A{op("$set", set), findDead(s.now())})
	return err
}

// Requeue gives dead entries another chance, each at its place in the order of its
// execution: an event with a lower number is delivered before those after it. A timer
// whose path is armed again stays armed as it is. Attempts count from 1 again. What is
// not dead is no error, and what cannot be read stays. It returns how many entries it
// moved; one whose reply was lost counts if it is back. One round trip for each entry.
// Returns ErrInvalid if something is no entry or names no execution, before anything
// is written, or ctx has an open transaction.
func (s *Store) Requeue(ctx context.Context, entries ...Entry) (int, error) {
	keys := make([]entryKey, 0, len(entries))
	for i, e := range entries {
		key, err := keyOf(e)
		if err != nil {
			return 0, at("entries", i, err)
		}
		keys = append(keys, key)
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return 0, err
	}
	moved := 0
	for _, key := range keys {
		n, err := s.requeue(ctx, key)
		moved += n
		if err != nil {
			return moved, wrapErr("requeue an entry of", key.execution, err)
		}
	}
	return moved, nil
}

func (s *Store) requeue(ctx context.Context, k entryKey) (int, error) {
	now := s.now()
	match := bson.D{{Key: "kind", Value: k.kind}, {Key: "damaged", Value: nil}, {Key: "seq", Value: k.seq}, {Key: "entry", Value: op("$type", "object")}}
	if k.kind == "timer" {
		match = bson.D{{Key: "kind", Value: k.kind}, {Key: "damaged", Value: nil}, {Key: "path", Value: k.path}, {Key: "fire_at", Value: k.at}}
	}
	filter := append(byID(k.execution), bson.E{Key: "dead", Value: op("$elemMatch", match)}, bson.E{Key: "$expr", Value: k.hasPlace()})
	stages := bson.A{s.resurrection(k), s.whenDue(now)}
	var lost bool
	for {
		bounded, cancel := s.bounded(ctx)
		res, err := s.executions.UpdateOne(bounded, filter, stages)
		cancel()
		switch {
		case err == nil && lost && res.MatchedCount == 0:
			return s.isBack(ctx, k)
		case err == nil:
			return int(res.MatchedCount), nil
		case !isOpen(err) || lost || ctx.Err() != nil:
			return 0, err
		}
		lost = true
	}
}

// hasPlace is whether the field of the entry is one that an entry can go back to.
func (k entryKey) hasPlace() bson.D {
	path, kinds := "$"+k.array(), bson.A{"array", "missing", "null", "undefined"}
	if k.kind == "timer" {
		path, kinds = "$timers", bson.A{"object", "missing", "null", "undefined"}
	}
	return op("$in", bson.A{op("$type", path), kinds})
}

// isBack counts an entry whose requeueing had no answer.
func (s *Store) isBack(ctx context.Context, k entryKey) (int, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	there := bson.A{op(k.array()+".seq", k.seq)}
	if k.kind == "timer" {
		there = bson.A{}
		for _, key := range pathKeys(k.path) {
			there = append(there, op("timers."+key, op("$exists", true)))
		}
	}
	n, err := s.executions.CountDocuments(ctx, append(byID(k.execution), bson.E{Key: "$or", Value: there}))
	return int(n), err
}

// resurrection moves the letters of one entry back to their place.
func (s *Store) resurrection(k entryKey) bson.D {
	is := op("$and", bson.A{
		op("$eq", bson.A{"$$this.kind", k.kind}), op("$eq", bson.A{"$$this.seq", k.seq}), op("$ne", bson.A{"$$this.damaged", true}),
	})
	if k.kind == "timer" {
		is = op("$and", bson.A{
			op("$eq", bson.A{"$$this.kind", k.kind}), op("$eq", bson.A{"$$this.path", literalText(k.path)}), op("$eq", bson.A{"$$this.fire_at", k.at}),
		})
	}
	filtered := func(by bson.D) bson.D {
		return op("$filter", bson.D{{Key: "input", Value: "$dead"}, {Key: "cond", Value: by}})
	}
	rest := filtered(op("$not", bson.A{is}))
	set := bson.D{
		{Key: "dead", Value: cond(op("$eq", bson.A{rest, bson.A{}}), "$$REMOVE", rest)},
		{Key: "dead_at", Value: cond(op("$eq", bson.A{rest, bson.A{}}), "$$REMOVE", "$dead_at")},
	}
	if k.kind == "timer" {
		again := op("$anyElementTrue", bson.A{op("$map", bson.D{{Key: "input", Value: timersArray}, {Key: "in", Value: isTimerOf(k.path)}})})
		back := bson.A{bson.D{{Key: "k", Value: literalText(encodePath(k.path))}, {Key: "v", Value: k.at}}}
		armed := op("$arrayToObject", op("$concatArrays", bson.A{timersArray, cond(again, bson.A{}, back)}))
		return op("$set", append(set, bson.E{Key: "timers", Value: armed}))
	}
	path := "$" + k.array()
	back := op("$map", bson.D{{Key: "input", Value: filtered(is)}, {Key: "in", Value: "$$this.entry"}})
	sorted := op("$sortArray", bson.D{{Key: "input", Value: op("$concatArrays", bson.A{orEmptyArray(path), back})}, {Key: "sortBy", Value: bson.D{{Key: "seq", Value: 1}}}})
	return op("$set", append(set, bson.E{Key: k.array(), Value: sorted}))
}
