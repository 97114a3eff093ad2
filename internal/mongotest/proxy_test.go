package mongotest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// proxied is a proxy before the shared standalone, a collection behind it, and
// the same collection reached without it.
type proxied struct {
	*Proxy
	far, near *mongo.Collection
}

func newProxied(t *testing.T) proxied {
	t.Helper()
	server := Standalone(t)
	direct, db := server.Database(t)
	p := NewProxy(t, server.Addr(t))
	far := Connect(t, p.URI(), options.Client().SetRetryReads(false))
	return proxied{p, far.Database(db).Collection("c"), direct.Database(db).Collection("c")}
}

func (p proxied) insert(ctx context.Context, id any) error {
	_, err := p.far.InsertOne(ctx, bson.D{{Key: "_id", Value: id}})
	return err
}

func (p proxied) stored(t *testing.T, id any) bool {
	t.Helper()
	n, err := p.near.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: id}})
	require.NoError(t, err)
	return n == 1
}

func TestProxyCutReplyLosesTheReplyOfAWriteThatLanded(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	p.OnReply(Once(Cut, "insert"))
	err := p.insert(t.Context(), 1)
	require.True(t, mongo.IsNetworkError(err), "%v", err)
	require.True(t, p.stored(t, 1))
	require.Equal(t, Counts{Cut: 1}, p.Replies())
	require.NoError(t, p.insert(t.Context(), 2))
	require.Equal(t, 2, p.Seen("insert"))
}

func TestProxyCutRequestLosesTheWrite(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	p.OnRequest(Once(Cut, "insert"))
	err := p.insert(t.Context(), 1)
	require.True(t, mongo.IsNetworkError(err), "%v", err)
	require.False(t, p.stored(t, 1))
	require.Equal(t, Counts{Cut: 1}, p.Requests())
}

// until is a context that ends when the hook has been asked about an insert.
func until(t *testing.T, hook Hook) (context.Context, Hook) {
	ctx, cancel := context.WithCancel(t.Context())
	return ctx, func(m *Message) Action {
		if m.Command == "insert" {
			defer cancel()
		}
		return hook(m)
	}
}

// mark closes the channel at the next insert, and lets all pass.
func mark() (<-chan struct{}, Hook) {
	seen := make(chan struct{})
	var once sync.Once
	return seen, func(m *Message) Action {
		if m.Command == "insert" {
			once.Do(func() { close(seen) })
		}
		return Pass
	}
}

// await fails the test if nothing comes.
func await[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(30 * time.Second):
		require.FailNow(t, "nothing comes")
	}
	panic("unreachable")
}

func TestProxyDroppedReplyLeavesTheClientWaiting(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	ctx, hook := until(t, Always(Drop, "insert"))
	p.OnReply(hook)
	require.ErrorIs(t, p.insert(ctx, 1), context.Canceled)
	require.True(t, p.stored(t, 1))
	require.Equal(t, 1, p.Replies().Dropped)
}

func TestProxyDroppedRequestNeverArrives(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	ctx, hook := until(t, Always(Drop, "insert"))
	p.OnRequest(hook)
	require.ErrorIs(t, p.insert(ctx, 1), context.Canceled)
	require.False(t, p.stored(t, 1))
	require.Equal(t, 1, p.Requests().Dropped)
}

func TestProxyDelay(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	p.OnRequest(Always(Delay(60*time.Millisecond), "insert"))
	p.OnReply(Always(Delay(60*time.Millisecond), "insert"))
	start := time.Now()
	require.NoError(t, p.insert(t.Context(), 1))
	require.GreaterOrEqual(t, time.Since(start), 120*time.Millisecond)
	require.Equal(t, [2]int{1, 1}, [2]int{p.Requests().Delayed, p.Replies().Delayed})
}

func TestProxyHeldWriteLandsAfterItsClientGaveUp(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	release := make(chan struct{})
	ctx, hook := until(t, Once(Hold(release), "insert"))
	landed, onReply := mark()
	p.OnRequest(hook)
	p.OnReply(onReply)
	require.ErrorIs(t, p.insert(ctx, 1), context.Canceled)
	require.False(t, p.stored(t, 1))
	close(release)
	await(t, landed)
	require.True(t, p.stored(t, 1))
	require.Equal(t, 1, p.Requests().Held)
}

func TestProxyStrandedWriteLandsAfterItsClientLostTheConnection(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	release := make(chan struct{})
	landed, onReply := mark()
	p.OnRequest(Once(Strand(release), "insert"))
	p.OnReply(onReply)
	err := p.insert(t.Context(), 1)
	require.True(t, mongo.IsNetworkError(err), "%v", err)
	require.False(t, p.stored(t, 1))
	close(release)
	await(t, landed)
	require.True(t, p.stored(t, 1))
	require.Equal(t, 1, p.Requests().Stranded)
}

func TestProxyRequestTwiceShowsTheSecondAnswer(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	p.OnRequest(Once(Twice, "insert"))
	require.True(t, mongo.IsDuplicateKeyError(p.insert(t.Context(), 1)), "the first one was faster")
	require.True(t, p.stored(t, 1))
	require.Equal(t, 1, p.Requests().Doubled)
	require.NoError(t, p.insert(t.Context(), 2), "the answers are in step")
	require.True(t, p.stored(t, 2))
}

// What a second copy of a reply does is the driver's: TCP never makes one, and no store
// could tell.
func TestProxyReplyTwiceAnswersTheNextCommand(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	client := Connect(t, p.URI(), options.Client().SetMaxPoolSize(1).SetRetryReads(false).SetRetryWrites(false))
	p.far = client.Database(p.far.Database().Name()).Collection("c")
	p.OnReply(Once(Twice, "insert"))
	require.NoError(t, p.insert(t.Context(), 1))
	require.NoError(t, p.insert(t.Context(), 1), "the copy is taken for the refusal, which comes behind it")
	require.True(t, mongo.IsDuplicateKeyError(p.insert(t.Context(), 2)))
	require.Eventually(t, func() bool { return p.stored(t, 2) }, 10*time.Second, 5*time.Millisecond, "its caller was answered before it was done")
	require.Equal(t, 1, p.Replies().Doubled)
}

func TestProxyShowsCommandsAndRepliesWhole(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	var requests, replies []Message
	p.OnRequest(func(m *Message) Action { requests = append(requests, *m); return Pass })
	p.OnReply(func(m *Message) Action { replies = append(replies, *m); return Pass })
	for i := range 2 {
		_, err := p.far.InsertMany(t.Context(), []any{bson.D{{Key: "x", Value: i}}, bson.D{{Key: "x", Value: 7}}})
		require.NoError(t, err)
	}
	p.OnRequest(nil)
	p.OnReply(nil)
	require.NoError(t, p.insert(t.Context(), 9))
	require.Len(t, requests, 2)
	for i, m := range requests {
		require.Equal(t, "insert", m.Command)
		require.Equal(t, i+1, m.N)
		require.Nil(t, m.Reply)
		require.EqualValues(t, 7, m.Request.Lookup("documents", "1", "x").AsInt64())
		require.EqualValues(t, 2, replies[i].Reply.Lookup("n").AsInt64())
		require.Equal(t, m.Request, replies[i].Request)
		require.Equal(t, [2]int{m.N, m.Conn}, [2]int{replies[i].N, replies[i].Conn})
	}
}

func TestProxyShowsHousekeepingWhenAskedTo(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	seen := make(chan string, 100)
	p.OnRequest(func(m *Message) Action { seen <- m.Command; return Pass })
	require.NoError(t, p.insert(t.Context(), 1))
	require.Equal(t, "insert", await(t, seen))
	p.ShowHousekeeping(true)
	require.NoError(t, p.far.Database().Client().Ping(t.Context(), nil))
	for await(t, seen) != "ping" { // a hello of the monitor may come between
	}
}

func TestProxyCutAllAndRefuse(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	arrived, onRequest := mark()
	p.OnRequest(func(m *Message) Action {
		onRequest(m)
		return Always(Hold(nil), "insert")(m)
	})
	failed := make(chan error)
	go func() { failed <- p.insert(t.Context(), 1) }()
	await(t, arrived)
	p.Refuse(true)
	p.CutAll()
	err := await(t, failed)
	require.True(t, mongo.IsNetworkError(err), "%v", err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.Error(t, p.insert(ctx, 2))
	p.Refuse(false)
	p.OnRequest(nil)
	require.NoError(t, p.insert(t.Context(), 3))
	require.False(t, p.stored(t, 1))
	require.False(t, p.stored(t, 2))
	require.True(t, p.stored(t, 3))
}

func TestProxyEveryNthUnderLoad(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	p.OnReply(EveryNth(7, Cut, "insert"))
	failed := make(chan int)
	for g := range 4 {
		go func() {
			n := 0
			for i := range 70 {
				if p.insert(t.Context(), bson.D{{Key: "g", Value: g}, {Key: "i", Value: i}}) != nil {
					n++
				}
			}
			failed <- n
		}()
	}
	total := 0
	for range 4 {
		total += await(t, failed)
	}
	// every reply that was cut failed an insert; a cut may also clear the pool under another
	require.Equal(t, p.Seen("insert")/7, p.Replies().Cut)
	require.GreaterOrEqual(t, total, p.Replies().Cut)
	n, err := p.near.CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.EqualValues(t, p.Seen("insert"), n, "a lost reply is not a lost write")
}

func TestThroughKeepsAReplicaSetClientBehindItsProxy(t *testing.T) {
	t.Parallel()
	server := ReplicaSet(t)
	direct, db := server.Database(t)
	p := NewProxy(t, server.Addr(t))
	far := server.Client(t, Through(p)).Database(db).Collection("c")
	p.OnReply(Once(Cut, "insert"))
	_, err := far.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, err, "the driver sends it again by itself")
	require.Equal(t, 1, p.Replies().Cut)
	require.Equal(t, 2, p.Seen("insert"))
	n, err := direct.Database(db).Collection("c").CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}
