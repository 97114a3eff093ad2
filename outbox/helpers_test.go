package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/mongostoretest"
	"github.com/execstore/mongostore/outbox"
)

// bundle is a store on a database of its own, set up, with a clock that stands still.
type bundle struct {
	server *mongotest.Server
	client *mongo.Client // the store's
	db     *mongo.Database
	store  *outbox.Store
	clock  *mongostoretest.Clock

	events, deliveries, keys *mongo.Collection
}

func newBundle(t testing.TB) *bundle {
	t.Helper()
	server := mongotest.ReplicaSet(t)
	client, name := server.Database(t)
	b := &bundle{server: server, client: client, db: client.Database(name), clock: &mongostoretest.Clock{}}
	b.events, b.deliveries, b.keys = b.db.Collection("outbox_events"), b.db.Collection("outbox_deliveries"), b.db.Collection("outbox_keys")
	b.store = b.on(t, client)
	require.NoError(t, b.store.Setup(t.Context()))
	return b
}

// on is another store on the same collections and clock, by another client.
func (b *bundle) on(t testing.TB, client *mongo.Client) *outbox.Store {
	t.Helper()
	s, err := outbox.New(client, outbox.Config{Database: b.db.Name(), Clock: b.clock})
	require.NoError(t, err)
	return s
}

// monitored is another store, and the commands that it sends.
func (b *bundle) monitored(t testing.TB) (*outbox.Store, *mongotest.Commands) {
	t.Helper()
	var sent mongotest.Commands
	return b.on(t, b.server.Client(t, options.Client().SetMonitor(sent.Monitor()))), &sent
}

// msg is an event for one handler, h, and with a payload.
func msg(id, key string, handlers ...string) outbox.Message {
	if len(handlers) == 0 {
		handlers = []string{"h"}
	}
	return outbox.Message{ID: id, Type: "made", Key: key, Payload: id, Handlers: handlers}
}

// msgs are n events of a key: prefix-0 and so on.
func msgs(prefix, key string, n int, handlers ...string) []outbox.Message {
	all := make([]outbox.Message, 0, n)
	for i := range n {
		all = append(all, msg(fmt.Sprintf("%s-%d", prefix, i), key, handlers...))
	}
	return all
}

// append stores messages in one transaction.
func (b *bundle) append(t testing.TB, all ...outbox.Message) {
	t.Helper()
	require.NoError(t, appendBy(t.Context(), b.store, all...))
}

func appendBy(ctx context.Context, s *outbox.Store, all ...outbox.Message) error {
	return s.Transaction(ctx, func(ctx context.Context) error { return s.Append(ctx, all...) })
}

// claim leases up to limit deliveries of the handlers, of h if none is named.
func (b *bundle) claim(t testing.TB, limit int, handlers ...string) []*outbox.Delivery {
	t.Helper()
	if len(handlers) == 0 {
		handlers = []string{"h"}
	}
	ds, err := b.store.Claim(t.Context(), outbox.ClaimOptions{Handlers: handlers, Limit: limit})
	require.NoError(t, err)
	return ds
}

// claimOne leases the one delivery that there must be.
func (b *bundle) claimOne(t testing.TB, handlers ...string) *outbox.Delivery {
	t.Helper()
	ds := b.claim(t, 10, handlers...)
	require.Len(t, ds, 1)
	return ds[0]
}

func (b *bundle) complete(t testing.TB, ds ...*outbox.Delivery) {
	t.Helper()
	require.NoError(t, b.store.Complete(t.Context(), ds...))
}

// doc is the document of one delivery.
func (b *bundle) doc(t testing.TB, id string) bson.Raw {
	t.Helper()
	doc, err := b.deliveries.FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
	require.NoError(t, err)
	return doc
}

// status is the stored state of one delivery.
func (b *bundle) status(t testing.TB, id string) string {
	t.Helper()
	return b.doc(t, id).Lookup("status").StringValue()
}

// all are the documents of a collection, by id.
func all(t testing.TB, coll *mongo.Collection) []bson.Raw {
	t.Helper()
	cur, err := coll.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	require.NoError(t, err)
	var docs []bson.Raw
	require.NoError(t, cur.All(t.Context(), &docs))
	return docs
}

// edit changes one document by hand.
func edit(t testing.TB, coll *mongo.Collection, id any, update any) {
	t.Helper()
	res, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}}, update)
	require.NoError(t, err)
	require.EqualValues(t, 1, res.MatchedCount)
}

func idsOf(ds []*outbox.Delivery) []string {
	ids := make([]string, 0, len(ds))
	for _, d := range ds {
		ids = append(ids, d.ID)
	}
	return ids
}

// together runs n goroutines that begin at the same moment, and waits for them.
func together(n int, work func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			work(i)
		})
	}
	close(start)
	wg.Wait()
}

// tests are by name; each gets a bundle of its own, in parallel.
type tests map[string]func(t *testing.T, b *bundle)

func run(t *testing.T, all tests) {
	t.Parallel()
	for name, test := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t))
		})
	}
}

// kv is a document of the given keys and values, by turns.
func kv(all ...any) bson.D {
	doc := make(bson.D, 0, len(all)/2)
	for i := 0; i < len(all); i += 2 {
		doc = append(doc, bson.E{Key: all[i].(string), Value: all[i+1]})
	}
	return doc
}

// begin opens a transaction in a session of the caller's own.
func (b *bundle) begin(t testing.TB) (context.Context, *mongo.Session) {
	t.Helper()
	sess, err := b.client.StartSession()
	require.NoError(t, err)
	t.Cleanup(func() { sess.EndSession(context.Background()) })
	require.NoError(t, sess.StartTransaction())
	return mongo.NewSessionContext(t.Context(), sess), sess
}

// eventually waits for what another goroutine, or the pace of a repair, brings about.
func eventually(t testing.TB, done func() bool, what string) {
	t.Helper()
	require.Eventually(t, done, 20*time.Second, 20*time.Millisecond, what)
}
