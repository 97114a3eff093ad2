package mongostore_test

import (
	"testing"

	"github.com/execstore/mongostore/internal/mongotest"
	"github.com/execstore/mongostore/internal/storetest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	t.Run("Standalone", func(t *testing.T) {
		t.Parallel()
		storetest.Exercise(t, mongotest.Standalone)
	})
	t.Run("ReplicaSet", func(t *testing.T) {
		t.Parallel()
		storetest.Exercise(t, mongotest.ReplicaSet)
	})
}
