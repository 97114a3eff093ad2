package mongostore

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/execstore/mongostore/internal/mongotest"
)

// A claim by a wake-up computes here what a claim of many has the server compute: both
// must read the same from every document.
func TestBothClaimsReadTheSame(t *testing.T) {
	t.Parallel()
	client, database := mongotest.Standalone(t).Database(t)
	entries := func(n int, extra ...any) (list bson.A) {
		for i := range n {
			list = append(list, bson.D{{Key: "seq", Value: i + 1}, {Key: "parent_id", Value: "x"}, {Key: "child_id", Value: "c"}, {Key: "event", Value: "1"}})
		}
		return append(list, extra...)
	}
	timers := bson.D{{Key: "late", Value: 99.5}, {Key: "early", Value: int32(3)}, {Key: "far", Value: 1e9}, {Key: "same", Value: 3.0}}
	many := bson.D{}
	for i := range 150 {
		many = append(many, bson.E{Key: fmt.Sprintf("t%03d", i), Value: float64(200 - i)})
	}
	docs := []bson.D{
		{},
		{{Key: "outbox", Value: entries(3)}, {Key: "spawns", Value: entries(2)}, {Key: "timers", Value: timers}},
		{{Key: "outbox", Value: entries(150)}, {Key: "spawns", Value: entries(2)}, {Key: "timers", Value: timers}},
		{{Key: "outbox", Value: entries(2)}, {Key: "spawns", Value: entries(150)}, {Key: "timers", Value: timers}},
		{{Key: "outbox", Value: entries(100)}, {Key: "spawns", Value: entries(100)}, {Key: "timers", Value: many}},
		{{Key: "outbox", Value: entries(1, 5, "x", bson.D{})}, {Key: "spawns", Value: bson.A{nil}}, {Key: "timers", Value: bson.D{{Key: "a", Value: "soon"}, {Key: "b", Value: 1.0}}}},
		{{Key: "outbox", Value: "text"}, {Key: "spawns", Value: bson.D{}}, {Key: "timers", Value: bson.A{}}},
		{{Key: "outbox", Value: nil}, {Key: "spawns", Value: nil}, {Key: "timers", Value: nil}},
		{{Key: "outbox", Value: bson.A{}}, {Key: "spawns", Value: bson.A{}}, {Key: "timers", Value: bson.D{}}},
	}
	for _, kinds := range []Kind{kindAll, KindOutbox, KindSpawn, KindTimer, KindOutbox | KindTimer} {
		s, err := New(client, Config{Database: database, Prefix: fmt.Sprintf("k%d_", kinds), RelayKinds: kinds})
		require.NoError(t, err)
		for i, fields := range docs {
			id := fmt.Sprintf("x-%d", i)
			for _, e := range fields {
				if list, ok := e.Value.(bson.A); ok && e.Key == "spawns" {
					for _, v := range list {
						if d, ok := v.(bson.D); ok && len(d) > 1 {
							d[1].Value = id
						}
					}
				}
			}
			lease := bson.D{{Key: "token", Value: "t"}, {Key: "until", Value: 500.0}, {Key: "attempts", Value: 2}}
			_, err := s.executions.InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: id}, {Key: "lease", Value: lease}}, fields...))
			require.NoError(t, err)
			computed, err := s.readLeased(t.Context(), []string{id}, "t", 100)
			require.NoError(t, err)
			plain, err := s.executions.FindOne(t.Context(), byID(id), options.FindOne().SetProjection(plainProjection)).Raw()
			require.NoError(t, err)
			want, wantWrong := s.lease(id, computed[0])
			got, gotWrong := s.lease(id, s.projected(plain, 100))
			require.Equal(t, want, got, "kinds %d, document %d", kinds, i)
			require.Len(t, gotWrong, len(wantWrong), "kinds %d, document %d", kinds, i)
			for k := range wantWrong {
				require.Equal(t, wantWrong[k].err.Field, gotWrong[k].err.Field)
				require.Equal(t, wantWrong[k].whole, gotWrong[k].whole)
			}
		}
	}
}
