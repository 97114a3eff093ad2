package outbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	upsertMost  = 64      // events that are written without asking first which are known
	appendMost  = 20_000  // events in one command
	appendLanes = 100_000 // lanes that one command may name
	appendNames = 8 << 20 // bytes of ids, and of lanes, that one command may name
)

// Append stores events and their deliveries in the transaction that ctx carries, one
// that Transaction started or the caller's own: all of it commits with that transaction
// or none. An event whose id is known is not stored again, and gains only deliveries to
// handlers that it lacks. Each key is numbered in the order of commits: two open
// transactions that append to one key conflict, and one of them has to start again, which
// Transaction does. On hot keys append first and keep the transaction short.
//
// An error of the server dooms the transaction: return it from the callback at once.
//
// Returns ErrOutsideTransaction, and nothing is written, if ctx carries no started
// transaction. Returns ErrInvalid if a message lacks id, type or handlers, cannot be held
// by JSON, is not UTF-8, or has an id, a type, a key or a handler of more than 2,048 bytes,
// or if the session is another client's; ErrTooLarge, and
// ErrInvalid too, if an event would pass 16 MiB less 64 KiB; ErrNoTransactions on a standalone server.
func (s *Store) Append(ctx context.Context, msgs ...Message) error {
	if err := s.requireTransaction(ctx); err != nil {
		return err
	}
	now := s.now()
	entries, err := prepare(msgs, now)
	if err != nil {
		return err
	}
	for len(entries) > 0 {
		n := appendable(entries)
		if err := s.append(ctx, entries[:n], now); err != nil {
			return wrapErr("append", err)
		}
		entries = entries[n:]
	}
	return nil
}

// appendable is how many entries one command can take, at least one.
func appendable(entries []entry) int {
	const each = 16 // bytes around a name in a list
	ids, lanes, names := 0, 0, 0
	for i, e := range entries {
		ids += len(e.id) + each
		for _, h := range e.handlers {
			if e.key != "" {
				lanes, names = lanes+1, names+len(h)+len(e.key)+each
			}
		}
		if i > 0 && (i == appendMost || lanes > appendLanes || max(ids, names) > appendNames) {
			return i
		}
	}
	return len(entries)
}

// append looks at the lanes while it writes the events, then numbers and inserts the
// deliveries: three commands in the transaction, as a raw one has that writes the same.
func (s *Store) append(ctx context.Context, entries []entry, now time.Time) error {
	hints := s.startHints(ctx, entries)
	fresh, err := s.writeEvents(ctx, entries)
	counts, last := countsOf(fresh), map[string]int64(nil)
	if err == nil {
		last, err = s.number(ctx, counts)
	}
	hint, hintErr := hints()
	if err := cmp.Or(err, hintErr); err != nil || len(fresh) == 0 {
		return err
	}
	if err := s.mendCounters(ctx, last, counts, hint.highest); err != nil {
		return err
	}
	docs, plan := s.place(ctx, fresh, last, hint, now)
	if _, err := s.deliveries.InsertMany(ctx, docs); err != nil {
		return err
	}
	plan.remember(stateOf(ctx, s))
	return nil
}

// hint is what the newest state, outside the transaction, says of the lanes. Nothing
// depends on it being right.
type hint struct {
	busy    map[string]bool  // lanes with something pending or processing
	highest map[string]int64 // stored number of each key
	counter map[string]int64 // committed, of each key; only for a foreign session
}

// startHints reads beside the transaction's first two commands. What it returns waits.
func (s *Store) startHints(ctx context.Context, entries []entry) func() (hint, error) {
	var keys, lanes []string
	for _, e := range entries {
		if e.key == "" {
			continue
		}
		keys = append(keys, e.key)
		for _, h := range e.handlers {
			lanes = append(lanes, laneOf(h, e.key))
		}
	}
	if len(keys) == 0 {
		return func() (hint, error) { return hint{}, nil }
	}
	slices.Sort(keys)
	slices.Sort(lanes)
	keys, lanes = slices.Compact(keys), slices.Compact(lanes)
	foreign := stateOf(ctx, s) == nil
	var h hint
	var errs [3]error
	beside, ended := outside(ctx), make(chan struct{})
	go func() {
		defer close(ended)
		if len(keys) == 1 && !foreign { // of a foreign session nothing settles what waits for no reason
			h.busy, h.highest, errs[0] = s.lastOfKey(beside, keys[0], lanes)
		} else {
			h.busy, errs[0] = s.busyLanes(beside, lanes)
			h.highest, errs[1] = s.highestNumbers(beside, keys)
		}
		if foreign {
			h.counter, errs[2] = s.counters(beside, keys)
		}
	}()
	return func() (hint, error) {
		<-ended
		return h, errors.Join(errs[:]...)
	}
}

func (s *Store) busyLanes(ctx context.Context, lanes []string) (map[string]bool, error) {
	docs, err := s.find(ctx, s.deliveries, op("active_lane", op("$in", lanes)),
		options.Find().SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "active_lane", Value: 1}}))
	busy := make(map[string]bool, len(docs))
	for _, doc := range docs {
		busy[text(doc.Lookup("active_lane"))] = true
	}
	return busy, err
}

func (s *Store) highestNumbers(ctx context.Context, keys []string) (map[string]int64, error) {
	docs, err := s.aggregate(ctx, s.deliveries, bson.A{
		op("$match", op("key", op("$in", keys))),
		op("$sort", bson.D{{Key: "key", Value: -1}, {Key: "sequence", Value: -1}}),
		op("$group", bson.D{{Key: "_id", Value: "$key"}, {Key: "key", Value: op("$first", "$key")}, {Key: "sequence", Value: op("$first", "$sequence")}}),
	})
	return numbers(docs, "key", "sequence"), err
}

// lastOfKey reads the last deliveries of one key, as many as it has lanes: a lane whose
// last one is not finished is busy, and so may be one that is not among them. It is one
// command for what are two with many keys.
func (s *Store) lastOfKey(ctx context.Context, key string, lanes []string) (busy map[string]bool, highest map[string]int64, err error) {
	docs, err := s.find(ctx, s.deliveries, op("key", key), options.Find().SetLimit(int64(len(lanes))).
		SetSort(bson.D{{Key: "key", Value: -1}, {Key: "sequence", Value: -1}}).
		SetProjection(bson.D{{Key: "handler", Value: 1}, {Key: "sequence", Value: 1}, {Key: "finished_at", Value: 1}}))
	busy, highest = make(map[string]bool, len(lanes)), make(map[string]int64, 1)
	for _, lane := range lanes {
		busy[lane] = len(docs) == len(lanes)
	}
	seen := make(map[string]bool, len(lanes))
	for _, doc := range docs {
		number, _ := doc.Lookup("sequence").AsInt64OK()
		highest[key] = max(highest[key], number)
		if lane := laneOf(text(doc.Lookup("handler")), key); !seen[lane] {
			seen[lane] = true
			busy[lane] = doc.Lookup("finished_at").Type == 0
		}
	}
	return busy, highest, err
}

func (s *Store) counters(ctx context.Context, keys []string) (map[string]int64, error) {
	docs, err := s.find(ctx, s.keys, op("_id", op("$in", keys)))
	return numbers(docs, "_id", "n"), err
}

func numbers(docs []bson.Raw, key, number string) map[string]int64 {
	all := make(map[string]int64, len(docs))
	for _, doc := range docs {
		all[text(doc.Lookup(key))], _ = doc.Lookup(number).AsInt64OK()
	}
	return all
}

// writeEvents stores the events that are new, and gives the entries with the handlers
// that still need a delivery. None of it can make an E11000: what this snapshot does not
// show and another transaction wrote is a write conflict.
func (s *Store) writeEvents(ctx context.Context, entries []entry) ([]entry, error) {
	known := make(map[string][]string) // handlers of the events that are there
	if len(entries) <= upsertMost {
		ids, err := s.upsertEvents(ctx, entries)
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 {
			if known, err = s.knownEvents(ctx, ids); err != nil {
				return nil, err
			}
		}
	} else {
		ids := make([]string, 0, len(entries))
		for _, e := range entries {
			ids = append(ids, e.id)
		}
		var err error
		if known, err = s.knownEvents(ctx, ids); err != nil {
			return nil, err
		}
		if err := s.insertEvents(ctx, entries, known); err != nil {
			return nil, err
		}
	}
	return s.lacking(ctx, entries, known)
}

// upsertEvents gives the ids that were there already.
func (s *Store) upsertEvents(ctx context.Context, entries []entry) (known []string, err error) {
	models := make([]mongo.WriteModel, 0, len(entries))
	for _, e := range entries {
		models = append(models, mongo.NewUpdateOneModel().SetUpsert(true).
			SetFilter(op("_id", e.id)).SetUpdate(op("$setOnInsert", e.doc)))
	}
	res, err := s.events.BulkWrite(ctx, models)
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		if _, fresh := res.UpsertedIDs[int64(i)]; !fresh {
			known = append(known, e.id)
		}
	}
	return known, nil
}

func (s *Store) knownEvents(ctx context.Context, ids []string) (map[string][]string, error) {
	docs, err := s.find(ctx, s.events, op("_id", op("$in", ids)), options.Find().SetProjection(op("handlers", 1)))
	known := make(map[string][]string, len(docs))
	for _, doc := range docs {
		known[text(doc.Lookup("_id"))] = texts(doc.Lookup("handlers"))
	}
	return known, err
}

func texts(v bson.RawValue) (all []string) {
	list, _ := v.ArrayOK()
	values, _ := list.Values()
	for _, v := range values {
		all = append(all, text(v))
	}
	return all
}

func (s *Store) insertEvents(ctx context.Context, entries []entry, known map[string][]string) error {
	docs := make([]any, 0, len(entries))
	for _, e := range entries {
		if _, there := known[e.id]; !there {
			docs = append(docs, e.doc)
		}
	}
	if len(docs) == 0 {
		return nil
	}
	_, err := s.events.InsertMany(ctx, docs)
	return err
}

// lacking leaves of each entry the handlers without a delivery. A known event that gains
// some is written, so that a purge of it conflicts.
func (s *Store) lacking(ctx context.Context, entries []entry, known map[string][]string) (fresh []entry, err error) {
	var models []mongo.WriteModel
	for _, e := range entries {
		if have, there := known[e.id]; there {
			e.handlers = missing(e.handlers, have)
			if len(e.handlers) > 0 {
				models = append(models, mongo.NewUpdateOneModel().SetFilter(op("_id", e.id)).
					SetUpdate(op("$addToSet", op("handlers", op("$each", e.handlers)))))
			}
		}
		if len(e.handlers) > 0 {
			fresh = append(fresh, e)
		}
	}
	if len(models) > 0 {
		_, err = s.events.BulkWrite(ctx, models)
	}
	return fresh, err
}

// countsOf is how many events of each key there are.
func countsOf(entries []entry) map[string]int64 {
	counts := make(map[string]int64)
	for _, e := range entries {
		if e.key != "" {
			counts[e.key]++
		}
	}
	return counts
}

// mendCounters lets counters that were lost by hand go on behind the highest number that
// is stored.
func (s *Store) mendCounters(ctx context.Context, last, counts, highest map[string]int64) error {
	for _, key := range slices.Sorted(maps.Keys(last)) {
		if last[key]-counts[key] >= highest[key] {
			continue
		}
		last[key] = highest[key] + counts[key]
		if _, err := s.keys.UpdateOne(ctx, op("_id", key), op("$set", op("n", last[key]))); err != nil {
			return err
		}
	}
	return nil
}

// number counts the keys up, and gives the last number of each.
func (s *Store) number(ctx context.Context, counts map[string]int64) (map[string]int64, error) {
	keys := slices.Sorted(maps.Keys(counts)) // in one order, so that appenders do not conflict crosswise
	switch len(keys) {
	case 0:
		return nil, nil
	case 1:
		doc, err := s.keys.FindOneAndUpdate(ctx, op("_id", keys[0]), countUp(counts[keys[0]]),
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Raw()
		return numbers([]bson.Raw{doc}, "_id", "n"), err
	}
	models := make([]mongo.WriteModel, 0, len(keys))
	for _, key := range keys {
		models = append(models, mongo.NewUpdateOneModel().SetUpsert(true).
			SetFilter(op("_id", key)).SetUpdate(countUp(counts[key])))
	}
	if _, err := s.keys.BulkWrite(ctx, models); err != nil {
		return nil, err
	}
	return s.counters(ctx, keys)
}

// countUp adds to a counter; what is no sound number counts as lost.
func countUp(by int64) bson.A {
	const most = 1 << 53
	sound := op("$and", bson.A{op("$isNumber", "$n"), op("$gte", bson.A{"$n", int64(0)}), op("$lt", bson.A{"$n", int64(most)})})
	from := op("$cond", bson.A{sound, op("$toLong", "$n"), int64(0)})
	return bson.A{op("$set", op("n", op("$add", bson.A{from, by})))}
}

// placement is what an append leaves to do after its transaction.
type placement struct {
	lanes    map[string]bool // appended to; true: something waits there
	handlers map[string]bool
	first    time.Time // from when the first that is pending is due; zero: none is
}

// place makes the deliveries: pending where the lane looks free, else waiting. The first
// that waits of each lane is suspect until somebody has seen that its lane lives.
func (s *Store) place(ctx context.Context, entries []entry, last map[string]int64, hint hint, now time.Time) ([]any, placement) {
	st, plan := stateOf(ctx, s), placement{lanes: map[string]bool{}, handlers: map[string]bool{}}
	next := make(map[string]int64, len(last))
	for _, e := range entries {
		if e.key != "" {
			next[e.key]++ // how many
		}
	}
	for key, n := range next {
		next[key] = last[key] - n // the last that others have
	}
	earlier := func(lane, key string) bool { // in this transaction
		if st != nil {
			return st.appended(lane)
		}
		return next[key] != hint.counter[key]
	}
	before := make(map[string]bool)
	for _, e := range entries {
		for _, h := range e.handlers {
			if lane := laneOf(h, e.key); lane != "" {
				before[lane] = hint.busy[lane] || earlier(lane, e.key)
			}
		}
	}
	var docs []any
	for _, e := range entries {
		if e.key != "" {
			next[e.key]++
		}
		for _, h := range e.handlers {
			lane := laneOf(h, e.key)
			_, inBatch := plan.lanes[lane]
			wait := lane != "" && (before[lane] || inBatch)
			docs = append(docs, deliveryDoc(e, h, lane, next[e.key], wait, wait && !plan.lanes[lane] && !noSuspects(), now))
			plan.handlers[h] = true
			if at := orElse(e.notBefore, now); !wait && (plan.first.IsZero() || at.Before(plan.first)) {
				plan.first = at
			}
			if lane != "" {
				plan.lanes[lane] = plan.lanes[lane] || wait
			}
		}
	}
	return docs, plan
}

func deliveryDoc(e entry, handler, lane string, number int64, wait, suspect bool, now time.Time) bson.D {
	at := now
	if !e.notBefore.IsZero() {
		at = e.notBefore
	}
	doc := bson.D{
		{Key: "_id", Value: handler + ":" + e.id}, {Key: "event_id", Value: e.id},
		{Key: "type", Value: e.typ}, {Key: "handler", Value: handler},
	}
	if lane != "" {
		doc = append(doc, bson.E{Key: "key", Value: e.key}, bson.E{Key: "sequence", Value: number})
	}
	state := pending
	if wait {
		state = waiting
	}
	doc = append(doc, bson.E{Key: "status", Value: state}, bson.E{Key: "available_at", Value: at},
		bson.E{Key: "attempts", Value: int64(0)}, bson.E{Key: "requeues", Value: int64(0)})
	if wait {
		doc = append(doc, bson.E{Key: "waiting_lane", Value: lane})
		if suspect {
			doc = append(doc, bson.E{Key: "suspect_since", Value: now})
		}
		return doc
	}
	doc = append(doc, bson.E{Key: "due_at", Value: at})
	if lane != "" {
		doc = append(doc, bson.E{Key: "active_lane", Value: lane})
	}
	return doc
}
