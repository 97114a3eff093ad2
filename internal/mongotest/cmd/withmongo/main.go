// Withmongo runs a command with MongoDB servers behind it.
//
//	go run ./internal/mongotest/cmd/withmongo [-only standalone|replicaset] [-cache GB] [--] command [argument...]
//
// It starts a standalone and a replica set of one, whatever way package
// mongotest finds here, tells the command where they are in
// MONGOSTORE_TEST_URI and MONGOSTORE_TEST_RS_URI, and stops them when the
// command ends. It exits as the command does. A signal goes to the command and
// all that it started; if withmongo itself is killed, servers and command go
// with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"github.com/execstore/mongostore/internal/mongotest"
)

func main() { os.Exit(run()) }

// server is one that is started for the command.
type server struct {
	topology mongotest.Topology
	env      string // the variable that tells its URI
	*mongotest.Server
	err error
}

func run() int {
	only := flag.String("only", "", "start one server only: standalone or replicaset")
	cacheGB := flag.Float64("cache", 0.25, "WiredTiger cache of each server in GB")
	flag.Usage = usage
	flag.Parse()
	servers := map[string][]*server{
		"standalone": {{topology: mongotest.StandaloneServer, env: mongotest.EnvURI}},
		"replicaset": {{topology: mongotest.ReplicaSetOfOne, env: mongotest.EnvRSURI}},
	}
	servers[""] = append(servers["standalone"], servers["replicaset"]...)
	wanted := servers[*only]
	if wanted == nil || flag.NArg() == 0 {
		usage()
		return 2
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, stopSignals...)
	defer stop(wanted)
	if code := start(wanted, mongotest.OpenOptions{CacheGB: *cacheGB}, signals); code != 0 {
		return code
	}
	return command(flag.Args(), environment(wanted), signals)
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: withmongo [-only standalone|replicaset] [-cache GB] [--] command [argument...]")
	flag.PrintDefaults()
}

// start starts the servers side by side. It returns the exit code if that
// fails or a signal comes meanwhile.
func start(servers []*server, opts mongotest.OpenOptions, signals <-chan os.Signal) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() { s.Server, s.err = mongotest.Open(ctx, s.topology, opts) })
	}
	started := make(chan struct{})
	go func() {
		wg.Wait()
		close(started)
	}()
	select {
	case <-started:
	case sig := <-signals:
		cancel()
		<-started
		return signalCode(sig)
	}
	for _, s := range servers {
		if s.err != nil {
			fmt.Fprintln(os.Stderr, "mongostore:", s.err)
			return 1
		}
	}
	return 0
}

func stop(servers []*server) {
	var wg sync.WaitGroup
	for _, s := range servers {
		if s.Server != nil {
			wg.Go(s.Stop)
		}
	}
	wg.Wait()
}

// environment is that of the command.
func environment(servers []*server) []string {
	env := os.Environ()
	for _, s := range servers {
		env = append(env, s.env+"="+s.URI())
	}
	if allowed := os.Getenv(mongotest.EnvServer); allowed != "" {
		// what was allowed for these servers goes on holding for the command's own
		env = append(env, mongotest.EnvServer+"="+mongotest.AllowURI(allowed))
	}
	return env
}

// command runs the command, passes signals on, and returns its exit code.
func command(args, env []string, signals <-chan os.Signal) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	group, err := startGroup(cmd)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mongostore:", err)
		return 127
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			group.signal(sig)
		case err := <-ended:
			group.release()
			return exitCode(err)
		}
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return statusCode(exit)
	default:
		fmt.Fprintln(os.Stderr, "mongostore:", err)
		return 1
	}
}
