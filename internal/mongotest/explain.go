package mongotest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// ExplainTotals is what a command cost: the totals of executionStats, summed
// where a pipeline has several, and the names of the stages in it.
type ExplainTotals struct {
	KeysExamined int64
	DocsExamined int64
	Returned     int64 // by the last stage; 0 for an update or a delete
	Stages       map[string]bool
}

// CollectionScan says whether a whole collection was read, by either of the
// server's two engines.
func (t ExplainTotals) CollectionScan() bool { return t.Stages["COLLSCAN"] || t.Stages["scan"] }

// Explain runs the command again under explain, with verbosity executionStats:
// a find, aggregate, count, distinct, findAndModify, or an update or delete of
// one statement, as [Commands] captured it. Explain never writes. Only totals
// and stage names are read, nothing else of explain's output is stable.
func Explain(tb testing.TB, db *mongo.Database, command bson.Raw) ExplainTotals {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := db.RunCommand(ctx, bson.D{
		{Key: "explain", Value: explainable(command)},
		{Key: "verbosity", Value: "executionStats"},
	}).Raw()
	require.NoError(tb, err, "explain %s", command)
	totals := ExplainTotals{Stages: map[string]bool{}}
	require.NoError(tb, totals.add(result), "explain %s", command)
	return totals
}

// explainable strips what the driver adds to each command and explain refuses.
func explainable(command bson.Raw) bson.D {
	var all, kept bson.D
	if err := bson.Unmarshal(command, &all); err != nil {
		return bson.D{{Key: "unreadable", Value: err.Error()}}
	}
	for _, e := range all {
		switch e.Key {
		case "lsid", "txnNumber", "autocommit", "startTransaction", "stmtId", "stmtIds",
			"$db", "$clusterTime", "$readPreference", "readConcern", "writeConcern", "apiVersion", "ordered", "bypassEmptyTsReplacement":
		default:
			kept = append(kept, e)
		}
	}
	return kept
}

// add sums up an explain result: one executionStats at the top or, where a
// pipeline runs in parts, one in the $cursor of a stage and more in the stages
// after it.
func (t *ExplainTotals) add(result bson.Raw) error {
	if stats, ok := result.Lookup("executionStats").DocumentOK(); ok {
		t.addStats(stats)
		return nil
	}
	stages, ok := result.Lookup("stages").ArrayOK()
	if !ok {
		return fmt.Errorf("explain gave neither executionStats nor stages: %s", result)
	}
	return t.addPipeline(stages)
}

func (t *ExplainTotals) addPipeline(stages bson.RawArray) error {
	values, err := stages.Values()
	if err != nil {
		return err
	}
	for _, value := range values {
		stage := value.Document()
		first, err := stage.IndexErr(0)
		if err != nil {
			return err
		}
		t.Stages[first.Key()] = true
		if inner, ok := stage.Lookup(first.Key(), "pipeline").ArrayOK(); ok && first.Key() == "$unionWith" {
			if err := t.addPipeline(inner); err != nil {
				return err
			}
		}
		if stats, ok := stage.Lookup(first.Key(), "executionStats").DocumentOK(); ok { // $cursor
			t.addStats(stats)
		} else {
			t.addTotals(stage) // $lookup has its own, beside its name
		}
		t.setReturned(stage)
	}
	return nil
}

func (t *ExplainTotals) addStats(stats bson.Raw) {
	t.addTotals(stats)
	t.setReturned(stats)
	if tree, ok := stats.Lookup("executionStages").DocumentOK(); ok {
		t.addNames(tree)
	}
}

// setReturned takes the number of a stage; the last one's stays.
func (t *ExplainTotals) setReturned(doc bson.Raw) {
	if n, ok := doc.Lookup("nReturned").AsInt64OK(); ok {
		t.Returned = n
	}
}

func (t *ExplainTotals) addTotals(doc bson.Raw) {
	if n, ok := doc.Lookup("totalKeysExamined").AsInt64OK(); ok {
		t.KeysExamined += n
	}
	if n, ok := doc.Lookup("totalDocsExamined").AsInt64OK(); ok {
		t.DocsExamined += n
	}
}

// addNames collects the names of a tree of stages.
func (t *ExplainTotals) addNames(tree bson.Raw) {
	if name, ok := tree.Lookup("stage").StringValueOK(); ok {
		t.Stages[name] = true
	}
	elements, _ := tree.Elements()
	for _, e := range elements {
		switch e.Key() {
		case "inputStage", "outerStage", "innerStage", "thenStage", "elseStage":
			if inner, ok := e.Value().DocumentOK(); ok {
				t.addNames(inner)
			}
		case "inputStages":
			if list, ok := e.Value().ArrayOK(); ok {
				values, _ := list.Values()
				for _, v := range values {
					t.addNames(v.Document())
				}
			}
		}
	}
}
