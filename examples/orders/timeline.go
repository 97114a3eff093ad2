package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// line is a step with the execution that took it.
type line struct {
	TraceStep
	execution string
}

// storyOf gathers what an order, its children and its account did about it, in the
// order in which it happened.
func storyOf(w *World, id string) []line {
	var all []line
	o := w.Orders[id]
	for _, step := range o.Trace {
		all = append(all, line{step, id})
	}
	for _, r := range o.Machine.Plan.Regions {
		child := parcelID(id, r.Name)
		for _, step := range w.Parcels[child].Trace {
			all = append(all, line{step, child})
		}
	}
	account := o.Machine.Plan.Account
	for _, step := range w.Accounts[account].Trace {
		if step.Order == id {
			all = append(all, line{step, account})
		}
	}
	slices.SortStableFunc(all, func(a, b line) int { return cmp.Compare(a.At, b.At) })
	return all
}

// mostTold picks the order to show: one that was reminded and shipped, by as many
// workers as possible.
func mostTold(w *World) string {
	best, most := "", -1
	for id, seen := range w.Orders {
		score := len(workersOf(storyOf(w, id)))
		if o := seen.Machine; o.Status == done && o.Reminders > 0 {
			score += 1000
		}
		if score > most || score == most && id < best {
			best, most = id, score
		}
	}
	return best
}

func workersOf(story []line) []string {
	var names []string
	for _, l := range story {
		names = append(names, l.Worker)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// printTimeline writes the story of an order as a table.
func printTimeline(out io.Writer, w *World, id string) {
	story := storyOf(w, id)
	if len(story) == 0 {
		return
	}
	o := w.Orders[id].Machine
	took := time.Duration(story[len(story)-1].At-story[0].At) * time.Microsecond
	fmt.Fprintf(out, "\nThe trace of %s, %s from %s, payer %s, %s: %d commits by %d processes in %.1f s\n\n",
		id, money(o.Plan.Amount), o.Plan.Account, o.Plan.Payer, o.Outcome, len(story), len(workersOf(story)), took.Seconds())
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, l := range story {
		at := time.Duration(l.At-story[0].At) * time.Microsecond
		short := strings.NewReplacer("parcel:"+id+":", "parcel ", id, "order")
		fmt.Fprintf(table, "  %7.3f s\t%s\t%s\t%s\t%s\n", at.Seconds(),
			short.Replace(l.execution), l.Event, l.Worker, short.Replace(strings.Join(l.Did, "; ")))
	}
	_ = table.Flush()
}
