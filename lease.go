package mongostore

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// Leases: the document of an execution holds the right to deliver what it owes. The
// idea of the token that fences a slow holder out is the fencing token of locks in
// distributed systems; here it is part of the filter of every write.

// Lease is the right to deliver what one execution owes, until a time. It is plain
// data and may travel. One goroutine at a time may use it.
type Lease struct {
	// ExecutionID is the execution; Token fences every write under this lease.
	ExecutionID, Token string
	// Until is when the lease ends, by Config.Clock. At that very instant it has ended.
	// Until somebody else claims, its holder's writes are honoured all the same.
	Until time.Time
	// Attempt counts the claims of the first entry, 1 the first: a holder that died
	// counts too.
	Attempt int
	// Spawns, Outbox and Timers are what to deliver, in this order and each in its own,
	// at most 100 of a kind: an execution with more is due again after Complete.
	Outbox []OutboxEntry
	Spawns []SpawnEntry
	Timers []Timer

	more    bool // there is more than it carries
	untimed bool // no timer was armed when it was claimed
}

// entries gives all entries in the order of delivery: a child exists before the
// event for it.
func (l *Lease) entries() []Entry {
	all := make([]Entry, 0, len(l.Spawns)+len(l.Outbox)+len(l.Timers))
	for _, e := range l.Spawns {
		all = append(all, e)
	}
	for _, e := range l.Outbox {
		all = append(all, e)
	}
	for _, e := range l.Timers {
		all = append(all, e)
	}
	return all
}

// Complete acks every entry that l carries and frees it, in one update; what was
// acked before is no error. An entry that was buried and requeued meanwhile is acked
// too: take what you bury out of l. A lease that has ended but that nobody took is
// honoured.
// Returns ErrLeaseLost, and nothing is changed, if the token does not hold it.
// Returns ErrInvalid if l has no id or no token, or ctx has an open transaction.
func (s *Store) Complete(ctx context.Context, l *Lease) error {
	return s.under(ctx, "complete", l, func(float64) handover { return handover{acked: l.entries(), lease: free} })
}

// Release frees l as if it had never been claimed: the attempt does not count.
// Returns ErrLeaseLost, and nothing is changed, if the token does not hold it.
// Returns ErrInvalid if l has no id or no token, or ctx has an open transaction.
func (s *Store) Release(ctx context.Context, l *Lease) error {
	return s.under(ctx, "release", l, func(now float64) handover { return handover{lease: s.released(now)} })
}

// Retry gives l up and keeps the execution back for the given time, rounded to the
// microsecond; 0 and less make it due at once. The attempt counts. cause, which may
// be nil, stays beside the count for operators.
// Returns ErrLeaseLost, and nothing is changed, if the token does not hold it.
// Returns ErrInvalid if l has no id or no token, after is beyond the year 9999, or ctx
// has an open transaction.
func (s *Store) Retry(ctx context.Context, l *Lease, after time.Duration, cause error) error {
	if !fitsSeconds(s.now() + after.Seconds()) {
		return invalid("after", "reaches beyond the year 9999")
	}
	return s.under(ctx, "retry", l, func(now float64) handover { return handover{lease: s.retried(now, after, cause)} })
}

// Extend makes l last for d from now, and never shortens it: l.Until moves to the
// later end. A lease that has ended but that nobody took is extended too.
// Returns ErrLeaseLost, and nothing is changed, if the token does not hold it.
// Returns ErrInvalid if l has no id or no token, d is not positive or reaches beyond
// the year 9999, or ctx has an open transaction.
func (s *Store) Extend(ctx context.Context, l *Lease, d time.Duration) error {
	if err := l.valid(); err != nil {
		return err
	}
	until, err := s.leaseEnd(d)
	if err != nil {
		return err
	}
	ctx, err = refuseTransaction(ctx)
	if err != nil {
		return err
	}
	lost, err := s.extend(ctx, []*Lease{l}, until)
	if err == nil && len(lost) > 0 {
		err = &LeaseLostError{IDs: []string{l.ExecutionID}}
	}
	if end := fromSeconds(until); err == nil && end.After(l.Until) {
		l.Until = end
	}
	return wrapErr("extend the lease of", l.ExecutionID, err)
}

// leaseEnd is d from now.
func (s *Store) leaseEnd(d time.Duration) (float64, error) {
	until := s.now() + d.Seconds()
	switch {
	case d <= 0:
		return 0, invalid("LeaseFor", "is not positive")
	case !fitsSeconds(until):
		return 0, invalid("LeaseFor", "reaches beyond the year 9999")
	}
	return until, nil
}

// extend moves the ends of many leases in one update and names those that are lost.
// due_at moves along: a commit may have lowered it, and nothing is due while leased.
func (s *Store) extend(ctx context.Context, leases []*Lease, until float64) (lost []*Lease, err error) {
	filter := holds(leases)
	update := op("$max", bson.D{{Key: "lease.until", Value: until}, {Key: "due_at", Value: until}})
	bounded, cancel := s.bounded(ctx)
	res, err := s.executions.UpdateMany(bounded, filter, update)
	cancel()
	if err != nil {
		return nil, err
	}
	if res.MatchedCount == int64(len(leases)) {
		return nil, nil
	}
	held, err := s.heldOf(ctx, filter)
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		if held[l.ExecutionID] != l.Token {
			lost = append(lost, l)
		}
	}
	return lost, nil
}

// heldOf reads which executions a filter of leases still finds, and under what token.
func (s *Store) heldOf(ctx context.Context, filter bson.D) (map[string]string, error) {
	docs, err := s.find(ctx, filter, options.Find().SetProjection(bson.D{{Key: "lease.token", Value: 1}}))
	if err != nil {
		return nil, err
	}
	held := make(map[string]string, len(docs))
	for _, doc := range docs {
		id, _ := doc.Lookup("_id").StringValueOK()
		held[id], _ = within(doc, "lease", "token").StringValueOK()
	}
	return held, nil
}

// holds finds the executions that some tokens hold. Tokens are unique, so an id and a
// token that belong to different leases never meet.
func holds(leases []*Lease) bson.D {
	var ids, tokens bson.A
	seen := map[string]bool{}
	for _, l := range leases {
		ids = append(ids, l.ExecutionID)
		if !seen[l.Token] {
			tokens, seen[l.Token] = append(tokens, l.Token), true
		}
	}
	return bson.D{{Key: "_id", Value: op("$in", ids)}, {Key: "lease.token", Value: op("$in", tokens)}}
}

func (l *Lease) valid() error {
	if l == nil {
		return invalid("Lease", "is nil")
	}
	if err := validText("Lease.ExecutionID", l.ExecutionID); err != nil {
		return err
	}
	return validText("Lease.Token", l.Token)
}

// handover is one update under a lease: some entries go, and the lease becomes what
// the expression says.
type handover struct {
	acked []Entry
	lease any
	quick bool // try the classic update first
}

// free is a lease that nobody holds and that nothing is known of.
const free = "$$REMOVE"

// released takes back the attempt that the claim counted.
func (s *Store) released(now float64) bson.D {
	return cond(op("$and", bson.A{s.headIsTried(), op("$gt", bson.A{"$lease.attempts", 1})}),
		bson.D{{Key: "until", Value: now}, {Key: "attempts", Value: op("$subtract", bson.A{"$lease.attempts", 1})}, {Key: "head", Value: "$lease.head"}},
		free)
}

// headIsTried is whether the attempts in the lease are those of the entry that is
// first now.
func (s *Store) headIsTried() bson.D {
	return op("$and", bson.A{op("$eq", bson.A{"$lease.head", headOf(s.cfg.RelayKinds, earliestTimerOrNull)}), isNumber("$lease.attempts")})
}

// retried is a lease without a holder: what is leased and what backs off look the same
// to a claim, so that a commit cannot undo the backoff.
func (s *Store) retried(now float64, after time.Duration, cause error) bson.D {
	return op("$mergeObjects", bson.A{bson.D{ // a bare document would be merged into the lease that stands there
		{Key: "until", Value: now + math.Max(after.Seconds(), 0)},
		{Key: "attempts", Value: cond(s.headIsTried(), "$lease.attempts", 1)},
		{Key: "head", Value: headOf(s.cfg.RelayKinds, earliestTimerOrNull)},
		{Key: "cause", Value: literalText(causeText(cause))},
	}})
}

// causeText is an error for a document, of a long one the beginning.
func causeText(cause error) string {
	const most = 1024
	if cause == nil {
		return ""
	}
	text := cause.Error()
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// under does one update that the token of l must hold.
func (s *Store) under(ctx context.Context, what string, l *Lease, made func(now float64) handover) error {
	if err := l.valid(); err != nil {
		return err
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	now := s.now()
	lost, err := s.handOver(ctx, []*Lease{l}, []handover{made(now)}, now)
	if err == nil && len(lost) > 0 {
		err = &LeaseLostError{IDs: []string{l.ExecutionID}}
	}
	return wrapErr(what+" the lease of", l.ExecutionID, err)
}

// handOver does many handovers in one command and gives the leases that were lost. A
// lost reply is repeated: what has landed is told by the entries that are gone.
func (s *Store) handOver(ctx context.Context, leases []*Lease, hs []handover, now float64) (lost []*Lease, err error) {
	matched, err := s.sendHandovers(ctx, leases, hs, now)
	switch alone := len(leases) == 1; {
	case err != nil && !isOpen(err) && alone:
		return nil, err
	case err == nil && matched == int64(len(leases)):
		return nil, nil
	case err == nil && alone && !hs[0].quick:
		return leases, nil
	}
	var failed error
	for i, l := range leases {
		hs[i].quick = false
		one, err := s.sendHandovers(ctx, leases[i:i+1], hs[i:i+1], now)
		done := one == 1
		if err == nil && !done {
			done, err = s.handedOver(ctx, l, hs[i])
		}
		if isOpen(err) || mongoerr.NeverSent(err) {
			return nil, err // the server cannot be asked about the rest either
		}
		if failed = cmp.Or(err, failed); !done { // one that is refused must not cost the others of the batch their leases
			lost = append(lost, l)
		}
	}
	if len(leases) == 1 {
		return lost, failed
	}
	if failed != nil {
		s.cfg.Logger.Warn("mongostore: leases could not be handed over", "error", failed)
	}
	return lost, nil
}

func (s *Store) sendHandovers(ctx context.Context, leases []*Lease, hs []handover, now float64) (matched int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if len(leases) == 1 {
		filter, update := s.handoverUpdate(leases[0], hs[0], now)
		res, err := s.executions.UpdateOne(ctx, filter, update)
		if err != nil {
			return 0, err
		}
		return res.MatchedCount, nil
	}
	writes := make([]mongo.WriteModel, 0, len(leases))
	for i, l := range leases {
		filter, update := s.handoverUpdate(l, hs[i], now)
		writes = append(writes, mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update))
	}
	res, err := s.executions.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return 0, err
	}
	return res.MatchedCount, nil
}

func (s *Store) handoverUpdate(l *Lease, h handover, now float64) (filter bson.D, update any) {
	if h.quick {
		return untouched(l), acksAll
	}
	return holder(l), s.handoverStages(h, now)
}

// quickEntries is up to how many entries the classic update is worth its filter.
const quickEntries = 20

// canBeQuick is whether a classic update can complete l: at a quarter of the cost of
// the pipeline, if nothing has been added to the document since the claim.
func (s *Store) canBeQuick(l *Lease) bool {
	return s.cfg.RelayKinds == kindAll && l.untimed && !l.more && len(l.Timers) == 0 && len(l.Outbox)+len(l.Spawns) <= quickEntries
}

// acksAll leaves nothing that is owed.
var acksAll = bson.D{
	{Key: "$set", Value: bson.D{{Key: "outbox", Value: bson.A{}}, {Key: "spawns", Value: bson.A{}}}},
	{Key: "$unset", Value: bson.D{{Key: "lease", Value: ""}, {Key: "due_at", Value: ""}, {Key: "timer_at", Value: ""}}},
}

// untouched finds the document of l only while it owes exactly what l carries.
func untouched(l *Lease) bson.D {
	filter := append(holder(l), bson.E{Key: "timers", Value: bson.D{}},
		bson.E{Key: "outbox", Value: op("$size", len(l.Outbox))}, bson.E{Key: "spawns", Value: op("$size", len(l.Spawns))})
	for i, e := range l.Outbox {
		filter = append(filter, bson.E{Key: "outbox." + index(i) + ".seq", Value: e.Seq})
	}
	for i, e := range l.Spawns {
		filter = append(filter, bson.E{Key: "spawns." + index(i) + ".seq", Value: e.Seq})
	}
	return filter
}

func holder(l *Lease) bson.D {
	if acksWithoutToken() {
		return byID(l.ExecutionID)
	}
	return append(byID(l.ExecutionID), bson.E{Key: "lease.token", Value: l.Token})
}

// handedOver tells whether a handover that found no token has landed before: the
// lease is free, or somebody else's, and no entry that it acked is there.
func (s *Store) handedOver(ctx context.Context, l *Lease, h handover) (bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	still := bson.A{}
	for _, e := range h.acked {
		switch e := e.(type) {
		case OutboxEntry:
			still = append(still, op("outbox", op("$elemMatch", op("seq", e.Seq))))
		case SpawnEntry:
			still = append(still, op("spawns", op("$elemMatch", op("seq", e.Seq))))
		case Timer:
			for _, key := range pathKeys(e.Path) {
				still = append(still, op("timers."+key, stillAt(toSeconds(e.FireAt))))
			}
		}
	}
	if len(still) == 0 { // free as asked, unless somebody else has it by now
		still = bson.A{op("lease.token", bson.D{{Key: "$exists", Value: true}, {Key: "$ne", Value: l.Token}})}
	}
	_, err := s.executions.FindOne(ctx, append(byID(l.ExecutionID), bson.E{Key: "$or", Value: still}), memberOptions).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return true, nil
	}
	return false, err
}

// handoverStages is the update by pipeline, every field behind a check of its type.
func (s *Store) handoverStages(h handover, now float64) bson.A {
	var set bson.D
	var outbox, spawns bson.A
	var timers []Timer
	for _, e := range h.acked {
		switch e := e.(type) {
		case OutboxEntry:
			outbox = append(outbox, e.Seq)
		case SpawnEntry:
			spawns = append(spawns, e.Seq)
		case Timer:
			timers = append(timers, e)
		}
	}
	if len(outbox) > 0 {
		set = append(set, withoutSeqs("outbox", outbox))
	}
	if len(spawns) > 0 {
		set = append(set, withoutSeqs("spawns", spawns))
	}
	if len(timers) > 0 {
		set = append(set, withoutTimers(timers))
	}
	lease := op("$set", bson.D{{Key: "lease", Value: h.lease}}) // after the acks: it looks at what is first then
	if len(set) == 0 {
		return bson.A{lease, s.whenDue(now)}
	}
	return bson.A{op("$set", set), lease, s.whenDue(now)}
}

func withoutSeqs(field string, seqs bson.A) bson.E {
	path := "$" + field
	rest := op("$filter", bson.D{{Key: "input", Value: path}, {Key: "cond", Value: op("$not", bson.A{op("$in", bson.A{"$$this.seq", seqs})})}})
	return bson.E{Key: field, Value: cond(op("$isArray", path), rest, path)}
}

// isTimerOf is whether $$this, a timer as {k, v}, is of path.
func isTimerOf(path string) bson.D {
	return op("$in", bson.A{"$$this.k", op("$literal", pathKeys(path))})
}

// withoutTimers leaves out those that still stand at their times: one that was armed
// anew meanwhile is another.
func withoutTimers(timers []Timer) bson.E {
	var those bson.A
	for _, t := range timers {
		at := toSeconds(t.FireAt)
		those = append(those, op("$and", bson.A{
			isTimerOf(t.Path), isTime("$$this.v"),
			op("$gte", bson.A{"$$this.v", at - nanosecond}), op("$lte", bson.A{"$$this.v", at + nanosecond}),
		}))
	}
	rest := op("$arrayToObject", op("$filter", bson.D{{Key: "input", Value: timersArray}, {Key: "cond", Value: op("$not", bson.A{op("$or", those)})}}))
	return bson.E{Key: "timers", Value: cond(op("$eq", bson.A{op("$type", "$timers"), "object"}), rest, "$timers")}
}
