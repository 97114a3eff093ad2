// Package mongod runs real mongod processes for tests and demos: it finds a
// binary, starts it on a free port of 127.0.0.1, kills it, starts it again on
// the same data, pauses it, and makes replica sets of several.
//
// A process and its data folder never outlive the one that started them, not
// even when that one is killed with SIGKILL: a shell in a session of its own
// holds the other end of a pipe and cleans up when it closes (supervisor.sh).
//
// The package depends on the standard library and the driver only, because
// users' tests build it through mongostoretest.
package mongod

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongoerr"
)

// Config says what to start.
type Config struct {
	Binary     string   // path of the mongod; "": Find
	ReplicaSet string   // name of its set; "": a standalone
	CacheGB    float64  // WiredTiger cache; 0: 0.25
	Args       []string // more arguments for mongod
}

// Process is one mongod with its port and data folder. Its methods may be
// called from several goroutines, those that start and stop it one at a time.
type Process struct {
	addr  string
	dir   string
	shell supervisorShell

	mu      sync.Mutex
	pid     int // 0: not running
	stopped bool
}

// startTries bounds how many ports Start tries: another process may take a
// free one before mongod does.
const startTries = 5

// Start starts a mongod with an empty data folder and waits until it answers,
// or until ctx ends.
func Start(ctx context.Context, cfg Config) (*Process, error) {
	if cfg.Binary == "" {
		binary, err := Find()
		if err != nil {
			return nil, err
		}
		cfg.Binary = binary
	}
	var err error
	for range startTries {
		var p *Process
		p, err = start(ctx, cfg)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, fmt.Errorf("start %s: %w", cfg.Binary, err)
}

func start(ctx context.Context, cfg Config) (*Process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return startOn(ctx, cfg, port)
}

func startOn(ctx context.Context, cfg Config, port int) (*Process, error) {
	p := newProcess(port)
	if err := p.shell.start(p.dir, p.command(cfg, port)); err != nil {
		return nil, err
	}
	if err := p.launch(ctx); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func newProcess(port int) *Process {
	return &Process{
		addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		dir:  filepath.Join(os.TempDir(), fmt.Sprintf("mongostore-mongod-%d-%016x", os.Getpid(), rand.Uint64())),
	}
}

// command returns the command line of mongod.
func (p *Process) command(cfg Config, port int) []string {
	command := []string{
		cfg.Binary,
		"--dbpath", p.dataPath(),
		"--bind_ip", "127.0.0.1",
		"--port", strconv.Itoa(port),
		"--nounixsocket",
		"--quiet",
		"--logpath", p.logPath(),
		"--logappend",
	}
	command = append(command, TestArgs(cfg.CacheGB)...)
	if cfg.ReplicaSet != "" {
		command = append(command, "--replSet", cfg.ReplicaSet, "--oplogSize", "256")
	}
	return append(command, cfg.Args...)
}

// TestArgs are the arguments that make a mongod a small one for tests, with
// fail points. CacheGB 0 is 0.25.
func TestArgs(cacheGB float64) []string {
	if cacheGB == 0 {
		cacheGB = 0.25
	}
	return []string{
		"--wiredTigerCacheSizeGB", strconv.FormatFloat(cacheGB, 'f', -1, 64),
		"--setParameter", "enableTestCommands=1",
		"--setParameter", "diagnosticDataCollectionEnabled=false",
	}
}

// launch has mongod started and waits until it answers.
func (p *Process) launch(ctx context.Context) error {
	if err := p.spawn(); err != nil {
		return err
	}
	return p.waitAnswer(ctx)
}

// spawn has the supervisor start its command.
func (p *Process) spawn() error {
	pid, err := p.shell.spawn()
	if err != nil {
		return fmt.Errorf("the supervisor of %s did not start it: %w", p.addr, err)
	}
	p.setPID(pid)
	return nil
}

func (p *Process) setPID(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid = pid
}

// waitAnswer returns when the server accepts commands. It dials by hand first:
// the driver would pause half a second after the first refusal.
func (p *Process) waitAnswer(ctx context.Context) error {
	for {
		if p.shell.exited(10 * time.Millisecond) {
			p.setPID(0)
			return p.startError()
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("mongod on %s does not answer: %w", p.addr, err)
		}
		conn, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err != nil {
			continue
		}
		_ = conn.Close()
		return p.checkOurs(ctx)
	}
}

// checkOurs asks the server that answers for its data folder: another process
// may have started one on the same port at the same moment.
func (p *Process) checkOurs(ctx context.Context) error {
	var opts struct {
		Parsed struct {
			Storage struct {
				DBPath string `bson:"dbPath"`
			}
		}
	}
	err := withClient(ctx, p.URI(), func(client *mongo.Client) error {
		return client.Database("admin").RunCommand(ctx, bson.D{{Key: "getCmdLineOpts", Value: 1}}).Decode(&opts)
	})
	if mongoerr.HasCode(err, mongoerr.Unauthorized) {
		return nil // ours wants to know who asks; another one would hardly
	}
	if err != nil {
		return err
	}
	if opts.Parsed.Storage.DBPath != p.dataPath() {
		return errPortTaken
	}
	return nil
}

var errPortTaken = errors.New("its port was taken meanwhile")

// startError says why mongod ended during its start, by its own words.
func (p *Process) startError() error {
	log, _ := os.ReadFile(p.logPath())
	if strings.Contains(string(log), "Address already in use") {
		return errPortTaken
	}
	out, _ := os.ReadFile(filepath.Join(p.dir, "out"))
	lines := strings.Split(strings.TrimSpace(string(log)+string(out)), "\n")
	return fmt.Errorf("mongod ended at once: %s", strings.Join(lines[max(0, len(lines)-3):], " | "))
}

// Addr returns host:port. It stays the same over Kill and Restart.
func (p *Process) Addr() string { return p.addr }

// URI returns a connection string for a direct connection to this process.
func (p *Process) URI() string { return "mongodb://" + p.addr + "/?directConnection=true" }

func (p *Process) dataPath() string { return filepath.Join(p.dir, "data") }

func (p *Process) logPath() string { return filepath.Join(p.dir, "mongod.log") }

// Log returns what the server has written to its log.
func (p *Process) Log() (string, error) {
	log, err := os.ReadFile(p.logPath())
	return string(log), err
}

// Kill ends the process with SIGKILL and returns when it is gone. Its data
// stays for Restart. A process that is not running stays so.
func (p *Process) Kill() error {
	p.mu.Lock()
	pid := p.pid
	p.pid = 0
	p.mu.Unlock()
	if pid == 0 || p.shell.exited(0) { // the pid of one that ended by itself may be another's by now
		return nil
	}
	if err := kill(pid); err != nil {
		return fmt.Errorf("kill mongod on %s: %w", p.addr, err)
	}
	if !p.shell.exited(killTimeout) {
		return fmt.Errorf("mongod on %s does not die", p.addr)
	}
	return nil
}

// killTimeout bounds the death of a killed process: it may hang in a write.
const killTimeout = 30 * time.Second

// Restart starts a killed process again on its port and data and waits until
// it answers, or until ctx ends.
func (p *Process) Restart(ctx context.Context) error {
	var err error
	for range startTries {
		if err = p.Kill(); err != nil {
			break
		}
		if err = p.launch(ctx); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return err
}

// Pause stops the process with SIGSTOP: its connections stay open, nothing
// answers.
func (p *Process) Pause() error { return p.signal(pause) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.signal(resume) }

func (p *Process) signal(send func(pid int) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return fmt.Errorf("mongod on %s is not running", p.addr)
	}
	return send(p.pid)
}

// Stop kills the process, removes its folder, and returns when both are gone.
// It may be called again.
func (p *Process) Stop() {
	p.mu.Lock()
	stopped := p.stopped
	p.stopped = true
	p.pid = 0
	p.mu.Unlock()
	if stopped {
		return
	}
	p.shell.end()
}

// withClient runs fn with a client for uri.
func withClient(ctx context.Context, uri string, fn func(*mongo.Client) error) error {
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	return fn(client)
}

// freePort picks a port below the usual ephemeral range, so that no outgoing
// connection takes it while a killed server is down.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port on 127.0.0.1")
}
