// Package stage is what the example programs share: processes that are killed, a screen
// that shows how far they are, and the list of what was checked. For what to take along
// look at the examples themselves.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Run shows a demo until it ends or is interrupted.
func Run(demo func(context.Context, *Screen) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return demo(ctx, NewScreen(os.Stdout))
}

// Exit ends the program: with 0, with 1 and the error, or with 130 if it was interrupted.
func Exit(name string, err error) {
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, name+": stopped")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Connect waits a little for the server to answer.
func Connect(ctx context.Context, uri string, opts ...*options.ClientOptions) (*mongo.Client, error) {
	client, err := mongo.Connect(append([]*options.ClientOptions{options.Client().ApplyURI(uri)}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("-uri: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := client.Ping(ctx, readpref.Primary()); err != nil {
		_ = client.Disconnect(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("no MongoDB answers at -uri: %w", err)
	}
	return client, nil
}

// Leave drops the database of a demo and disconnects. It is kept where it was named, or
// where what went wrong can be seen in it.
func Leave(ctx context.Context, db *mongo.Database, keep bool, name string, out *Screen) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if keep {
		out.Line("%s: the database %s is kept", name, db.Name())
	} else {
		_ = db.Drop(end) // its server may be gone by now
	}
	_ = db.Client().Disconnect(end)
}
