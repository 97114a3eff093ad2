package mongostore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/execstore/mongostore/internal/names"
)

// plan is one commit's contents, checked and encoded once, before anything is
// numbered or written. It does not change afterwards.
type plan struct {
	id        string
	old       int64
	now       float64
	fields    promoted
	data      []byte
	text      bool // data and events are JSON text
	emits     []plannedEmit
	spawns    []plannedSpawn
	timers    []plannedTimer
	processed string
	trace     bson.Raw
	acks      plannedAcks
}

type plannedEmit struct {
	target string
	event  []byte
	text   bool
}

type plannedSpawn struct {
	child, path string
	input       bson.Raw
}

type plannedTimer struct {
	key, harelKey string // harelKey: empty unless harel names the same path otherwise
	at            float64
	cancel        bool
}

type plannedAcks struct {
	outbox, spawns []int64
	timers         []ackedTimer
	ambiguous      bool // one path at two times: only the document tells which stands
	token          string
}

type ackedTimer struct {
	key, harelKey string
	at            float64
}

// maxDocument is the server's limit for one document, in bytes.
const maxDocument = 16 << 20

// planCommit checks and encodes. In h it changes Version while the codec runs, and
// sets it back.
func (s *Store) planCommit(h *Header, exe Execution, ch *Changes) (*plan, error) {
	p := &plan{id: h.ID, old: h.Version, now: s.now(), fields: promotedOf(h), text: s.textCodec, processed: ch.Processed}
	if !fitsSeconds(p.now) {
		return nil, invalid("Config.Clock", "gives a time outside the years 1 to 9999")
	}
	if err := p.check(h, ch); err != nil {
		return nil, err
	}
	if err := p.encode(s.cfg.Codec, ch); err != nil {
		return nil, err
	}
	var err error
	if p.data, err = s.snapshot(h, exe); err != nil {
		return nil, err
	}
	size := p.size()
	if size > maxDocument {
		return nil, tooLarge("commit", h.ID, size)
	}
	if s.cfg.WarnBytes > 0 && size > s.cfg.WarnBytes {
		s.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, "mongostore: large commit",
			slog.String("execution", h.ID), slog.Int("bytes", size))
	}
	return p, nil
}

// check looks at what needs no encoder.
func (p *plan) check(h *Header, ch *Changes) error {
	if err := validHeader(h); err != nil {
		return err
	}
	if err := optionalText("Changes.Processed", ch.Processed); err != nil {
		return err
	}
	if err := p.planTimers(ch.Timers); err != nil {
		return err
	}
	return p.planAcks(ch.Acks)
}

// encode encodes all but the snapshot.
func (p *plan) encode(codec Codec, ch *Changes) error {
	if err := p.planSpawns(ch.Spawns); err != nil {
		return err
	}
	if err := p.planTrace(ch.Trace); err != nil {
		return err
	}
	return p.planEmits(codec, ch.Emits)
}

// snapshot encodes exe as of its next version.
func (s *Store) snapshot(h *Header, exe Execution) ([]byte, error) {
	h.Version++
	defer func() { h.Version-- }() // also when the codec panics
	data, err := s.cfg.Codec.Marshal(exe)
	if err != nil {
		return nil, &ValidationError{Field: "Execution", Reason: "cannot be encoded: " + err.Error(), cause: err}
	}
	if s.textCodec && !utf8.Valid(data) {
		return nil, invalid("Execution", "encodes to text that is not UTF-8")
	}
	return data, nil
}

func validHeader(h *Header) error {
	if err := validText("Header.ID", h.ID); err != nil {
		return err
	}
	for _, f := range [...]struct{ name, value string }{
		{"Header.DefinitionID", h.DefinitionID}, {"Header.ParentID", h.ParentID}, {"Header.Status", h.Status},
		{"Header.Outcome", h.Outcome}, {"Header.ActivePath", h.ActivePath},
	} {
		if err := optionalText(f.name, f.value); err != nil {
			return err
		}
	}
	if h.Version < 0 || h.Version == math.MaxInt64 {
		return invalid("Header.Version", "is negative, or the last there is")
	}
	return nil
}

// validText checks an id or another text that must not be empty.
func validText(field, s string) error {
	if s == "" {
		return invalid(field, "is empty")
	}
	return optionalText(field, s)
}

func optionalText(field, s string) error {
	if reason := names.Text(s); reason != "" {
		return invalid(field, reason)
	}
	return nil
}

// at makes the field of an item's error that of the whole list.
func at(list string, i int, err error) error { return of(list+"["+strconv.Itoa(i)+"]", err) }

// of makes the field of a part's error that of the whole.
func of(whole string, err error) error {
	if v, ok := err.(*ValidationError); ok {
		v.Field = whole + v.Field
	}
	return err
}

func (p *plan) planEmits(codec Codec, emits []Emit) error {
	if len(emits) > 0 {
		p.emits = make([]plannedEmit, 0, len(emits))
	}
	for i, e := range emits {
		planned, err := planEvent(codec, p.text, e.Event)
		if err == nil {
			err = optionalText(".TargetID", e.TargetID)
		}
		if err != nil {
			return at("Changes.Emits", i, err)
		}
		planned.target = e.TargetID
		p.emits = append(p.emits, planned)
	}
	return nil
}

func planEvent(codec Codec, text bool, event any) (plannedEmit, error) {
	if raw, ok := event.(json.RawMessage); ok {
		if !json.Valid(raw) || !utf8.Valid(raw) {
			return plannedEmit{}, invalid(".Event", "is a json.RawMessage that is not JSON in UTF-8")
		}
		return plannedEmit{event: bytes.Clone(raw), text: true}, nil
	}
	data, err := codec.Marshal(event)
	if err != nil {
		return plannedEmit{}, &ValidationError{Field: ".Event", Reason: "cannot be encoded: " + err.Error(), cause: err}
	}
	if text && !utf8.Valid(data) {
		return plannedEmit{}, invalid(".Event", "encodes to text that is not UTF-8")
	}
	return plannedEmit{event: data, text: text}, nil
}

func (p *plan) planSpawns(spawns []Spawn) error {
	if len(spawns) > 0 {
		p.spawns = make([]plannedSpawn, 0, len(spawns))
	}
	for i, sp := range spawns {
		planned, err := planSpawn(sp)
		if err != nil {
			return at("Changes.Spawns", i, err)
		}
		p.spawns = append(p.spawns, planned)
	}
	return nil
}

func planSpawn(sp Spawn) (plannedSpawn, error) {
	if err := validText(".ChildID", sp.ChildID); err != nil {
		return plannedSpawn{}, err
	}
	if err := optionalText(".RootPath", sp.RootPath); err != nil {
		return plannedSpawn{}, err
	}
	input, err := planDocument(".Input", sp.Input)
	return plannedSpawn{child: sp.ChildID, path: sp.RootPath, input: input}, err
}

func (p *plan) planTrace(step any) (err error) {
	if isNil(step) {
		return nil
	}
	p.trace, err = planDocument("Changes.Trace", step)
	return err
}

// maxDepth keeps user documents below the server's nesting limit of 200, with room
// for the update around them.
const maxDepth = 150

func planDocument(field string, v any) (bson.Raw, error) {
	doc, err := encodeBSON(v)
	if err != nil {
		return nil, &ValidationError{Field: field, Reason: "cannot be encoded as a BSON document: " + err.Error(), cause: err}
	}
	if err := doc.Validate(); err != nil {
		return nil, invalid(field, "is broken BSON: "+err.Error())
	}
	if problem := documentProblem(doc, maxDepth); problem != "" {
		return nil, invalid(field, problem)
	}
	return doc, nil
}

// documentProblem says why the server or another language could not read a valid doc;
// empty: it can. The encoder lets text through that is not UTF-8.
func documentProblem(doc bson.Raw, levels int) string {
	if levels == 0 {
		return fmt.Sprintf("is nested deeper than %d levels", maxDepth)
	}
	for e := range elementsOf(doc) {
		problem := ""
		switch v := e.Value(); v.Type {
		case bson.TypeString:
			if !utf8.ValidString(v.StringValue()) {
				problem = "holds text that is not UTF-8"
			}
		case bson.TypeEmbeddedDocument, bson.TypeArray:
			problem = documentProblem(bson.Raw(v.Value), levels-1)
		}
		if !utf8.ValidString(e.Key()) {
			problem = "holds a key that is not UTF-8"
		}
		if problem != "" {
			return problem
		}
	}
	return ""
}

// planTimers keeps the last op of each path, in the order of the paths' first ops.
func (p *plan) planTimers(ops []TimerOp) error {
	for i, op := range ops {
		if err := validTimerOp(op); err != nil {
			return at("Changes.Timers", i, err)
		}
		t := plannedTimer{key: encodePath(op.Path), at: toSeconds(op.FireAt), cancel: op.Cancel}
		t.harelKey, _ = harelKey(op.Path)
		p.setTimer(t)
	}
	return nil
}

func validTimerOp(op TimerOp) error {
	switch {
	case op.Cancel:
	case op.FireAt.IsZero():
		return invalid(".FireAt", "is zero and Cancel is not set")
	case !fitsTime(op.FireAt):
		return invalid(".FireAt", "is outside the years 1 to 9999")
	}
	return optionalText(".Path", op.Path)
}

func (p *plan) setTimer(t plannedTimer) {
	for i := range p.timers {
		if p.timers[i].key == t.key {
			p.timers[i] = t
			return
		}
	}
	p.timers = append(p.timers, t)
}

// earliest gives the earliest time that this commit arms.
func (p *plan) earliest() (at float64, armed bool) {
	for _, t := range p.timers {
		if !t.cancel && (!armed || t.at < at) {
			at, armed = t.at, true
		}
	}
	return at, armed
}

func (p *plan) planAcks(acks []Entry) error {
	for i, e := range acks {
		owner, token, err := p.planAck(e)
		switch {
		case err != nil:
		case owner != p.id:
			err = invalid("", fmt.Sprintf("belongs to execution %q, not to %q", owner, p.id))
		case token != "" && p.acks.token != "" && token != p.acks.token:
			err = invalid(".Token", "differs from that of another entry")
		}
		if err != nil {
			return at("Changes.Acks", i, err)
		}
		p.acks.token = orElse(token, p.acks.token)
	}
	return nil
}

func (p *plan) planAck(e Entry) (owner, token string, err error) {
	switch e := e.(type) {
	case OutboxEntry:
		p.acks.outbox = append(p.acks.outbox, e.Seq)
		return e.ExecutionID, e.Token, nil
	case SpawnEntry:
		p.acks.spawns = append(p.acks.spawns, e.Seq)
		return e.ParentID, e.Token, nil
	case Timer:
		p.acks.ackTimer(p, e)
		return e.ExecutionID, e.Token, optionalText(".Path", e.Path)
	}
	return "", "", invalid("", fmt.Sprintf("is a %T, not an OutboxEntry, SpawnEntry or Timer", e))
}

// ackTimer takes a fired timer unless this commit arms or cancels its path itself.
func (a *plannedAcks) ackTimer(p *plan, t Timer) {
	key := encodePath(t.Path)
	for _, op := range p.timers {
		if op.key == key {
			return
		}
	}
	acked := ackedTimer{key: key, at: toSeconds(t.FireAt)}
	if other, ok := harelKey(t.Path); ok {
		acked.harelKey = other
	}
	for _, have := range a.timers {
		if have == acked {
			return
		}
		a.ambiguous = a.ambiguous || have.key == key
	}
	a.timers = append(a.timers, acked)
}

// size is a lower bound of what the commit adds to a document.
func (p *plan) size() int {
	n := len(p.data) + len(p.trace) + len(p.processed)
	for _, e := range p.emits {
		n += len(e.event)
	}
	for _, sp := range p.spawns {
		n += len(sp.input)
	}
	return n
}

// digest tells whether two plans have the same contents. It is only made for an
// attempt that ended open. Documents count as sets of fields, because a Go map
// encodes in another order each time.
func (p *plan) digest() [32]byte {
	h := sha256.New()
	part := func(b []byte) { fmt.Fprintf(h, "%d:", len(b)); h.Write(b) }
	part([]byte(fmt.Sprintf("%q %d %q %t", p.id, p.old, p.fields, p.text)))
	part(p.data)
	for _, e := range p.emits {
		part([]byte(e.target))
		part(e.event)
	}
	for _, sp := range p.spawns {
		part([]byte(fmt.Sprintf("%q %q", sp.child, sp.path)))
		part(canonical(sp.input))
	}
	timers, acks := slices.Clone(p.timers), p.acks // both count as sets: engines fill them from maps
	slices.SortFunc(timers, func(a, b plannedTimer) int { return strings.Compare(a.key, b.key) })
	acks.timers = slices.Clone(acks.timers)
	slices.SortFunc(acks.timers, func(a, b ackedTimer) int { return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.at, b.at)) })
	acks.outbox, acks.spawns = slices.Sorted(slices.Values(acks.outbox)), slices.Sorted(slices.Values(acks.spawns))
	part([]byte(fmt.Sprintf("%v %q %v", timers, p.processed, acks)))
	part(canonical(p.trace))
	return [32]byte(h.Sum(nil))
}
