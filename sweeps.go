package mongostore

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// The sweeps of the seed, for a relay of one's own: what is pending, oldest first,
// and its acknowledgement. They cost what they return. Used beside a Relay they
// void its promise of one worker at a time.

// PendingOutbox returns the emitted events that wait for delivery, those with the
// lowest numbers first, at most limit; 0 is 100. Documents that cannot be read are
// left out and told to Config.OnDamaged. One round trip in the steady state.
// Returns ErrInvalid if limit is negative.
func (s *Store) PendingOutbox(ctx context.Context, limit int) ([]OutboxEntry, error) {
	return pending(ctx, s, outboxSeq, limit, s.readOutboxEntry, func(e OutboxEntry) int64 { return e.Seq })
}

// PendingSpawns returns the child executions that wait for their creation, those
// with the lowest numbers first, at most limit; 0 is 100. Documents that cannot be
// read are left out and told to Config.OnDamaged. One round trip in the steady state.
// Returns ErrInvalid if limit is negative.
func (s *Store) PendingSpawns(ctx context.Context, limit int) ([]SpawnEntry, error) {
	return pending(ctx, s, spawnSeq, limit, readSpawnEntry, func(e SpawnEntry) int64 { return e.Seq })
}

// perDocument remembers how many entries a document held in the last sweep, so that
// the next one reads about as many documents as it needs.
type perDocument struct{ bits atomic.Uint64 }

func (p *perDocument) documentsFor(entries int) int {
	average := max(math.Float64frombits(p.bits.Load()), 1)
	return min(int(math.Ceil(float64(entries)/average)), entries) + 1
}

func (p *perDocument) saw(entries, documents int) {
	if documents > 0 {
		p.bits.Store(math.Float64bits(float64(entries) / float64(documents)))
	}
}

// array is the field that holds the entries of a kind.
func (k seqKind) array() string { return [...]string{"outbox", "spawns"}[k] }

// pending reads documents in the order of their lowest number until the limit-th
// entry cannot be followed by a lower one. What is damaged hides neither the rest
// of its document nor the documents after it.
func pending[E any](ctx context.Context, s *Store, kind seqKind, limit int, read func(*reader, bson.Raw) E, seq func(E) int64) ([]E, error) {
	limit, err := validLimit("limit", limit)
	if err != nil {
		return nil, err
	}
	depth := limit // how many elements of one document are shipped at most
	for documents := s.entriesPer[kind].documentsFor(limit); ; {
		docs, err := s.pendingDocuments(outside(ctx), kind, depth, documents)
		if err != nil {
			return nil, wrapErr("read pending "+kind.array(), "", err)
		}
		found := readEntries(kind, docs, depth, read, seq)
		slices.SortFunc(found.entries, func(a, b E) int { return cmp.Compare(seq(a), seq(b)) })
		readable := len(docs) - found.unreadable
		complete := len(docs) < documents || found.sound > limit
		switch {
		case found.cut && depth < maxLimit:
			depth *= 2
		case complete || len(found.entries) >= limit && seq(found.entries[limit-1]) <= found.bound:
			s.entriesPer[kind].saw(len(found.entries), readable)
			s.reportAll(found.damage)
			return found.entries[:min(limit, len(found.entries))], nil
		default:
			documents = min(2*documents, limit+1+len(docs)-found.sound)
		}
	}
}

func (s *Store) pendingDocuments(ctx context.Context, kind seqKind, depth, documents int) ([]bson.Raw, error) {
	field := kind.array()
	some := bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$isArray", Value: "$" + field}}, bson.D{{Key: "$slice", Value: bson.A{"$" + field, depth}}}, "$" + field,
	}}}
	// $exists leaves the bounds open, without which a multikey index cannot sort.
	return s.find(ctx, bson.D{{Key: field + ".seq", Value: bson.D{{Key: "$exists", Value: true}}}},
		options.Find().SetProjection(bson.D{{Key: field, Value: some}}).
			SetSort(bson.D{{Key: field + ".seq", Value: 1}}).SetLimit(int64(documents)))
}

// foundEntries is what some documents, in the order of their lowest number, hold.
type foundEntries[E any] struct {
	entries    []E
	bound      int64   // no entry of a document further on has a lower number
	unreadable int     // documents without any entry that can be read
	sound      int     // documents without any damage
	cut        bool    // more elements have to be shipped to see past damaged ones
	damage     []error // what was gone past
}

func readEntries[E any](kind seqKind, docs []bson.Raw, depth int, read func(*reader, bson.Raw) E, seq func(E) int64) (f foundEntries[E]) {
	for _, doc := range docs {
		whole := newReader(doc)
		before, lowest, damaged := len(f.entries), int64(math.MaxInt64), false
		for _, raw := range whole.elements(kind.array()) {
			r := newReader(doc)
			e := read(r, raw)
			if err := r.failed(); err != nil {
				f.damage = append(f.damage, err)
				damaged = true
				continue
			}
			f.entries = append(f.entries, e)
			lowest = min(lowest, seq(e))
		}
		f.damage = append(f.damage, whole.failed())
		damaged = damaged || whole.err != nil
		f.cut = f.cut || damaged && whole.count(kind.array()) >= depth
		switch {
		case len(f.entries) == before:
			f.unreadable++
		case !damaged: // else its place in the order may be that of a damaged one
			f.bound = max(f.bound, lowest)
			f.sound++
		}
	}
	return f
}

// reportAll is reportDamage for what may be no damage.
func (s *Store) reportAll(damage []error) {
	for _, err := range damage {
		s.reportDamage(err)
	}
}

func (s *Store) readOutboxEntry(r *reader, raw bson.Raw) OutboxEntry {
	e := OutboxEntry{ExecutionID: r.id, Seq: r.seq("outbox", raw)}
	e.TargetID = r.textIn(raw, "outbox", "target_id")
	data, text := r.encoded("outbox.event", raw.Lookup("event"))
	e.Event = data
	if !text {
		e.codec = s.cfg.Codec
	}
	return e
}

func readSpawnEntry(r *reader, raw bson.Raw) SpawnEntry {
	e := SpawnEntry{Seq: r.seq("spawns", raw)}
	e.ParentID = orElse(r.textIn(raw, "spawns", "parent_id"), r.id)
	e.ChildID = r.textIn(raw, "spawns", "child_id")
	e.RootPath = r.textIn(raw, "spawns", "root_path")
	e.Input = emptyDocument
	if v := raw.Lookup("context"); !missing(v) {
		doc, ok := v.DocumentOK()
		if !ok {
			r.damaged("spawns.context", "is "+typeName(v)+", not a document")
		}
		e.Input = doc
	}
	if e.ChildID == "" {
		r.damaged("spawns.child_id", "is missing or empty")
	}
	return e
}

func (r *reader) seq(array string, raw bson.Raw) int64 {
	n, ok := wholeNumber(raw.Lookup("seq"))
	if !ok {
		r.damaged(array+".seq", "is "+typeName(raw.Lookup("seq"))+", not a whole number")
	}
	return n
}

func (r *reader) textIn(raw bson.Raw, array, field string) string {
	s, ok := text(raw.Lookup(field))
	if !ok {
		r.damaged(array+"."+field, "is "+typeName(raw.Lookup(field))+", not a string")
	}
	return s
}

// AckOutbox removes delivered events from their executions, by execution and
// number; what is gone already is no error. Entries with a Token are removed only
// while that lease is held; the others land all the same. Joins an open transaction
// in ctx.
// Returns ErrLeaseLost naming the executions whose lease is lost.
// Returns ErrInvalid if an entry has no execution id.
func (s *Store) AckOutbox(ctx context.Context, entries ...OutboxEntry) error {
	acks := newAckSet(outboxSeq)
	for i, e := range entries {
		if err := acks.add(i, e.ExecutionID, e.Token, e.Seq); err != nil {
			return err
		}
	}
	return s.ack(ctx, acks)
}

// AckSpawn is AckOutbox for spawn entries whose child exists.
// Returns ErrLeaseLost naming the executions whose lease is lost.
// Returns ErrInvalid if an entry has no parent id.
func (s *Store) AckSpawn(ctx context.Context, entries ...SpawnEntry) error {
	acks := newAckSet(spawnSeq)
	for i, e := range entries {
		if err := acks.add(i, e.ParentID, e.Token, e.Seq); err != nil {
			return err
		}
	}
	return s.ack(ctx, acks)
}

// ackSet is what to remove, one update for each execution and token.
type ackSet struct {
	kind  seqKind
	order []ackTarget
	seqs  map[ackTarget][]int64
}

type ackTarget struct{ id, token string }

func newAckSet(kind seqKind) *ackSet {
	return &ackSet{kind: kind, seqs: map[ackTarget][]int64{}}
}

func (a *ackSet) add(i int, id, token string, seq int64) error {
	if err := validText("entries["+strconv.Itoa(i)+"] execution id", id); err != nil {
		return err
	}
	t := ackTarget{id, token}
	if _, known := a.seqs[t]; !known {
		a.order = append(a.order, t)
	}
	a.seqs[t] = append(a.seqs[t], seq)
	return nil
}

func (a *ackSet) update(t ackTarget) (filter bson.D, update bson.Raw) {
	filter = byID(t.id)
	if t.token != "" && !acksWithoutToken() {
		filter = append(filter, bson.E{Key: "lease.token", Value: t.token})
	}
	pull := func(dst []byte) []byte { return appendPullSeqs(dst, a.kind.array(), a.seqs[t]) }
	return filter, end(appendDocument([]byte{0, 0, 0, 0}, "$pull", pull), 0)
}

// ack removes entries; to do so again after a lost reply changes nothing.
func (s *Store) ack(ctx context.Context, acks *ackSet) error {
	if len(acks.order) == 0 {
		return nil
	}
	inTransaction, err := joins(ctx)
	if err != nil {
		return err
	}
	lost, err := s.ackOnce(ctx, acks, inTransaction)
	if isOpen(err) && !inTransaction && ctx.Err() == nil {
		lost, err = s.ackOnce(ctx, acks, inTransaction)
	}
	if err != nil {
		return wrapErr("ack "+acks.kind.array(), acks.order[0].id, err)
	}
	if len(lost) > 0 {
		return &LeaseLostError{IDs: lost}
	}
	return nil
}

// ackOnce goes past what is no array, where there is no entry to remove; in a
// transaction it must not, because the server has ended the transaction with it.
func (s *Store) ackOnce(ctx context.Context, acks *ackSet, inTransaction bool) (lost []string, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var plain []mongo.WriteModel
	for _, t := range acks.order {
		filter, update := acks.update(t)
		if t.token == "" && len(acks.order) > 1 {
			plain = append(plain, mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update))
			continue
		}
		res, err := s.executions.UpdateOne(ctx, filter, update)
		if isDamagedArray(err) && !inTransaction {
			continue
		}
		if err != nil {
			return nil, err
		}
		if t.token != "" && res.MatchedCount == 0 {
			lost = append(lost, t.id)
		}
	}
	if len(plain) > 0 {
		_, err = s.executions.BulkWrite(ctx, plain, options.BulkWrite().SetOrdered(false))
	}
	if isDamagedArray(err) && !inTransaction {
		err = nil
	}
	return lost, err
}

// isDamagedArray: $pull met a field that is no array.
func isDamagedArray(err error) bool {
	return mongoerr.HasCode(err, mongoerr.BadValue) && !isOpen(err)
}
