package mongostore_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/internal/mongotest"
)

// exampleStore gives an example a Store on a database of its own. A program has
// mongostore.Connect, or mongostore.New on a client that it already has.
func exampleStore(cfg mongostore.Config) (store *mongostore.Store, done func()) {
	tb := &exampleTB{}
	store, _ = newExampleStore(tb, mongotest.Standalone(tb), cfg)
	return store, tb.cleanUp
}

// exampleReplicaSet is exampleStore where transactions work, and the client too.
func exampleReplicaSet() (store *mongostore.Store, client *mongo.Client, done func()) {
	tb := &exampleTB{}
	store, client = newExampleStore(tb, mongotest.ReplicaSet(tb), mongostore.Config{})
	return store, client, tb.cleanUp
}

func newExampleStore(tb *exampleTB, server *mongotest.Server, cfg mongostore.Config) (*mongostore.Store, *mongo.Client) {
	client, database := server.Database(tb)
	cfg.Database = database
	store, err := mongostore.New(client, cfg)
	check(err)
	check(store.Setup(context.Background()))
	return store, client
}

// exampleProxy is exampleStore behind a proxy that can lose replies.
func exampleProxy(cfg mongostore.Config) (store *mongostore.Store, proxy *mongotest.Proxy, done func()) {
	tb := &exampleTB{}
	server := mongotest.Standalone(tb)
	_, cfg.Database = server.Database(tb)
	proxy = mongotest.NewProxy(tb, server.Addr(tb))
	store, err := mongostore.New(mongotest.Connect(tb, proxy.URI()), cfg)
	check(err)
	return store, proxy, tb.cleanUp
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// exampleTB is what an example has in place of a testing.TB: package mongotest
// wants one, examples get none.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (tb *exampleTB) Helper()                   {}
func (tb *exampleTB) Name() string              { return "Example" }
func (tb *exampleTB) Context() context.Context  { return context.Background() }
func (tb *exampleTB) Cleanup(f func())          { tb.cleanups = append(tb.cleanups, f) }
func (tb *exampleTB) Logf(string, ...any)       {}
func (tb *exampleTB) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (tb *exampleTB) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
func (tb *exampleTB) FailNow()                  { panic("failed") }

func (tb *exampleTB) cleanUp() {
	for i := len(tb.cleanups) - 1; i >= 0; i-- {
		tb.cleanups[i]()
	}
}
