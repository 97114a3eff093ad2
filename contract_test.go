package mongostore_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/internal/storetest"
)

// TestContract runs the contract suite on both kinds of server, and once more with
// clients that are set up as no plain one is (BH-12, BH-15).
func TestContract(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]struct {
		server func(testing.TB) *mongotest.Server
		opts   []*options.ClientOptions
	}{
		"Standalone":                         {server: mongotest.Standalone},
		"ReplicaSet":                         {server: mongotest.ReplicaSet},
		"BH-12_ReplicaSetForeignClient":      {mongotest.ReplicaSet, []*options.ClientOptions{storetest.EveryClientOption()}},
		"BH-15_ReplicaSetWithoutRetryWrites": {mongotest.ReplicaSet, []*options.ClientOptions{options.Client().SetRetryWrites(false)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Exercise(t, run.server, run.opts...)
		})
	}
}
