//go:build faults && unix

package faulttest_test

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/execstore/mongostore/internal/mongod"
	"github.com/execstore/mongostore/internal/mongotest"
)

// TestTheDiskIsFull fills the disk of a server, and makes room again. A server that gives
// up is started again then.
func TestTheDiskIsFull(t *testing.T) {
	t.Parallel()
	small := []string{"--wiredTigerEngineConfigString", "log=(file_max=4MB)"} // what is kept for the journal
	for _, topology := range topologies {
		t.Run(topology.name, func(t *testing.T) {
			t.Parallel()
			from := seed(t)
			rnd := rand.New(rand.NewPCG(from, 1000))
			opts := topology.opts
			opts.Args = append(small[:2:2], opts.Args...)
			cluster := mongotest.Start(t, opts)
			disk := smallDisk(t, cluster.Node(0))
			w := crowd{
				fault: "a full disk", topology: topology.name, seed: from, committers: 16, others: 2, transactions: opts.ReplicaSet,
				sound: cluster.Client(patientSelection), client: among(cluster.Client(impatientSelection)),
			}.start(t)
			for range min(times(t, 1), 3) { // what is worked stays on the small disk
				aWhile(rnd)
				write := heavy(t, cluster.Node(0))
				makeRoom := fill(t, disk)
				write(w)
				aWhile(rnd)
				w.struck(1)
				makeRoom()
				if !answers(t, cluster.Node(0)) {
					cluster.Node(0).Restart()
				}
				require.NoError(t, cluster.Node(0).Client(patientSelection).Database("ballast").Drop(t.Context()))
			}
			aWhile(rnd)
			w.finish(t)
		})
	}
}

const diskSize = "160m"

// smallDisk puts the data of a server on a file system of its own, which goes when the
// test or its process ends.
func smallDisk(t *testing.T, n *mongotest.Node) (folder string) {
	t.Helper()
	var opts struct {
		Parsed struct {
			Storage struct {
				DBPath string `bson:"dbPath"`
			}
		}
	}
	require.NoError(t, n.Client().Database("admin").RunCommand(t.Context(), bson.D{{Key: "getCmdLineOpts", Value: 1}}).Decode(&opts))
	folder = opts.Parsed.Storage.DBPath
	n.Kill()
	kept := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(kept, "data"), os.DirFS(folder)))
	const script = `mount -t tmpfs -o size=$2 mongostore "$1" || exit 1; trap '' INT TERM HUP; echo mounted; cat >/dev/null; umount -l "$1"`
	cmd := exec.Command("/bin/sh", "-c", script, "disk", folder, diskSize)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the end of its input ends it, no signal
	var complaint strings.Builder
	cmd.Stderr = &complaint
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said, _ := bufio.NewReader(stdout).ReadString('\n')
	t.Cleanup(func() {
		n.Kill()
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
	})
	if said != "mounted\n" {
		_ = cmd.Wait()
		t.Skipf("left out: a small file system for a server cannot be mounted here, that takes root and the right to mount: %s", strings.TrimSpace(complaint.String()))
	}
	require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(kept, "data"))))
	n.Restart()
	return folder
}

// fill leaves no room on a disk.
func fill(t *testing.T, disk string) (makeRoom func()) {
	t.Helper()
	name := filepath.Join(disk, "ballast")
	f, err := os.Create(name)
	require.NoError(t, err)
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	return func() {
		require.NoError(t, errors.Join(f.Close(), os.Remove(name)))
	}
}

// heavy writes until the server has no room left in the files that it has, and commits
// fail.
func heavy(t *testing.T, n *mongotest.Node) (write func(w *working)) {
	t.Helper()
	client := n.Client(impatientSelection)
	weights := client.Database("ballast").Collection("weights", options.Collection().SetWriteConcern(writeconcern.Journaled()))
	weight := make([]byte, 256<<10)
	insert := func() {
		_, _ = crand.Read(weight) // does not compress
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = weights.InsertOne(ctx, bson.D{{Key: "weight", Value: weight}})
	}
	insert() // there is a file for them
	return func(w *working) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for before := w.failed(); w.failed() == before; insert() {
			require.NoError(t, ctx.Err(), "the disk is full, and no commit fails")
		}
	}
}

// answers says whether a server is alive, some time after it may have died.
func answers(t *testing.T, n *mongotest.Node) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	return mongod.WaitWritable(ctx, n.URI()) == nil
}
