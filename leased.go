package mongostore

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// What a claim reads back: the work of each document, and apart what cannot be read.

// leases reads what was claimed, in the order of ids.
func (s *Store) leases(ctx context.Context, docs []bson.Raw, ids []string) (leases []*Lease) {
	byID := make(map[string]bson.Raw, len(docs))
	for _, doc := range docs {
		id, _ := doc.Lookup("_id").StringValueOK()
		byID[id] = doc
	}
	for _, id := range ids {
		doc, ok := byID[id]
		if !ok {
			continue
		}
		l, wrong := s.lease(id, doc)
		if len(wrong) > 0 && !s.setAside(ctx, l, wrong) {
			continue
		}
		leases = append(leases, l)
	}
	return leases
}

// setAside buries what cannot be read, and reports whether l is still worth having. What
// goes wrong with one document must not cost the others of the batch their leases.
func (s *Store) setAside(ctx context.Context, l *Lease, wrong []damagedEntry) bool {
	err := s.buryDamaged(ctx, l, wrong)
	switch {
	case err != nil:
		s.cfg.Logger.Warn("mongostore: what cannot be read cannot be buried either", "execution", l.ExecutionID, "error", err)
		_ = s.Retry(ctx, l, time.Minute, err) // else the lease runs out
		return false
	case len(l.entries()) == 0:
		_ = s.Complete(ctx, l) // the same
		return false
	}
	return true
}

// lease reads one document that is held, and apart what in it cannot be read.
func (s *Store) lease(id string, doc bson.Raw) (*Lease, []damagedEntry) {
	l := &Lease{ExecutionID: id}
	l.Token, _ = within(doc, "lease", "token").StringValueOK()
	until, _ := seconds(within(doc, "lease", "until"))
	l.Until = fromSeconds(until)
	attempts, _ := wholeNumber(within(doc, "lease", "attempts"))
	l.Attempt = int(attempts)
	l.more, _ = doc.Lookup("more").BooleanOK()
	l.untimed, _ = doc.Lookup("untimed").BooleanOK()

	var wrong []damagedEntry
	attempt := func() int { // the later ones of an execution have not been tried
		if len(l.Spawns)+len(l.Outbox)+len(l.Timers) == 0 {
			return l.Attempt
		}
		return 1
	}
	r := &reader{id: id, doc: doc}
	wrong = append(wrong, r.eachEntry("spawns", func(r *reader, raw bson.Raw) {
		e := readSpawnEntry(r, raw)
		if e.ParentID != id {
			r.damaged("spawns.parent_id", "is not the execution that holds it")
		}
		if r.err == nil {
			e.Token, e.Attempt = l.Token, attempt()
			l.Spawns = append(l.Spawns, e)
		}
	})...)
	wrong = append(wrong, r.eachEntry("outbox", func(r *reader, raw bson.Raw) {
		e := s.readOutboxEntry(r, raw)
		if r.err == nil && e.codec == nil && !json.Valid(e.Event) {
			r.damaged("outbox.event", "is not JSON")
		}
		if r.err == nil {
			e.Token, e.Attempt = l.Token, attempt()
			l.Outbox = append(l.Outbox, e)
		}
	})...)
	wrong = append(wrong, r.dueTimersOf(func(t Timer) {
		t.Token, t.Attempt = l.Token, attempt()
		l.Timers = append(l.Timers, t)
	})...)
	return l, wrong
}

// projected makes of a document by plainProjection what leaseProjection would ship.
func (s *Store) projected(doc bson.Raw, now float64) bson.Raw {
	kinds, more := s.cfg.RelayKinds, false
	fields := bson.D{{Key: "_id", Value: doc.Lookup("_id")}, {Key: "lease", Value: doc.Lookup("lease")}}
	for _, f := range []struct {
		kind Kind
		name string
	}{{KindSpawn, "spawns"}, {KindOutbox, "outbox"}} {
		v, rest := firstOf(doc.Lookup(f.name))
		if kinds&f.kind == 0 || v.Type == 0 {
			continue
		}
		if !more { // no event before all spawns
			fields = append(fields, bson.E{Key: f.name, Value: v})
		}
		more = more || rest
	}
	timers := doc.Lookup("timers")
	if kinds&KindTimer != 0 && !more && !missing(timers) {
		fields = append(fields, bson.E{Key: "timers", Value: dueOf(timers, now)})
	}
	plain, ok := timers.DocumentOK()
	fields = append(fields, bson.E{Key: "more", Value: more}, bson.E{Key: "untimed", Value: ok && len(plain) == len(emptyDocument)})
	raw, err := bson.Marshal(fields)
	if err != nil {
		return doc // cannot be: it is made of what was read
	}
	return raw
}

// firstOf cuts an array to what one lease carries.
func firstOf(v bson.RawValue) (first bson.RawValue, more bool) {
	arr, ok := v.ArrayOK()
	if !ok {
		return v, false
	}
	values, err := arr.Values()
	if err != nil || len(values) <= leaseEntries {
		return v, false
	}
	return array(func(dst []byte) []byte {
		for i, v := range values[:leaseEntries] {
			dst = bsoncore.AppendValueElement(dst, index(i), bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
		}
		return dst
	}), true
}

// dueOf is what dueExpression ships, computed here.
func dueOf(timers bson.RawValue, now float64) any {
	doc, ok := timers.DocumentOK()
	if !ok {
		return typeName(timers)
	}
	type armed struct {
		at    float64
		entry bson.D
	}
	var due []armed
	var wrong bson.A
	elements, _ := doc.Elements()
	for _, e := range elements {
		entry := bson.D{{Key: "k", Value: e.Key()}, {Key: "v", Value: e.Value()}}
		switch at, ok := seconds(e.Value()); {
		case !ok:
			wrong = bson.A{entry}
		case at <= now:
			due = append(due, armed{at, entry})
		}
	}
	slices.SortStableFunc(due, func(a, b armed) int { return cmp.Compare(a.at, b.at) })
	all := make(bson.A, 0, len(due)+1)
	for _, t := range due[:min(len(due), leaseEntries)] {
		all = append(all, t.entry)
	}
	return append(all, wrong...)
}

// damagedEntry is what a relay puts aside: a value that no entry can be read from.
type damagedEntry struct {
	field string // spawns, outbox or timers
	key   string // of a timer
	value bson.RawValue
	whole bool // the whole field is no array, or no document
	err   *DamagedError
}

// eachEntry reads the entries of an array one by one, past those that are damaged.
func (r *reader) eachEntry(field string, read func(*reader, bson.Raw)) (wrong []damagedEntry) {
	v := r.doc.Lookup(field)
	if missing(v) {
		return nil
	}
	arr, ok := v.ArrayOK()
	if !ok {
		err := &DamagedError{ExecutionID: r.id, Field: field, Reason: "is " + typeName(v) + ", not an array"}
		return []damagedEntry{{field: field, value: v, whole: true, err: err}}
	}
	values, _ := arr.Values()
	for _, v := range values {
		one := &reader{id: r.id, doc: r.doc}
		raw, ok := v.DocumentOK()
		if !ok {
			one.damaged(field, "holds "+typeName(v)+", not a document")
		} else {
			read(one, raw)
		}
		if one.err != nil {
			wrong = append(wrong, damagedEntry{field: field, value: v, err: one.err})
		}
	}
	return wrong
}

// dueTimersOf reads what dueExpression shipped.
func (r *reader) dueTimersOf(read func(Timer)) (wrong []damagedEntry) {
	v := r.doc.Lookup("timers")
	if kind, ok := v.StringValueOK(); ok {
		err := &DamagedError{ExecutionID: r.id, Field: "timers", Reason: "is " + kind + ", not a document"}
		return []damagedEntry{{field: "timers", whole: true, err: err}}
	}
	for _, e := range r.elements("timers") {
		key, _ := e.Lookup("k").StringValueOK()
		one := &reader{id: r.id, doc: r.doc}
		t, ok := one.timer(key, e.Lookup("v"))
		if other, named := harelKey(t.Path); ok && key != encodePath(t.Path) && !(named && key == other) {
			one.damaged("timers."+key, "is a key that no path encodes to")
		}
		if one.err == nil {
			read(t)
			continue
		}
		wrong = append(wrong, damagedEntry{field: "timers", key: key, value: e.Lookup("v"), err: one.err})
	}
	return wrong
}
