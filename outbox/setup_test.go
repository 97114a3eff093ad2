package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/internal/storetest"
	"github.com/execstore/mongostore/outbox"
)

func TestSetup(t *testing.T) { run(t, setupTests) }

// indexes are those of the deliveries, as the server holds them.
func (b *bundle) indexes(t testing.TB) map[string]string {
	t.Helper()
	cur, err := b.deliveries.Indexes().List(t.Context())
	require.NoError(t, err)
	var specs []bson.Raw
	require.NoError(t, cur.All(t.Context(), &specs))
	byName := map[string]string{}
	for _, spec := range specs {
		byName[spec.Lookup("name").StringValue()] = spec.String()
	}
	return byName
}

func (b *bundle) index(t testing.TB, keys bson.D, opts *options.IndexOptionsBuilder) {
	t.Helper()
	require.NoError(t, b.deliveries.Drop(t.Context()))
	_, err := b.deliveries.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: keys, Options: opts})
	require.NoError(t, err)
}

const ownIndexes = 6 // beside that of _id

var setupTests = tests{
	"MakesCollectionsAndIndexes_AndThenChangesNothing": func(t *testing.T, b *bundle) {
		names, err := b.db.ListCollectionNames(t.Context(), bson.D{})
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"outbox_events", "outbox_deliveries", "outbox_keys"}, names)
		first := b.indexes(t)
		require.Len(t, first, ownIndexes+1)
		b.append(t, msg("e-1", "k"))
		require.NoError(t, b.store.Setup(t.Context()))
		require.Equal(t, first, b.indexes(t))
	},

	"UsesDatabaseAndPrefix": func(t *testing.T, b *bundle) {
		_, other := b.server.Database(t)
		s, err := outbox.New(b.client, outbox.Config{Database: other, Prefix: "mail.", Clock: b.clock})
		require.NoError(t, err)
		require.NoError(t, s.Setup(t.Context()))
		require.NoError(t, appendBy(t.Context(), s, msg("e-1", "k")))
		names, err := b.client.Database(other).ListCollectionNames(t.Context(), bson.D{})
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"mail.events", "mail.deliveries", "mail.keys"}, names)
		b.requireEmpty(t)
	},

	"IsSafeFromManyProcessesAtOnce": func(t *testing.T, b *bundle) {
		require.NoError(t, b.db.Drop(t.Context()))
		together(8, func(int) {
			if err := b.on(t, b.client).Setup(t.Context()); err != nil {
				t.Error(err)
			}
		})
		require.Len(t, b.indexes(t), ownIndexes+1)
	},

	"BH-14_TakesAnEquivalentIndexUnderAnotherName_AndLeavesOthersAlone": func(t *testing.T, b *bundle) {
		b.index(t, kv("handler", 1, "due_at", int64(1), "_id", 1.0),
			options.Index().SetName("legacy_claim").SetPartialFilterExpression(kv("due_at", kv("$exists", true))))
		_, err := b.deliveries.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: kv("team", 1), Options: options.Index().SetName("team_idx")})
		require.NoError(t, err)
		before := b.indexes(t)
		var first map[string]string
		for range 2 {
			require.NoError(t, b.store.Setup(t.Context()))
			now := b.indexes(t)
			require.Len(t, now, ownIndexes+2)
			require.Equal(t, []string{before["legacy_claim"], before["team_idx"]}, []string{now["legacy_claim"], now["team_idx"]})
			require.NotContains(t, now, "claim")
			if first != nil {
				require.Equal(t, first, now)
			}
			first = now
		}
	},

	"BH-14_NamesAnIndexThatIsAnother": func(t *testing.T, b *bundle) {
		for name, other := range map[string]struct {
			keys bson.D
			opts *options.IndexOptionsBuilder
		}{
			"no partial filter":     {kv("handler", 1, "due_at", 1, "_id", 1), options.Index().SetName("claim")},
			"another partial field": {kv("handler", 1, "due_at", 1, "_id", 1), options.Index().SetName("claim").SetPartialFilterExpression(kv("handler", kv("$exists", true)))},
			"other keys":            {kv("handler", 1), options.Index().SetName("claim").SetPartialFilterExpression(kv("due_at", kv("$exists", true)))},
			"unique":                {kv("handler", 1, "due_at", 1, "_id", 1), options.Index().SetName("claim").SetUnique(true).SetPartialFilterExpression(kv("due_at", kv("$exists", true)))},
		} {
			b.index(t, other.keys, other.opts)
			before := b.indexes(t)
			for range 2 {
				err := b.store.Setup(t.Context())
				var v *mongostore.ValidationError
				require.ErrorAs(t, err, &v, name)
				require.Equal(t, "outbox_deliveries.claim", v.Field, name)
				require.NotEmpty(t, v.Reason)
				require.Equal(t, before, b.indexes(t), name)
			}
		}
	},

	"RefusesACollationThatDoesNotCompareIdsByteByByte": func(t *testing.T, b *bundle) {
		for _, coll := range []*mongo.Collection{b.events, b.deliveries, b.keys} {
			require.NoError(t, coll.Drop(t.Context()))
			require.NoError(t, b.db.CreateCollection(t.Context(), coll.Name(), options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 1})))
			err := b.store.Setup(t.Context())
			require.ErrorIs(t, err, mongostore.ErrInvalid)
			require.ErrorContains(t, err, coll.Name())
			require.NoError(t, coll.Drop(t.Context()))
		}
		require.NoError(t, b.store.Setup(t.Context()))
	},

	"IsRefusedInATransaction": func(t *testing.T, b *bundle) {
		ctx, _ := b.begin(t)
		require.ErrorIs(t, b.store.Setup(ctx), mongostore.ErrInvalid)
	},

	"NewRefusesWhatMakesNoSense": func(t *testing.T, b *bundle) {
		for field, try := range map[string]func() (*outbox.Store, error){
			"client": func() (*outbox.Store, error) { return outbox.New(nil, outbox.Config{}) },
			"Config.Database": func() (*outbox.Store, error) {
				return outbox.New(b.client, outbox.Config{Database: "a/b"})
			},
			"Config.Prefix": func() (*outbox.Store, error) {
				return outbox.New(b.client, outbox.Config{Prefix: strings.Repeat("x", 250)})
			},
		} {
			_, err := try()
			var v *mongostore.ValidationError
			require.ErrorAs(t, err, &v, field)
			require.Equal(t, field, v.Field)
		}
		s, err := outbox.New(b.client, outbox.Config{})
		require.NoError(t, err, "the zero Config works")
		require.NotNil(t, s)
	},

	"TheSystemsClockTellsTheTimeIfNoneIsGiven": func(t *testing.T, b *bundle) {
		s, err := outbox.New(b.client, outbox.Config{Database: b.db.Name()})
		require.NoError(t, err)
		before := time.Now().Truncate(time.Millisecond)
		require.NoError(t, appendBy(t.Context(), s, msg("e-1", "")))
		at := b.doc(t, "h:e-1").Lookup("available_at").Time()
		require.False(t, at.Before(before) || at.After(time.Now()), "%v", at)
		ds, err := s.Claim(t.Context(), outbox.ClaimOptions{Handlers: []string{"h"}})
		require.NoError(t, err)
		require.Len(t, ds, 1)
	},

	"TheServersClockIsNeverUsed": func(t *testing.T, b *bundle) {
		b.clock.Advance(200 * 365 * 24 * time.Hour) // far from any server's
		b.mixed(t)
		for _, doc := range all(t, b.deliveries) {
			for _, field := range []string{"available_at", "due_at", "finished_at", "suspect_since"} {
				if at, ok := doc.Lookup(field).TimeOK(); ok {
					require.Greater(t, at.Year(), 2200, field)
				}
			}
		}
	},
}

// TestStandalone: a server without transactions says so at once.
func TestStandalone(t *testing.T) {
	t.Parallel()
	t.Run("BH-15_SetupAndAppendSayThatAReplicaSetIsNeeded", func(t *testing.T) {
		t.Parallel()
		client, name := mongotest.Standalone(t).Database(t)
		s, err := outbox.New(client, outbox.Config{Database: name})
		require.NoError(t, err)
		err = s.Setup(t.Context())
		require.ErrorIs(t, err, outbox.ErrNoTransactions)
		require.ErrorContains(t, err, "replica set")
		require.ErrorIs(t, appendBy(t.Context(), s, msg("e-1", "k")), outbox.ErrNoTransactions)
		require.ErrorIs(t, appendBy(t.Context(), s, msgs("e", "", 70)...), outbox.ErrNoTransactions)
		sess, err := client.StartSession()
		require.NoError(t, err)
		defer sess.EndSession(context.Background())
		require.NoError(t, sess.StartTransaction())
		require.ErrorIs(t, s.Append(mongo.NewSessionContext(t.Context(), sess), msg("e-1", "k")), outbox.ErrNoTransactions)
		bus, err := outbox.NewBus(s, outbox.BusConfig{})
		require.NoError(t, err)
		require.ErrorIs(t, bus.Run(t.Context()), outbox.ErrNoTransactions)
		_, err = bus.Drain(t.Context())
		require.ErrorIs(t, err, outbox.ErrNoTransactions)
		names, err := client.Database(name).ListCollectionNames(t.Context(), bson.D{})
		require.NoError(t, err)
		require.Empty(t, names)
	})
}

// TestClientOptions: whatever is set on the client, results and documents are the same.
func TestClientOptions(t *testing.T) {
	t.Parallel()
	tour := func(t *testing.T, opts *options.ClientOptions) (saw []any) {
		t.Helper()
		b := newBundle(t)
		require.NoError(t, b.db.Drop(t.Context()))
		b.store = b.on(t, b.server.Client(t, opts))
		require.NoError(t, b.store.Setup(t.Context()))
		m := msg("e-1", "k", "h", "g")
		m.Headers = map[string]any{"$set": 1, "list": []string(nil)}
		m.Payload = map[string]any{"a.b": time.Unix(1, 0).UTC(), "n": []byte(nil)}
		b.append(t, m, msg("e-2", "k"), msg("e-3", "", "g"), msg("e-4", "x"))
		b.append(t, append(msgs("many", "y", 70), msg("e-1", "k", "late"))...)
		saw = append(saw, listOf(b.claim(t, 20, "late")))
		ds := append(b.claim(t, 1, "h"), b.claim(t, 1, "h")...) // one call gives them in no order
		require.NoError(t, b.store.Retry(t.Context(), ds[0], 0, errors.New("no")))
		require.NoError(t, b.store.Bury(t.Context(), ds[1], errors.New("no")))
		saw = append(saw, b.requeue(t, ds[1].ID))
		held := b.claim(t, 20, "h", "g")
		slices.SortFunc(held, func(x, y *outbox.Delivery) int { return strings.Compare(x.ID, y.ID) })
		for _, d := range held {
			require.NoError(t, b.store.Extend(t.Context(), d, time.Hour))
		}
		saw = append(saw, listOf(held))
		require.NoError(t, b.store.Release(t.Context(), held[0]))
		require.NoError(t, b.store.Transaction(t.Context(), func(ctx context.Context) error { return b.store.Complete(ctx, held[1]) }))
		b.complete(t, held[2:]...)
		saw = append(saw, b.stats(t), b.pages(t, outbox.ListOptions{Limit: 7}), b.pages(t, outbox.ListOptions{Limit: 7, Status: "waiting"}))
		b.clock.Advance(time.Second)
		saw = append(saw, b.purge(t, "completed", "dead"))
		for _, coll := range []*mongo.Collection{b.events, b.deliveries, b.keys} {
			for _, doc := range all(t, coll) {
				for _, e := range decoded(t, doc) {
					if e.Key != "token" {
						saw = append(saw, e)
					}
				}
			}
		}
		return saw
	}
	plain := tour(t, options.Client())
	for name, opts := range map[string]*options.ClientOptions{
		"BH-12_EveryOptionAtOnce": storetest.EveryClientOption(),
		"Unacknowledged":          options.Client().SetWriteConcern(writeconcern.Unacknowledged()),
		"ReadFromAnywhere":        options.Client().SetReadPreference(readpref.SecondaryPreferred()).SetReadConcern(readconcern.Available()),
		"ReadLinearizable":        options.Client().SetReadConcern(readconcern.Linearizable()),
		"ClientTimeout":           options.Client().SetTimeout(time.Minute),
		"NoRetries":               options.Client().SetRetryWrites(false).SetRetryReads(false),
		"ServerAPIVersion":        options.Client().SetServerAPIOptions(options.ServerAPI(options.ServerAPIVersion1).SetStrict(true)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, plain, tour(t, opts))
		})
	}
}

// listOf is what was claimed, but for its random tokens.
func listOf(ds []*outbox.Delivery) map[string]outbox.Delivery {
	byID := map[string]outbox.Delivery{}
	for _, d := range ds {
		plain := exported(*d)
		plain.Token = ""
		byID[d.ID] = plain
	}
	return byID
}

// TestASetThatIsNotInitiatedYetIsNoStandalone: a worker that is started beside its server
// goes on, as through any error of the server, until there is a set.
func TestASetThatIsNotInitiatedYetIsNoStandalone(t *testing.T) {
	t.Parallel()
	node := mongotest.Start(t, mongotest.Options{Args: []string{"--replSet", "later"}}).Node(0)
	client := node.Client()
	s, err := outbox.New(client, outbox.Config{})
	require.NoError(t, err)
	bus := newBusOn(t, s, outbox.BusConfig{})
	got := make(chan string, 1)
	subscribe(t, bus, "mailer", func(_ context.Context, e outbox.Event[placed]) error {
		got <- e.Payload.Order
		return nil
	}, outbox.SubscribeOptions{})
	err = s.Setup(t.Context())
	require.Error(t, err)
	require.NotErrorIs(t, err, outbox.ErrNoTransactions)
	running(t, bus)
	initiate := kv("replSetInitiate", kv("_id", "later", "members", bson.A{kv("_id", 0, "host", node.Addr())}))
	require.NoError(t, client.Database("admin").RunCommand(t.Context(), initiate).Err())
	eventually(t, func() bool { return s.Setup(t.Context()) == nil }, "it becomes a set")
	require.NoError(t, s.Transaction(t.Context(), func(ctx context.Context) error {
		return bus.Publish(ctx, outbox.PublishOptions{}, placed{Order: "o-1"})
	}))
	require.Equal(t, "o-1", within(t, got))
}
