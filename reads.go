package mongostore

import (
	"context"
	"errors"
	"reflect"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/rawdocs"
)

// loadProjection is what a Load ships: the snapshot, and the scalars that let the
// next Commit do with one trip. Never the arrays.
var loadProjection = bson.D{
	{Key: "data", Value: 1}, {Key: "version", Value: 1}, {Key: "commits", Value: 1},
	{Key: "definition_id", Value: 1}, {Key: "parent_id", Value: 1}, {Key: "status", Value: 1},
	{Key: "outcome", Value: 1}, {Key: "active_path", Value: 1},
	{Key: "trace_next", Value: 1}, {Key: "seq_hi", Value: 1},
}

var (
	loadOptions   = options.FindOne().SetProjection(mustEncode(loadProjection))
	memberOptions = options.FindOne().SetProjection(mustEncode(bson.D{{Key: "_id", Value: 1}}))
)

func mustEncode(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// find reads all that a query finds.
func (s *Store) find(ctx context.Context, filter bson.D, opts *options.FindOptionsBuilder) ([]bson.Raw, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	cursor, err := s.executions.Find(ctx, filter, opts)
	if err != nil {
		return nil, err
	}
	return rawdocs.All(ctx, cursor)
}

func byID(id string) bson.D { return bson.D{{Key: "_id", Value: id}} }

// Load reads the execution into exe, which is zeroed first, once a document was
// found. The Header is filled from the document's own fields. One round trip;
// joins a session in ctx. While a replica set changes its primary it may show an
// earlier version, which a Commit then conflicts with; with the default WriteConcern
// never one that is rolled back. A standalone may show a commit some milliseconds before
// its journal has it, and lose it if it is killed then.
// Returns ErrNotFound if nothing was committed under id; exe is then untouched.
// Returns ErrDamaged if the document cannot be read.
// Returns ErrInvalid if exe cannot be an Execution or id is not valid.
func (s *Store) Load(ctx context.Context, id string, exe Execution) error {
	h, err := headerOf(exe)
	if err != nil {
		return err
	}
	doc, err := s.read(ctx, id, loadOptions)
	if err != nil {
		return err
	}
	return s.fill(exe, h, id, doc)
}

// LoadForEvent is Load, and tells in the same trip whether the event has been
// handled: seen is true while its id is among the newest Config.ProcessedMax. The
// ids themselves stay on the server. Who is told true may forget the event: it is then as
// durable as an acknowledged commit, for which a second trip waits. Joins a session in ctx;
// there is no second trip then.
// Returns ErrNotFound if nothing was committed under id; exe is then untouched.
// Returns ErrDamaged if the document cannot be read.
// Returns ErrInvalid if exe cannot be an Execution or an id is not valid.
func (s *Store) LoadForEvent(ctx context.Context, id, eventID string, exe Execution) (seen bool, err error) {
	if err := validText("eventID", eventID); err != nil {
		return false, err
	}
	projection := append(loadProjection[:len(loadProjection):len(loadProjection)],
		bson.E{Key: "processed", Value: isMember(eventID, "$processed")})
	h, err := headerOf(exe)
	if err != nil {
		return false, err
	}
	inSession := mongo.SessionFromContext(ctx) != nil
	for {
		doc, err := s.read(ctx, id, options.FindOne().SetProjection(projection))
		if err != nil {
			return false, err
		}
		if seen, _ = doc.Lookup("processed").BooleanOK(); seen && !inSession {
			still, err := s.awaitProcessed(ctx, id, eventID)
			if err != nil {
				return false, wrapErr("wait for processed events of", id, err)
			}
			if !still {
				continue // what was seen is lost
			}
		}
		if err := s.fill(exe, h, id, doc); err != nil {
			return false, err
		}
		return seen, nil
	}
}

// awaitProcessed is awaitJournal for a handled event.
func (s *Store) awaitProcessed(ctx context.Context, id, eventID string) (still bool, err error) {
	ctx, cancel := s.bounded(outside(ctx))
	defer cancel()
	res, err := s.executions.UpdateOne(ctx, append(byID(id), bson.E{Key: "processed", Value: eventID}), op("$set", byID(id)))
	return err == nil && res.MatchedCount == 1, err
}

// IsProcessed reports whether the execution has handled the event, as far as it
// remembers (Config.ProcessedMax). An unknown id is false. One round trip; joins a
// session in ctx.
// Returns ErrInvalid if an id is not valid.
func (s *Store) IsProcessed(ctx context.Context, id, eventID string) (bool, error) {
	if err := validText("id", id); err != nil {
		return false, err
	}
	if err := validText("eventID", eventID); err != nil {
		return false, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, err := s.executions.FindOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "processed", Value: eventID}}, memberOptions).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, wrapErr("read processed events of", id, err)
}

// read gives the document of an execution, as far as opts project it.
func (s *Store) read(ctx context.Context, id string, opts *options.FindOneOptionsBuilder) (bson.Raw, error) {
	if err := validText("id", id); err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(id), opts).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, &opError{op: "load", id: id, sentinel: ErrNotFound}
	}
	return doc, wrapErr("load", id, err)
}

// fill decodes the snapshot into exe and its header from the document.
func (s *Store) fill(exe Execution, h *Header, id string, doc bson.Raw) error {
	r := &reader{id: id, doc: doc}
	if isStub(doc) {
		return &opError{op: "load", id: id, sentinel: ErrNotFound}
	}
	version := r.version()
	data, text := r.data()
	if err := r.failed(); err != nil {
		return err
	}
	target := reflect.ValueOf(exe).Elem()
	target.SetZero()
	if err := s.decode(data, text, exe); err != nil {
		target.SetZero() // half an execution must not be committed
		return &DamagedError{ExecutionID: id, Field: "data", Reason: "cannot be decoded: " + err.Error(), cause: err}
	}
	k := known{id: id, version: version, slot: slotOf(doc, version), traceNext: absentTrace}
	if k.slot.makes(version) {
		k.stored, k.current = r.promoted(), true
		k.stored.fill(h)
	}
	if next := doc.Lookup("trace_next"); !missing(next) {
		k.traceNext = r.whole("trace_next")
		r.needs("trace_next", "trace_next", isIndex)
	}
	for _, kind := range []seqKind{outboxSeq, spawnSeq} {
		k.seqHigh[kind], _ = wholeNumber(within(doc, "seq_hi", kind.String()))
	}
	h.ID, h.Version, h.known = id, version, k
	if h.DefinitionID == "" {
		h.DefinitionID = r.text("definition_id")
	}
	if r.err != nil {
		target.SetZero()
	}
	return r.failed()
}

// isStub reports a document that AppendTrace made before the first commit.
func isStub(doc bson.Raw) bool {
	return missing(doc.Lookup("version")) && missing(doc.Lookup("data"))
}

func (r *reader) version() int64 {
	v := r.doc.Lookup("version")
	n, ok := wholeNumber(v)
	if !ok || n < 0 {
		r.damaged("version", "is "+typeName(v)+", not a whole number from 0")
	}
	return n
}

// data gives the snapshot: text where JSON wrote it, binary from another codec.
func (r *reader) data() (data []byte, text bool) {
	return r.encoded("data", r.doc.Lookup("data"))
}

func (r *reader) encoded(field string, v bson.RawValue) (data []byte, text bool) {
	if s, ok := v.StringValueOK(); ok {
		return []byte(s), true
	}
	if _, b, ok := v.BinaryOK(); ok {
		return b, false
	}
	r.damaged(field, "is "+typeName(v)+", neither a string nor binary")
	return nil, false
}

func (r *reader) promoted() promoted {
	return promoted{
		definitionID: r.text("definition_id"), parentID: r.text("parent_id"), status: r.text("status"),
		outcome: r.text("outcome"), activePath: r.text("active_path"),
	}
}

// decode reads JSON text with JSON, whatever the codec is now.
func (s *Store) decode(data []byte, text bool, v any) error {
	if text {
		return jsonCodec{}.Unmarshal(data, v)
	}
	return s.cfg.Codec.Unmarshal(data, v)
}

// readTraceIndex finds the next trace index of a document that nobody asked yet.
func (s *Store) readTraceIndex(ctx context.Context, a *attempt) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	projection := bson.D{{Key: "trace_next", Value: 1}, {Key: "last_index", Value: lastTraceIndex}}
	doc, err := s.executions.FindOne(ctx, byID(a.plan.id), options.FindOne().SetProjection(projection)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		doc, err = emptyDocument, nil // the update will find out
	}
	if err != nil {
		return err
	}
	a.takeTraceIndex(doc)
	return nil
}

// readAckedTimers finds out which of several acked times of one path still stands.
func (s *Store) readAckedTimers(ctx context.Context, a *attempt) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	doc, err := s.executions.FindOne(ctx, byID(a.plan.id), options.FindOne().SetProjection(bson.D{{Key: "timers", Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil // the update will find out
	}
	if err == nil {
		a.mendAckedTimers(doc)
	}
	return err
}
