//go:build faults

package faulttest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/execstore/mongostore/internal/mongotest"
)

// row is one line of the table: a fault, and what became of the operations under it.
type row struct {
	Fault    string `json:"fault"`
	Topology string `json:"topology"` // standalone, replica set of one, replica set of three
	Store    string `json:"store"`    // executions, relay, outbox
	Injected int64  `json:"injected"` // how often the fault struck

	Acknowledged int64 `json:"acknowledged"` // operations that were told to have succeeded
	Unknown      int64 `json:"unknown"`      // that were told to have an unknown outcome first
	Resolved     int64 `json:"resolved"`     // of them, by calling again

	Lost      int64 `json:"lost"`      // acknowledged, and not there
	Doubled   int64 `json:"doubled"`   // there twice
	Reordered int64 `json:"reordered"` // out of the order of commits
	Wrong     int64 `json:"wrong"`     // told to have failed, and there
}

func (r *row) String() string {
	return fmt.Sprintf("%s, %s, %s: struck %d times; %d acknowledged, %d unknown, %d of them resolved; %d lost, %d doubled, %d reordered, %d told wrongly",
		r.Fault, r.Topology, r.Store, r.Injected, r.Acknowledged, r.Unknown, r.Resolved, r.Lost, r.Doubled, r.Reordered, r.Wrong)
}

// enter closes a row: it is written down, and anything wrong in it fails the test.
func enter(t *testing.T, r *row) {
	t.Helper()
	t.Log(r)
	if err := report(os.Getenv(envReport), r); err != nil {
		t.Errorf("the report: %v", err)
	}
	if r.Lost+r.Doubled+r.Reordered+r.Wrong > 0 {
		t.Errorf("%s", r)
	}
	if r.Unknown != r.Resolved {
		t.Errorf("%d of %d unknown outcomes were not resolved", r.Unknown-r.Resolved, r.Unknown)
	}
	if r.Acknowledged == 0 || r.Injected == 0 {
		t.Errorf("nothing was tried: %s", r)
	}
}

// envReport names the file that gets the rows, one JSON document a line.
const envReport = "MONGOSTORE_TEST_REPORT"

var reporting sync.Mutex

func report(file string, r any) error {
	if file == "" {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	reporting.Lock()
	defer reporting.Unlock()
	f, err := os.OpenFile(filepath.Clean(file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

func TestMain(m *testing.M) { mongotest.Main(m) }
