package mongotest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/execstore/mongostore/internal/mongod"
)

const (
	defaultImage = "mongo:6.0"
	mongoPort    = "27017/tcp"
	// pullTimeout bounds the pull of the image and the start of a container.
	pullTimeout = 5 * time.Minute
	// askTimeout bounds the question whether a Docker engine answers.
	askTimeout = 10 * time.Second
)

// openDocker runs the image in a container, if a Docker engine answers and the
// image is to be had.
func openDocker(ctx context.Context, topology Topology, opts OpenOptions) (*Server, error) {
	log := &containerLog{}
	silence.Do(func() { tclog.SetDefault(tclog.NewNoopLogger()) })
	if !dockerAnswers(ctx) {
		return nil, &notHere{reason: "no Docker engine answers"}
	}
	image := os.Getenv(EnvImage)
	if image == "" {
		image = defaultImage
	}
	say("%s: starting %s in Docker", topology, image)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, cancelTimeout := context.WithTimeout(ctx, pullTimeout)
	defer cancelTimeout()
	log.onPullFailure = cancel

	server, err := runContainer(ctx, image, topology, opts, log)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		reason, _, _ := strings.Cut(err.Error(), "\n")
		return nil, &notHere{reason: fmt.Sprintf("%s cannot be run in Docker (%s)", image, reason), loud: true}
	}
	return server, nil
}

var silence sync.Once

// containerLog keeps testcontainers quiet and ends its retries of a pull: it
// would go on for a quarter of an hour where no registry can be reached.
type containerLog struct {
	onPullFailure context.CancelCauseFunc
}

func (l *containerLog) Printf(format string, args ...any) {
	if strings.HasPrefix(format, "Failed to pull image") && l.onPullFailure != nil {
		l.onPullFailure(fmt.Errorf(format, args...))
	}
}

// dockerAnswers says whether there is an engine to talk to.
func dockerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer := make(chan bool, 1)
	go func() { // the provider takes no context
		provider, err := testcontainers.NewDockerProvider()
		if err != nil {
			answer <- false
			return
		}
		answer <- provider.Health(ctx) == nil
	}()
	select {
	case yes := <-answer:
		return yes
	case <-ctx.Done():
		return false
	}
}

func runContainer(ctx context.Context, image string, topology Topology, opts OpenOptions, log tclog.Logger) (*Server, error) {
	container, err := testcontainers.Run(ctx, image,
		testcontainers.WithLogger(log),
		testcontainers.WithCmd(containerArgs(topology, opts)...),
		testcontainers.WithExposedPorts(mongoPort),
		testcontainers.WithWaitStrategyAndDeadline(startTimeout, wait.ForLog("Waiting for connections")),
	)
	terminate := func() {
		// nothing to be done about an error: the guard and the reaper come after
		_ = testcontainers.TerminateContainer(container)
	}
	if err != nil {
		terminate()
		return nil, err
	}
	release := guardContainer(container.GetContainerID())
	server := &Server{from: image + " in Docker", stop: func() { terminate(); release() }}
	if err := server.locate(ctx, container, topology); err != nil {
		server.stop()
		return nil, err
	}
	return server, nil
}

func containerArgs(topology Topology, opts OpenOptions) []string {
	args := append([]string{"--bind_ip_all"}, mongod.TestArgs(opts.CacheGB)...)
	if topology == ReplicaSetOfOne {
		args = append(args, "--replSet", mongod.SetName)
	}
	return args
}

// locate sets the URI, a direct connection: the name by which a member knows
// itself means nothing outside the container.
func (s *Server) locate(ctx context.Context, container *testcontainers.DockerContainer, topology Topology) error {
	endpoint, err := container.PortEndpoint(ctx, mongoPort, "mongodb")
	if err != nil {
		return err
	}
	s.uri = endpoint + "/?directConnection=true"
	if topology != ReplicaSetOfOne {
		return nil
	}
	if err := mongod.InitiateAt(ctx, s.uri, "127.0.0.1:27017"); err != nil {
		return err
	}
	return mongod.WaitWritable(ctx, s.uri)
}

// guardContainer has the container removed when this process dies. By default
// testcontainers' own reaper does that; where it is disabled, the docker
// client does.
func guardContainer(id string) (release func()) {
	disabled, _ := strconv.ParseBool(os.Getenv("TESTCONTAINERS_RYUK_DISABLED"))
	docker, err := exec.LookPath("docker")
	if !disabled || err != nil {
		return func() {}
	}
	release, err = mongod.OnDeath(docker, "rm", "-f", "-v", id)
	if err != nil {
		return func() {}
	}
	return release
}
