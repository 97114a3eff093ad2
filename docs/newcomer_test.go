package docs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/mongotest"
)

var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// blocks are the README's blocks of one language.
func blocks(text, language string) []string {
	var found []string
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		if m[1] == language {
			found = append(found, m[2])
		}
	}
	return found
}

// deliver is what the README's loop stands in, to see that it compiles.
const deliver = `package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/execstore/mongostore"
)

type Bill struct{ mongostore.Header }

func (*Bill) Handle(mongostore.OutboxEntry) error { return nil }

func deliver(store *mongostore.Store) error {
LOOP	return err
}

var _ = deliver
`

// publish is what the outbox of the README needs around it.
const publish = `package main

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/execstore/mongostore/outbox"
)

TYPES

func shop(ctx context.Context, client *mongo.Client, orders, revenue *mongo.Collection) error {
	order := struct{ ID, CustomerID string }{}
	mail := func(context.Context, string, string) error { return nil }
	byDay := func(time.Time) bson.D { return nil }
	var increment bson.D
	STATEMENTS
	return err
}

var _ = shop
`

// operate is what the README's lines for operators and for the bridge need around them.
const operate = `package main

import (
	"context"

	"github.com/execstore/mongostore"
	"github.com/execstore/mongostore/outbox"
)

func operate(ctx context.Context, store *outbox.Store, bus *outbox.Bus, executions *mongostore.Store) (int, *mongostore.Relay, error) {
	STATEMENTS
	return n, relay, err
}

var _ = operate
`

// TestNewcomer goes the way of the README: an empty module, one replace, the program
// as it stands there, run twice. Only the server's address and the name of the
// database are the test's own.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	server := mongotest.Standalone(t)
	_, database := server.Database(t)
	readme := read(t, "README.md")
	programs, prints := blocks(readme, "go"), blocks(readme, "text")
	require.Len(t, programs, 4, "the program, the relay, the outbox, and what operators do")
	require.Len(t, prints, 2)
	program := replaceOnce(t, programs[0], "mongodb://localhost:27017", server.URI())
	program = replaceOnce(t, program, `"shop"`, `"`+database+`"`)

	module := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte(program), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(module, "deliver.go"), []byte(strings.Replace(deliver, "LOOP", programs[1], 1)), 0o600))
	types, statements, found := strings.Cut(programs[2], "store, err := outbox.New")
	require.True(t, found)
	require.NoError(t, os.WriteFile(filepath.Join(module, "outbox.go"),
		[]byte(strings.NewReplacer("TYPES", types, "STATEMENTS", "store, err := outbox.New"+statements).Replace(publish)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(module, "operate.go"), []byte(strings.Replace(operate, "STATEMENTS", programs[3], 1)), 0o600))
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	shell := blocks(readme, "sh")
	steps := shell[slices.IndexFunc(shell, func(s string) bool { return strings.HasPrefix(s, "go mod init") })]
	steps, last, _ := strings.Cut(steps, "go run .")
	require.Equal(t, "\n", last, "it ends by running the program")
	for _, line := range strings.Split(strings.TrimSpace(steps), "\n") {
		goCommand(t, module, strings.Fields(strings.Replace(line, "../mongostore", clone, 1))...)
	}
	for _, want := range prints {
		require.Equal(t, want, goCommand(t, module, "go", "run", "."))
	}
	goCommand(t, module, "go", "vet", ".")
}

func replaceOnce(t *testing.T, text, old, with string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, old), old)
	return strings.Replace(text, old, with, 1)
}

// goCommand runs a command of the go tool in a folder and gives what it printed.
func goCommand(t *testing.T, dir string, command ...string) string {
	t.Helper()
	require.Equal(t, "go", command[0], "the README's commands are of the go tool: %q", command)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%q: %s", command, &stderr)
	return string(out)
}
