package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/outbox"
)

// placed is the event that most tests publish.
type placed struct {
	Order string `json:"order"`
	N     int    `json:"n,omitempty"`
}

func (placed) EventType() string { return "placed" }

// shipped is another, with a pointer as its payload.
type shipped struct {
	Order string `json:"order"`
}

func (*shipped) EventType() string { return "shipped" }

// newBus is a bus on the bundle's store.
func (b *bundle) newBus(t testing.TB, cfg outbox.BusConfig) *outbox.Bus {
	t.Helper()
	return newBusOn(t, b.store, cfg)
}

func newBusOn(t testing.TB, s *outbox.Store, cfg outbox.BusConfig) *outbox.Bus {
	t.Helper()
	bus, err := outbox.NewBus(s, cfg)
	require.NoError(t, err)
	return bus
}

// subscribe lets a handler get what is placed. Without a Backoff it is a second.
func subscribe(t testing.TB, bus *outbox.Bus, id string, h func(context.Context, outbox.Event[placed]) error, opts outbox.SubscribeOptions) {
	t.Helper()
	if opts.Backoff == nil {
		opts.Backoff = func(int) time.Duration { return time.Second }
	}
	require.NoError(t, outbox.Subscribe(bus, id, h, opts))
}

// publisher is a bus on the bundle's store that knows of handlers elsewhere.
func (b *bundle) publisher(t testing.TB, handlers ...string) *outbox.Bus {
	t.Helper()
	bus := b.newBus(t, outbox.BusConfig{})
	for _, id := range handlers {
		subscribe(t, bus, id, nil, outbox.SubscribeOptions{})
	}
	return bus
}

// publish commits events in a transaction of their own.
func (b *bundle) publish(t testing.TB, bus *outbox.Bus, opts outbox.PublishOptions, ps ...outbox.Payload) {
	t.Helper()
	require.NoError(t, b.publishing(t.Context(), bus, opts, ps...))
}

func (b *bundle) publishing(ctx context.Context, bus *outbox.Bus, opts outbox.PublishOptions, ps ...outbox.Payload) error {
	return b.store.Transaction(ctx, func(ctx context.Context) error { return bus.Publish(ctx, opts, ps...) })
}

// orders are n events: 0 and so on.
func orders(n int) (ps []outbox.Payload) {
	for i := range n {
		ps = append(ps, placed{Order: fmt.Sprint(i), N: i})
	}
	return ps
}

func drain(t testing.TB, bus *outbox.Bus) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := bus.Drain(ctx)
	require.NoError(t, err)
	return n
}

// running starts a bus and gives what ends it. It has begun when this returns.
func running(t testing.TB, bus *outbox.Bus) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- bus.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, within(t, ended))
	})
	t.Cleanup(stop)
	_ = outbox.Subscribe[probe](bus, "probe", nil, outbox.SubscribeOptions{}) // so that its name is taken below
	eventually(t, func() bool {
		return invalidField(outbox.Subscribe[probe](bus, "probe", nil, outbox.SubscribeOptions{})) == "Bus"
	}, "Run begins")
	return stop
}

// probe is published by nobody.
type probe struct{}

func (probe) EventType() string { return "probe" }

func invalidField(err error) string {
	if v, ok := asError[*mongostore.ValidationError](err); ok {
		return v.Field
	}
	return ""
}

// within receives, or fails the test after a minute.
func within[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		require.FailNow(t, "nothing comes")
	}
	return v
}

// notes is what handlers and Observe were told, in order.
type notes struct {
	mu     sync.Mutex
	got    []string
	events []mongostore.RelayEvent
}

func (r *notes) add(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, s)
}

func (r *notes) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// take is a handler that writes down the order.
func (r *notes) take(_ context.Context, e outbox.Event[placed]) error {
	r.add(e.Payload.Order)
	return nil
}

func (r *notes) observe(e mongostore.RelayEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// what are the events of a kind.
func (r *notes) what(kind string) (all []mongostore.RelayEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.What == kind {
			all = append(all, e)
		}
	}
	return all
}

// logged is a store whose log can be read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (b *bundle) logging(t testing.TB, client *mongo.Client) (*outbox.Store, *logged) {
	t.Helper()
	var log logged
	s, err := outbox.New(client, outbox.Config{Database: b.db.Name(), Clock: b.clock, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	return s, &log
}

// behind is another store on the bundle's collections, whose client sits behind a proxy.
func (b *bundle) behind(t testing.TB, opts ...*options.ClientOptions) (*outbox.Store, *mongotest.Proxy) {
	t.Helper()
	proxy := mongotest.NewProxy(t, b.server.Addr(t))
	return b.on(t, b.server.Client(t, append([]*options.ClientOptions{mongotest.Through(proxy)}, opts...)...)), proxy
}

// business is a collection of the user's own.
func (b *bundle) business() *mongo.Collection { return b.db.Collection("business") }

// insert writes one document of the user's own. The collection of a transaction that
// proxies watch must be the store's own client's: db is on it.
func insert(ctx context.Context, coll *mongo.Collection, id string) error {
	_, err := coll.InsertOne(ctx, kv("_id", id))
	return err
}

func idsIn(t testing.TB, coll *mongo.Collection) []string {
	t.Helper()
	ids := []string{}
	for _, doc := range all(t, coll) {
		ids = append(ids, doc.Lookup("_id").StringValue())
	}
	return ids
}

// sessionID names the session of a transaction on the server.
func sessionID(ctx context.Context) bson.RawValue {
	return mongo.SessionFromContext(ctx).ID().Lookup("id")
}

// isOpen is whether a session has a transaction that is open on the server.
func (b *bundle) isOpen(t testing.TB, session bson.RawValue) bool {
	t.Helper()
	cur, err := b.client.Database("admin").Aggregate(t.Context(), bson.A{
		kv("$currentOp", kv("allUsers", true, "idleSessions", true)),
		kv("$match", kv("lsid.id", session, "transaction", kv("$exists", true))),
	})
	require.NoError(t, err)
	var docs []bson.Raw
	require.NoError(t, cur.All(t.Context(), &docs))
	return len(docs) > 0
}

// closesSoon is that no transaction of a session is left open after two seconds.
func (b *bundle) closesSoon(t testing.TB, session bson.RawValue) {
	t.Helper()
	require.Eventually(t, func() bool { return !b.isOpen(t, session) }, 2*time.Second, 20*time.Millisecond,
		"the transaction is left open on the server")
}

func asError[T error](err error) (target T, ok bool) {
	ok = errors.As(err, &target)
	return target, ok
}

// mongotestName makes a database name of a sentence.
func mongotestName(sentence string) string { return strings.ReplaceAll(sentence, " ", "_") }

// cutFind loses every find.
func cutFind(m *mongotest.Message) mongotest.Action {
	if m.Command == "find" {
		return mongotest.Cut
	}
	return mongotest.Pass
}

// setting is a number from the environment.
func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := strings.TrimSpace(os.Getenv(name))
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}
