package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/wait"
)

// Complete ends deliveries that were handled. What waits behind them can be claimed from
// the same command on. A lease that has run out counts as long as nobody took it. With an
// open transaction in ctx it joins: the deliveries are completed if that commits, and it
// writes the handler's effects and the completion together.
//
// Returns a *LeaseLostError with the deliveries that are not held any more: outside a
// transaction the others are completed; inside one return it, so that nothing is.
// Returns ErrInvalid if a delivery has no id or no token; ErrOutsideTransaction if the
// session in ctx has no open transaction; ErrUnknownOutcome if the server could not be
// asked whether it landed: complete the same deliveries again.
func (s *Store) Complete(ctx context.Context, ds ...*Delivery) error {
	fs := make([]finish, 0, len(ds))
	for i, d := range ds {
		if err := d.valid(); err != nil {
			return at(fmt.Sprintf("Delivery[%d].", i), err)
		}
		fs = append(fs, finish{d: d, status: completed})
	}
	joins, err := s.inTransaction(ctx)
	switch {
	case err != nil || len(fs) == 0:
		return err
	case joins:
		return wrapErr("complete", s.finishInside(ctx, fs))
	}
	var lost []string
	for some := range slices.Chunk(fs, finishMost) {
		var gone *mongostore.LeaseLostError
		err := s.finish(ctx, some)
		if errors.As(err, &gone) {
			lost = append(lost, gone.IDs...)
		} else if err != nil {
			return wrapErr("complete", err)
		}
	}
	if len(lost) > 0 {
		return leaseLost(lost...)
	}
	return nil
}

// Bury gives a delivery up: it is a dead letter until Requeue, and holds back nothing of
// its key. cause, which may be nil, stays with it.
// Returns ErrLeaseLost, and nothing is changed, if its token does not hold it; ErrInvalid
// if it has no id or no token, or ctx has an open transaction; ErrUnknownOutcome as
// Complete.
func (s *Store) Bury(ctx context.Context, d *Delivery, cause error) error {
	if err := d.valid(); err != nil {
		return at("Delivery.", err)
	}
	ctx, err := refuseTransaction(ctx)
	if err != nil {
		return err
	}
	return wrapErr("bury", s.finish(ctx, []finish{{d: d, status: dead, cause: causeText(cause)}}))
}

func (d *Delivery) valid() error {
	switch {
	case d == nil:
		return invalid("ID", "is empty: the delivery is nil")
	case d.Token == "":
		return invalid("Token", "is empty: claim the delivery first")
	}
	return validDelivery("ID", d.ID)
}

// finish is one delivery to end.
type finish struct {
	d      *Delivery
	status string // completed or dead
	cause  string
}

const (
	settleFor  = 2 * time.Second // for an outcome that is not known
	finishMost = 1000            // deliveries in one command
)

// finish ends deliveries and promotes what waits behind them, in one command. The
// promotion stands first: who dies between has promoted too much, which does no harm, and
// not too little.
func (s *Store) finish(ctx context.Context, fs []finish) error {
	if err := s.findNext(ctx, fs); err != nil {
		return err
	}
	defer s.lowerFront(fs) // also of what may have landed
	left, lost := fs, []string(nil)
	for try, began := 0, time.Now(); len(left) > 0; try++ {
		matched, err := s.bulk(ctx, s.finishModels(left))
		if err != nil && !isOpen(err) {
			return err
		}
		if err == nil && matched == int64(len(left)+len(nextsOf(left))) {
			break
		}
		var gone []string
		settling, cancel := patient(ctx, settleFor)
		var open []finish
		from, readErr := s.readBack(settling, err)
		if readErr == nil {
			open, gone, readErr = s.stillHeld(settling, from, left)
		}
		cancel()
		if readErr != nil {
			return unknownOutcome("finish deliveries", errors.Join(err, readErr), ctx.Err())
		}
		left, lost = open, append(lost, gone...)
		if len(left) > 0 && (time.Since(began) > settleFor || !wait.For(ctx, conflictBackoff(try))) {
			return unknownOutcome("finish deliveries", orElse(err, errors.New("the update misses deliveries that are held")), ctx.Err())
		}
	}
	s.promoteAfter(ctx, fs)
	if len(lost) > 0 {
		return leaseLost(lost...)
	}
	return nil
}

// findNext looks at the lanes of deliveries that do not know what waits behind them:
// those that were made from an id and a token.
func (s *Store) findNext(ctx context.Context, fs []finish) error {
	var ids []string
	for _, f := range fs {
		if !f.d.looked {
			ids = append(ids, f.d.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	docs, err := s.find(ctx, s.deliveries, op("_id", op("$in", ids)),
		options.Find().SetProjection(bson.D{{Key: "active_lane", Value: 1}}))
	if err != nil {
		return err
	}
	lanes := make(map[string]string, len(docs))
	var all []string
	for _, doc := range docs {
		if lane := text(doc.Lookup("active_lane")); lane != "" {
			lanes[text(doc.Lookup("_id"))] = lane
			all = append(all, lane)
		}
	}
	views, _, err := s.look(ctx, all, nil, "")
	if err != nil {
		return err
	}
	for _, f := range fs {
		if f.d.looked {
			continue
		}
		f.d.looked, f.d.lane = true, lanes[f.d.ID]
		if v := views[f.d.lane]; v != nil {
			f.d.next, f.d.nextDue = v.next, v.due
		}
	}
	return nil
}

func nextsOf(fs []finish) (ids []string) {
	for _, f := range fs {
		if f.d.next != "" {
			ids = append(ids, f.d.next)
		}
	}
	return ids
}

// lowerFront tells of what was promoted with fs.
func (s *Store) lowerFront(fs []finish) {
	for _, f := range fs {
		if f.d.next != "" {
			s.front.lower(f.d.nextDue)
		}
	}
}

func (s *Store) finishModels(fs []finish) (models []mongo.WriteModel) {
	if next := nextsOf(fs); len(next) > 0 && !finishesFirst() {
		models = append(models, promotion(next))
	}
	now := s.now()
	byToken := make(map[string][]string)
	for _, f := range fs {
		if f.status == completed {
			byToken[f.d.Token] = append(byToken[f.d.Token], f.d.ID)
		} else {
			models = append(models, finishModel([]string{f.d.ID}, f.d.Token, f.status, f.cause, now))
		}
	}
	for token, ids := range byToken {
		models = append(models, finishModel(ids, token, completed, "", now))
	}
	return models
}

func finishModel(ids []string, token, status, cause string, now time.Time) mongo.WriteModel {
	set := bson.D{{Key: "status", Value: status}, {Key: "finished_at", Value: now}}
	if cause != "" {
		set = append(set, bson.E{Key: "last_error", Value: cause})
	}
	return mongo.NewUpdateManyModel().
		SetFilter(bson.D{{Key: "_id", Value: op("$in", ids)}, {Key: "status", Value: processing}, {Key: "token", Value: token}}).
		SetUpdate(bson.D{
			{Key: "$set", Value: set}, // the token stays: a lost reply is settled by it
			{Key: "$unset", Value: bson.D{{Key: "due_at", Value: ""}, {Key: "active_lane", Value: ""}}},
		})
}

// stillHeld tells apart what the tokens hold still, and what they do not. What is
// finished as it was to be, under its token, is neither.
func (s *Store) stillHeld(ctx context.Context, from *mongo.Collection, fs []finish) (open []finish, lost []string, err error) {
	ids := make([]string, 0, len(fs))
	for _, f := range fs {
		ids = append(ids, f.d.ID)
	}
	docs, err := s.find(ctx, from, op("_id", op("$in", ids)),
		options.Find().SetProjection(bson.D{{Key: "status", Value: 1}, {Key: "token", Value: 1}}))
	if err != nil {
		return nil, nil, err
	}
	status := make(map[string]string, len(docs)) // by id and token
	for _, doc := range docs {
		status[text(doc.Lookup("_id"))+"\x00"+text(doc.Lookup("token"))] = text(doc.Lookup("status"))
	}
	for _, f := range fs {
		switch status[f.d.ID+"\x00"+f.d.Token] {
		case f.status:
		case processing:
			open = append(open, f)
		default:
			lost = append(lost, f.d.ID)
		}
	}
	return open, lost, nil
}

// promoteAfter looks at the lanes where nothing was known to wait: something may have
// come meanwhile.
func (s *Store) promoteAfter(ctx context.Context, fs []finish) {
	lanes := make(map[string]bool)
	for _, f := range fs {
		if f.d.lane != "" && (f.d.next == "" || finishesFirst()) {
			lanes[f.d.lane] = true
		}
	}
	ctx, cancel := lingering(ctx) // the deliveries are finished: who waits must not pay for a ctx that ends now
	defer cancel()
	if err := s.promoteHeads(ctx, keysOf(lanes)); err != nil {
		s.cfg.Logger.Warn("outbox: lanes could not be looked at, a repair will", "lanes", len(lanes), "error", err)
	}
}

func keysOf(set map[string]bool) []string {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	return keys
}

// finishInside completes in the caller's transaction. What waits is promoted before, and
// outside of it: should the transaction abort, it is let wait again on sight.
func (s *Store) finishInside(ctx context.Context, fs []finish) error {
	beside := outside(ctx)
	if err := s.findNext(beside, fs); err != nil {
		return err
	}
	if next := nextsOf(fs); len(next) > 0 {
		err := s.write(beside, promotion(next))
		s.lowerFront(fs)
		if err != nil {
			return err
		}
	}
	var models []mongo.WriteModel
	for _, f := range fs {
		models = append(models, finishModel([]string{f.d.ID}, f.d.Token, f.status, f.cause, s.now()))
	}
	res, err := s.deliveries.BulkWrite(ctx, models)
	if err != nil {
		return err
	}
	if res.MatchedCount < int64(len(fs)) {
		open, lost, err := s.stillHeld(ctx, s.deliveries, fs)
		if err != nil {
			return err
		}
		for _, f := range open {
			lost = append(lost, f.d.ID)
		}
		if len(lost) > 0 {
			return leaseLost(lost...)
		}
	}
	if st := stateOf(ctx, s); st != nil {
		for _, f := range fs {
			if f.d.lane != "" { // also where next was promoted: a claim may have let it wait again before the commit
				st.finished = merged(st.finished, map[string]bool{f.d.lane: true})
			}
			st.handlers = merged(st.handlers, map[string]bool{f.d.Handler: true})
		}
	}
	return nil
}

// causeText is an error for a document, of a long one the beginning.
func causeText(cause error) string {
	const most = 4096
	if cause == nil {
		return ""
	}
	text := strings.ToValidUTF8(cause.Error(), "\uFFFD")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}
