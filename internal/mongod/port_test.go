//go:build unix

package mongod_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/execstore/mongostore/internal/mongod"
	"github.com/execstore/mongostore/internal/mongotest"
)

func TestAServerThatHasThePortIsNotTakenForOurs(t *testing.T) {
	t.Parallel()
	binary := mongotest.HaveMongod(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	other, err := mongod.Start(ctx, mongod.Config{Binary: binary})
	require.NoError(t, err)
	t.Cleanup(other.Stop)
	_, number, err := net.SplitHostPort(other.Addr())
	require.NoError(t, err)
	port, err := strconv.Atoi(number)
	require.NoError(t, err)
	_, err = mongod.StartOn(ctx, mongod.Config{Binary: binary}, port)
	require.ErrorIs(t, err, mongod.ErrPortTaken)
}
