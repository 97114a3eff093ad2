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
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

//go:embed supervisor.sh
var supervisor string

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
	addr   string
	dir    string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	events chan event

	mu      sync.Mutex
	pid     int
	stopped bool
}

// event is a word of the supervisor: "up PID" or "exit CODE".
type event struct {
	what string
	n    int
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
	p := &Process{
		addr:   net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		dir:    filepath.Join(os.TempDir(), fmt.Sprintf("mongostore-mongod-%d-%016x", os.Getpid(), rand.Uint64())),
		events: make(chan event, 16),
	}
	if err := p.supervise(cfg, port); err != nil {
		return nil, err
	}
	if err := p.launch(ctx); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// supervise starts the shell that will run mongod.
func (p *Process) supervise(cfg Config, port int) error {
	args := []string{
		"-c", supervisor, "mongostore-mongod", p.dir, cfg.Binary,
		"--dbpath", filepath.Join(p.dir, "data"),
		"--bind_ip", "127.0.0.1",
		"--port", strconv.Itoa(port),
		"--nounixsocket",
		"--quiet",
		"--logpath", p.logPath(),
		"--logappend",
	}
	args = append(args, TestArgs(cfg.CacheGB)...)
	if cfg.ReplicaSet != "" {
		args = append(args, "--replSet", cfg.ReplicaSet, "--oplogSize", "256")
	}
	p.cmd = exec.Command("/bin/sh", append(args, cfg.Args...)...)
	detach(p.cmd) // a Ctrl-C is for the owner; the end of the pipe tells the rest
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go p.listen(stdout)
	return nil
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

// listen passes on what the supervisor says until it ends.
func (p *Process) listen(stdout io.Reader) {
	defer close(p.events)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		what, number, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.Atoi(number)
		p.events <- event{what, n}
	}
}

// launch has the supervisor start mongod and waits until it answers.
func (p *Process) launch(ctx context.Context) error {
	if _, err := io.WriteString(p.stdin, "start\n"); err != nil {
		return err
	}
	up, ok := <-p.events
	if !ok || up.what != "up" {
		return fmt.Errorf("the supervisor of %s did not start it", p.addr)
	}
	p.mu.Lock()
	p.pid = up.n
	p.mu.Unlock()
	return p.waitAnswer(ctx)
}

// waitAnswer returns when the server accepts commands. It dials by hand first:
// the driver would pause half a second after the first refusal.
func (p *Process) waitAnswer(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.events:
			return p.startError()
		case <-ctx.Done():
			return fmt.Errorf("mongod on %s does not answer: %w", p.addr, ctx.Err())
		case <-tick.C:
		}
		conn, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err != nil {
			continue
		}
		_ = conn.Close()
		return p.withClient(ctx, func(client *mongo.Client) error { return client.Ping(ctx, nil) })
	}
}

var errPortTaken = errors.New("its port was taken meanwhile")

// startError says why mongod ended during its start, by its own words.
func (p *Process) startError() error {
	p.mu.Lock()
	p.pid = 0
	p.mu.Unlock()
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
	if pid == 0 {
		return nil
	}
	if err := kill(pid); err != nil {
		return fmt.Errorf("kill mongod on %s: %w", p.addr, err)
	}
	for e := range p.events {
		if e.what == "exit" {
			return nil
		}
	}
	return fmt.Errorf("the supervisor of %s is gone", p.addr)
}

// Restart starts a killed process again on its port and data and waits until
// it answers, or until ctx ends.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return err
	}
	var err error
	for range startTries {
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
	_ = p.stdin.Close()
	for range p.events { // until the supervisor ends
	}
	_ = p.cmd.Wait()
}

// withClient runs fn with a client on a direct connection.
func (p *Process) withClient(ctx context.Context, fn func(*mongo.Client) error) error {
	return withClient(ctx, p.URI(), fn)
}

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
