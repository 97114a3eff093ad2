package mongoerr_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/execstore/mongostore/internal/mongoerr"
)

func refused(code int) error {
	return mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: code}}}
}

func bulk(code int, concern *mongo.WriteConcernError) error {
	return mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{{WriteError: mongo.WriteError{Code: code}}}, WriteConcernError: concern}
}

func TestWhatAnErrorMeansForAWrite(t *testing.T) {
	t.Parallel()
	concern := &mongo.WriteConcernError{Code: 100} // not among the open codes
	for name, c := range map[string]struct {
		err             error
		open, neverSent bool
	}{
		"none":                         {nil, false, false},
		"context":                      {context.DeadlineExceeded, true, false},
		"connection":                   {io.EOF, true, false},
		"no server":                    {topology.ServerSelectionError{Wrapped: context.DeadlineExceeded}, false, true},
		"disconnected":                 {mongo.ErrClientDisconnected, false, true},
		"refused":                      {refused(11000), false, false},
		"interrupted":                  {refused(11600), true, false},
		"write concern":                {mongo.WriteException{WriteConcernError: concern}, true, false},
		"refused in a batch":           {bulk(11000, nil), false, false},
		"interrupted in a batch":       {bulk(11600, nil), true, false},
		"write concern of a batch":     {bulk(11000, concern), true, false},
		"command refused":              {mongo.CommandError{Code: 2}, false, false},
		"command of a primary no more": {mongo.CommandError{Code: 10107}, true, false},
		"command to be retried":        {mongo.CommandError{Code: 2, Labels: []string{"RetryableWriteError"}}, true, false},
		"command on a broken line":     {mongo.CommandError{Code: 2, Labels: []string{"NetworkError"}}, true, false},
		"command without a code":       {mongo.CommandError{}, true, false},
		"not encodable":                {mongo.MarshalError{Err: io.EOF}, false, false},
		"no argument":                  {mongo.InvalidArgumentError{}, false, false},
	} {
		require.Equal(t, c.open, mongoerr.IsOpen(c.err), name)
		require.Equal(t, c.neverSent, mongoerr.NeverSent(c.err), name)
		if c.err != nil {
			require.Equal(t, c.open, mongoerr.IsOpen(fmt.Errorf("wrapped: %w", c.err)), name)
		}
	}
}

func TestCodes(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("wrapped: %w", refused(mongoerr.UpdateTooLarge))
	require.True(t, mongoerr.HasCode(err, mongoerr.ObjectTooLarge, mongoerr.UpdateTooLarge))
	require.False(t, mongoerr.HasCode(err, mongoerr.BadValue))
	require.False(t, mongoerr.HasCode(err))
	require.False(t, mongoerr.HasCode(nil, mongoerr.BadValue))
	require.False(t, mongoerr.HasCode(errors.New("2"), mongoerr.BadValue))
}
