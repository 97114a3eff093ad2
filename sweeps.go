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
// read are left out and told to Config.OnDamaged.
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
// entry cannot be followed by a lower one.
func pending[E any](ctx context.Context, s *Store, kind seqKind, limit int, read func(*reader, bson.Raw) E, seq func(E) int64) ([]E, error) {
	limit, err := validLimit("limit", limit)
	if err != nil {
		return nil, err
	}
	for documents := s.entriesPer[kind].documentsFor(limit); ; {
		docs, err := s.pendingDocuments(outside(ctx), kind, limit, documents)
		if err != nil {
			return nil, wrapErr("read pending "+kind.array(), "", err)
		}
		entries, bound, damaged := decodeEntries(s, kind, docs, read, seq)
		slices.SortFunc(entries, func(a, b E) int { return cmp.Compare(seq(a), seq(b)) })
		complete := len(docs) < documents || len(docs)-damaged > limit
		if complete || len(entries) >= limit && seq(entries[limit-1]) <= bound {
			s.entriesPer[kind].saw(len(entries), len(docs)-damaged)
			return entries[:min(limit, len(entries))], nil
		}
		documents = min(2*documents, limit+1+damaged) // what is damaged must not hide the rest
	}
}

func (s *Store) pendingDocuments(ctx context.Context, kind seqKind, limit, documents int) ([]bson.Raw, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	field := kind.array()
	some := bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$isArray", Value: "$" + field}}, bson.D{{Key: "$slice", Value: bson.A{"$" + field, limit}}}, "$" + field,
	}}}
	// $exists leaves the bounds open, without which a multikey index cannot sort.
	cursor, err := s.executions.Find(ctx, bson.D{{Key: field + ".seq", Value: bson.D{{Key: "$exists", Value: true}}}},
		options.Find().SetProjection(bson.D{{Key: field, Value: some}}).
			SetSort(bson.D{{Key: field + ".seq", Value: 1}}).SetLimit(int64(documents)))
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	return docs, cursor.All(ctx, &docs)
}

// decodeEntries reads all entries that can be read. Bound is a number below which
// no entry of a document further on can be; damaged counts documents without any.
func decodeEntries[E any](s *Store, kind seqKind, docs []bson.Raw, read func(*reader, bson.Raw) E, seq func(E) int64) (all []E, bound int64, damaged int) {
	for _, doc := range docs {
		entries := entriesOf(s, kind, doc, read)
		if len(entries) == 0 {
			damaged++
			continue
		}
		lowest := int64(math.MaxInt64)
		for _, e := range entries {
			lowest = min(lowest, seq(e))
		}
		all = append(all, entries...)
		bound = max(bound, lowest)
	}
	return all, bound, damaged
}

// entriesOf reads the entries of one document and reports those it has to leave out.
func entriesOf[E any](s *Store, kind seqKind, doc bson.Raw, read func(*reader, bson.Raw) E) (good []E) {
	whole := newReader(doc)
	elements := whole.elements(kind.array())
	s.reportDamage(whole.failed())
	for _, raw := range elements {
		r := &reader{id: whole.id, doc: doc}
		e := read(r, raw)
		if err := r.failed(); err != nil {
			s.reportDamage(err)
			continue
		}
		good = append(good, e)
	}
	return good
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
	if t.token != "" {
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
	lost, err := s.ackOnce(ctx, acks)
	if isOpen(err) && !inTransaction && ctx.Err() == nil {
		lost, err = s.ackOnce(ctx, acks)
	}
	if err != nil {
		return wrapErr("ack "+acks.kind.array(), acks.order[0].id, err)
	}
	if len(lost) > 0 {
		return &LeaseLostError{IDs: lost}
	}
	return nil
}

func (s *Store) ackOnce(ctx context.Context, acks *ackSet) (lost []string, err error) {
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
		if isDamagedArray(err) {
			continue // there is no entry in what is no array
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
	if isDamagedArray(err) {
		err = nil
	}
	return lost, err
}

// isDamagedArray: $pull met a field that is no array.
func isDamagedArray(err error) bool {
	return hasCode(err, codeBadValue) && !isOpen(err)
}
