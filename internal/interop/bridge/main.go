// Command bridge serves a mongostore by JSON lines on stdin and stdout, one
// request {"op", "args"} and one reply {"result"} or {"error"} a line, so that a
// Python process can use it as one of harel's stores. It ends with its stdin.
//
//	bridge -uri mongodb://... -database NAME [-prefix harel_]
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/execstore/mongostore"
)

func main() {
	uri := flag.String("uri", "", "the server")
	database := flag.String("database", "", "the database")
	prefix := flag.String("prefix", "", "before the collection names; harel 0.9.0's is harel_")
	flag.Parse()
	if err := run(context.Background(), *uri, mongostore.Config{Database: *database, Prefix: *prefix}); err != nil {
		fmt.Fprintln(os.Stderr, "bridge:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, uri string, cfg mongostore.Config) error {
	store, err := mongostore.Connect(ctx, uri, cfg)
	if err != nil {
		return err
	}
	err = store.Setup(ctx)
	if err == nil {
		err = serve(ctx, &bridge{store: store}, os.Stdin, os.Stdout)
	}
	return errors.Join(err, store.Close(ctx))
}

// serve answers requests until in ends.
func serve(ctx context.Context, b *bridge, in io.Reader, out io.Writer) error {
	lines := json.NewDecoder(bufio.NewReader(in))
	replies := json.NewEncoder(out)
	replies.SetEscapeHTML(false)
	for {
		var request struct {
			Op   string
			Args json.RawMessage
		}
		if err := lines.Decode(&request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := replies.Encode(answer(ctx, b, request.Op, request.Args)); err != nil {
			return err
		}
	}
}

func answer(ctx context.Context, b *bridge, op string, args json.RawMessage) any {
	handle, known := operations[op]
	if !known {
		return failure(fmt.Errorf("unknown operation %q", op))
	}
	result, err := handle(b, ctx, args)
	if err != nil {
		return failure(err)
	}
	return map[string]any{"result": result}
}

// failure tells a conflict as harel's StoreConflict wants it: found is null where
// there is no execution.
func failure(err error) any {
	body := map[string]any{"type": "error", "message": err.Error()}
	var conflict *mongostore.ConflictError
	if errors.As(err, &conflict) {
		body["type"], body["expected"], body["found"] = "conflict", conflict.Expected, nil
		if conflict.Actual != 0 {
			body["found"] = conflict.Actual
		}
	}
	return map[string]any{"error": body}
}
