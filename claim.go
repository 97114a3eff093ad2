package mongostore

import (
	"context"
	"crypto/rand"
	"errors"
	mrand "math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// ClaimOptions say how much to claim and for how long.
type ClaimOptions struct {
	// Limit is the most executions to claim. 0 is 10; negative is refused.
	Limit int
	// LeaseFor is how long the leases last without Extend. 0 is 30 s; negative is refused.
	LeaseFor time.Duration
}

const (
	defaultClaim    = 10
	defaultLeaseFor = 30 * time.Second
	claimWindow     = 8    // times the limit: what a claim looks at
	claimRuns       = 4    // tries to take something while others take the same
	claimLooks      = 1000 // at what is due, in one claim
	leaseEntries    = 100  // of each kind that one lease carries
)

// Claim takes leases on executions that are due, the longest due first as far as no
// other claimer is faster, at most opts.Limit; none is no error. Two claims never
// hold one execution at the same time, as long as their clocks differ by no more than
// a quarter of LeaseFor. An entry that cannot be read is buried at once, with the
// reason, and told to Config.OnDamaged. Three round trips in the steady state.
// Returns ErrInvalid if opts make no sense or ctx has an open transaction.
func (s *Store) Claim(ctx context.Context, opts ClaimOptions) ([]*Lease, error) {
	if opts.Limit < 0 {
		return nil, invalid("ClaimOptions.Limit", "is negative")
	}
	until, err := s.leaseEnd(orElse(opts.LeaseFor, defaultLeaseFor))
	if err != nil {
		return nil, invalid("ClaimOptions.LeaseFor", err.(*ValidationError).Reason)
	}
	ctx, err = refuseTransaction(ctx)
	if err != nil {
		return nil, err
	}
	leases, err := s.claim(ctx, min(orElse(opts.Limit, defaultClaim), maxLimit/claimWindow), until)
	return leases, wrapErr("claim", "", err)
}

// claim tries the longest due, then random runs of those that are due: what others
// took meanwhile gives nothing. Busy executions that commits have made due again are
// put back, because they would stand in front for as long as their lease lasts.
func (s *Store) claim(ctx context.Context, limit int, until float64) ([]*Lease, error) {
	window := limit // as a rule nobody is in the way
	for run, looks := 0, 0; run < claimRuns && looks < claimLooks; window, looks = claimWindow*limit, looks+1 {
		due, busy, strange, err := s.dueWindow(ctx, window)
		if err != nil {
			return nil, err
		}
		for _, id := range strange {
			if err := s.shelve(ctx, id); err != nil {
				return nil, err
			}
		}
		if len(busy) > 0 {
			if err := s.putBack(ctx, busy); err != nil {
				return nil, err
			}
		}
		full := len(due)+len(busy)+len(strange) == window
		if len(due) == 0 && !full {
			return nil, nil
		}
		if full && len(due) < min(limit, window-len(due)) || len(due) == 0 {
			continue // mostly what was put back: it is out of the way now
		}
		leases, changed, err := s.takeRun(ctx, due, limit, run, until)
		if err != nil || len(leases) > 0 {
			return leases, err
		}
		if !changed { // others were faster; else what owed nothing has left the index
			run++
		}
	}
	return nil, nil
}

// dueWindow reads the executions that look due, the longest due first.
func (s *Store) dueWindow(ctx context.Context, window int) (due, busy []string, strange []bson.RawValue, err error) {
	now := s.now()
	docs, err := s.find(ctx, bson.D{{Key: "due_at", Value: op("$lte", now)}},
		options.Find().SetProjection(bson.D{{Key: "lease.until", Value: 1}}).
			SetSort(bson.D{{Key: "due_at", Value: 1}}).SetLimit(int64(window)).SetBatchSize(int32(window+1)))
	if err != nil {
		return nil, nil, nil, err
	}
	for _, doc := range docs {
		id, ok := doc.Lookup("_id").StringValueOK()
		until, timed := seconds(within(doc, "lease", "until"))
		switch {
		case !ok || id == "":
			strange = append(strange, doc.Lookup("_id"))
		case timed && until > now:
			busy = append(busy, id)
		default:
			due = append(due, id)
		}
	}
	return due, busy, strange, nil
}

// takeRun claims a run of what is due: the first one for run 0, else a random one.
func (s *Store) takeRun(ctx context.Context, due []string, limit, run int, until float64) (leases []*Lease, changed bool, err error) {
	from := 0
	if run > 0 && len(due) > limit {
		from = mrand.IntN(len(due) - limit + 1)
	}
	return s.take(ctx, due[from:min(from+limit, len(due))], until)
}

// take claims those of ids that are still free, and reads them back by the token,
// whatever the reply was: only the documents tell who holds them.
func (s *Store) take(ctx context.Context, ids []string, until float64) (leases []*Lease, changed bool, err error) {
	token, now := rand.Text(), s.now()
	matched, err := s.sendTake(ctx, ids, now, until, token)
	tooLarge := mongoerr.HasCode(err, mongoerr.ObjectTooLarge, mongoerr.UpdateTooLarge)
	if err != nil && !isOpen(err) && !tooLarge || err == nil && matched == 0 {
		return nil, false, err
	}
	docs, err := s.readLeased(ctx, ids, token, now)
	if err != nil {
		return nil, false, err
	}
	leases = s.leases(ctx, docs, ids)
	if tooLarge {
		leases, err = s.takeEach(ctx, ids, leases, until)
		matched++
	}
	return leases, matched > 0, err
}

// takeEach claims one by one what a batch did not, because one of its documents has no
// room for a lease. That one gets out of the way; its entries can be acked by the sweeps.
func (s *Store) takeEach(ctx context.Context, ids []string, leases []*Lease, until float64) ([]*Lease, error) {
	const later = 60 // seconds
	taken := make(map[string]bool, len(leases))
	for _, l := range leases {
		taken[l.ExecutionID] = true
	}
	for _, id := range ids {
		if taken[id] {
			continue
		}
		l, err := s.claimOne(ctx, id, until)
		switch {
		case mongoerr.HasCode(err, mongoerr.ObjectTooLarge, mongoerr.UpdateTooLarge):
			s.reportDamage(&DamagedError{ExecutionID: id, Field: "lease", Reason: "has no room in a document of 16 MiB; acknowledge what waits in it", cause: err})
			_, err = s.updateTwice(ctx, byID(id), op("$set", op("due_at", s.now()+later))) // the same size
		case err == nil && l != nil:
			leases = append(leases, l)
		}
		if err != nil {
			return leases, err
		}
	}
	return leases, nil
}

func (s *Store) sendTake(ctx context.Context, ids []string, now, until float64, token string) (int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	filter := append(bson.D{{Key: "_id", Value: op("$in", ids)}}, takeable(now)...)
	res, err := s.executions.UpdateMany(ctx, filter, s.takeStages(now, until, token))
	if err != nil {
		return 0, err
	}
	return res.ModifiedCount, nil
}

// takeable is what a claim may take. An end that is no time keeps nobody out.
func takeable(now float64) bson.D {
	return bson.D{
		{Key: "due_at", Value: op("$lte", now)},
		// heldUntil as a classic condition, which costs half: arrays match by their elements.
		{Key: "$nor", Value: bson.A{bson.D{
			{Key: "lease", Value: op("$not", op("$type", "array"))},
			{Key: "lease.until", Value: bson.D{
				{Key: "$type", Value: bson.A{"double", "int", "long"}}, {Key: "$not", Value: op("$type", "array")},
				{Key: "$gt", Value: now}, {Key: "$lt", Value: float64(lastSecond)},
			}},
		}}},
	}
}

// takeStages is the claim: a lease where something is owed by now, else a due_at that
// is true. It checks what it reads, because one damaged document would fail the batch.
func (s *Store) takeStages(now, until float64, token string) bson.A {
	tried := op("$and", bson.A{op("$eq", bson.A{"$lease.head", "$$head"}), isNumber("$lease.attempts")})
	lease := op("$let", bson.D{
		{Key: "vars", Value: bson.D{{Key: "head", Value: headOf(s.cfg.RelayKinds, "$due_at")}}}, // the earliest timer's time, by then
		{Key: "in", Value: bson.D{
			{Key: "token", Value: op("$literal", token)}, {Key: "until", Value: until},
			{Key: "attempts", Value: cond(tried, op("$add", bson.A{"$lease.attempts", 1}), 1)}, {Key: "head", Value: "$$head"},
		}},
	})
	owes, due := op("$ne", bson.A{"$due_at", nil}), op("$lte", bson.A{"$due_at", now})
	return bson.A{
		op("$set", bson.D{{Key: "due_at", Value: s.owed(now)}}),
		op("$set", bson.D{
			// In two steps: $set merges a document into the one that stands there.
			{Key: "lease", Value: cond(op("$and", bson.A{owes, due}), lease, op("$ifNull", bson.A{"$lease", "$$REMOVE"}))},
			{Key: "due_at", Value: cond(owes, cond(due, until, "$due_at"), "$$REMOVE")},
		}),
	}
}

// headOf names the first entry in the order of delivery: attempts are its own. A timer
// is named by its time.
func headOf(kinds Kind, timer any) any {
	named := func(prefix string, v any) bson.D {
		text := op("$convert", bson.D{{Key: "input", Value: v}, {Key: "to", Value: "string"}, {Key: "onError", Value: ""}, {Key: "onNull", Value: ""}})
		return op("$concat", bson.A{prefix, text})
	}
	first := func(field string) bson.D { return op("$arrayElemAt", bson.A{"$" + field + ".seq", 0}) }
	some := func(field string) bson.D {
		return op("$and", bson.A{op("$isArray", "$"+field), op("$ne", bson.A{"$" + field, bson.A{}})})
	}
	head := any(named("timer:", timer))
	if kinds&KindOutbox != 0 {
		head = cond(some("outbox"), named("outbox:", first("outbox")), head)
	}
	if kinds&KindSpawn != 0 {
		head = cond(some("spawns"), named("spawn:", first("spawns")), head)
	}
	return head
}

// putBack makes executions due again when their lease or backoff ends.
func (s *Store) putBack(ctx context.Context, ids []string) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, err := s.executions.UpdateMany(ctx,
		bson.D{{Key: "_id", Value: op("$in", ids)}, {Key: "lease.until", Value: op("$gt", s.now())}},
		bson.A{op("$set", bson.D{{Key: "due_at", Value: op("$max", bson.A{cond(isTime("$due_at"), "$due_at", nil), heldUntil(s.now())})}})})
	return err
}

// readLeased ships the work of the executions that the token holds.
func (s *Store) readLeased(ctx context.Context, ids []string, token string, now float64) ([]bson.Raw, error) {
	filter := bson.D{{Key: "_id", Value: op("$in", ids)}, {Key: "lease.token", Value: token}}
	if claimsUnread() {
		filter = filter[:1]
	}
	return s.find(ctx, filter, options.Find().SetProjection(s.leaseProjection(now)))
}

// leaseProjection ships what one lease carries: no event before all spawns, so that
// a child exists before the event for it.
func (s *Store) leaseProjection(now float64) bson.D {
	size := func(field string) bson.D {
		return cond(op("$isArray", "$"+field), op("$size", "$"+field), 0)
	}
	some := func(field string) any {
		path := "$" + field
		return cond(op("$isArray", path), op("$slice", bson.A{path, leaseEntries}), path)
	}
	kinds, fields := s.cfg.RelayKinds, bson.D{{Key: "lease", Value: 1}}
	more := bson.A{}
	if kinds&KindSpawn != 0 {
		fields = append(fields, bson.E{Key: "spawns", Value: some("spawns")})
		more = append(more, op("$gt", bson.A{size("spawns"), leaseEntries}))
	}
	if kinds&KindOutbox != 0 {
		outbox := some("outbox")
		if kinds&KindSpawn != 0 {
			outbox = cond(op("$gt", bson.A{size("spawns"), leaseEntries}), bson.A{}, outbox)
		}
		fields = append(fields, bson.E{Key: "outbox", Value: outbox})
		more = append(more, op("$gt", bson.A{size("outbox"), leaseEntries}))
	}
	if kinds&KindTimer != 0 {
		timers := any(dueExpression(now, leaseEntries))
		if len(more) > 0 {
			timers = cond(op("$or", more), bson.A{}, timers)
		}
		fields = append(fields, bson.E{Key: "timers", Value: timers})
	}
	return append(fields, bson.E{Key: "more", Value: op("$or", more)},
		bson.E{Key: "untimed", Value: op("$eq", bson.A{"$timers", bson.D{}})})
}

// plainProjection ships what a lease carries, and more, for one document: computing on
// the server what leaseProjection does would take a sixth of the whole claim.
var plainProjection = mustEncode(bson.D{
	{Key: "data", Value: 0}, {Key: "processed", Value: 0}, {Key: "trace", Value: 0}, {Key: "commits", Value: 0}, {Key: "dead", Value: 0},
	{Key: "outbox", Value: op("$slice", leaseEntries+1)}, {Key: "spawns", Value: op("$slice", leaseEntries+1)},
})

// claimOne claims one execution in one trip, if it is due and free.
func (s *Store) claimOne(ctx context.Context, id string, until float64) (*Lease, error) {
	token, now := rand.Text(), s.now()
	bounded, cancel := s.bounded(ctx)
	doc, err := s.executions.FindOneAndUpdate(bounded, append(byID(id), takeable(now)...), s.takeStages(now, until, token),
		options.FindOneAndUpdate().SetReturnDocument(options.After).SetProjection(plainProjection)).Raw()
	cancel()
	if err == nil {
		doc = s.projected(doc, now)
	}
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil, nil
	case isOpen(err):
		var docs []bson.Raw
		if docs, err = s.readLeased(ctx, []string{id}, token, now); err != nil || len(docs) == 0 {
			return nil, err
		}
		doc = docs[0]
	case err != nil:
		return nil, err
	}
	if held, _ := within(doc, "lease", "token").StringValueOK(); held != token {
		return nil, nil // nothing was owed
	}
	if leases := s.leases(ctx, []bson.Raw{doc}, []string{id}); len(leases) > 0 {
		return leases[0], nil
	}
	return nil, nil
}
