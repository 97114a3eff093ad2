package main

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The plots, drawn from results.json by rows that start with curve/.

const (
	commitPlot = "commit-throughput.svg"
	sweepPlot  = "sweep-time.svg"
)

// curveLine is one line of a plot.
type curveLine struct {
	label  string
	color  color.Color
	dashed bool
	points plotter.XYs
}

var (
	blue   = color.RGBA{R: 31, G: 119, B: 180, A: 255}
	green  = color.RGBA{R: 44, G: 160, B: 44, A: 255}
	orange = color.RGBA{R: 230, G: 120, B: 0, A: 255}
	red    = color.RGBA{R: 200, G: 40, B: 40, A: 255}
	grey   = color.RGBA{R: 110, G: 110, B: 110, A: 255}
)

// drawPlots draws those plots for which there are rows.
func drawPlots(results []Result) error {
	if err := drawCommits(results); err != nil {
		return err
	}
	return drawSweeps(results)
}

func find(results []Result, name string) (Result, bool) {
	i := slices.IndexFunc(results, func(r Result) bool { return r.Name == name && r.Topology == standalone })
	if i < 0 {
		return Result{}, false
	}
	return results[i], true
}

func drawCommits(results []Result) error {
	ours := curveLine{label: "ours", color: blue}
	block := curveLine{label: fmt.Sprintf("ours, SeqBlock %d", blockSize), color: green}
	floor := curveLine{label: "floor: one raw update", color: grey, dashed: true}
	seed := curveLine{label: "the seed's algorithm", color: red}
	var ticks plot.ConstantTicks
	for n := 1; n <= 64; n *= 2 {
		x := float64(n)
		if r, ok := find(results, curveName("full", n)); ok {
			ours.points = append(ours.points, plotter.XY{X: x, Y: r.Ours})
			floor.points = append(floor.points, plotter.XY{X: x, Y: r.Floor})
			seed.points = append(seed.points, plotter.XY{X: x, Y: r.Seed})
		}
		if r, ok := find(results, curveName("block", n)); ok {
			block.points = append(block.points, plotter.XY{X: x, Y: r.Ours})
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprint(n)})
	}
	p := plot.New()
	p.Title.Text = "Full commits per second by workers (standalone, journaled)"
	p.X.Label.Text, p.Y.Label.Text = "workers", "commits per second"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Min = 0
	return drawLines(p, commitPlot, floor, block, ours, seed)
}

func drawSweeps(results []Result) error {
	var lines []curveLine
	sizes := []float64{1e4, 1e5, 1e6}
	for i, name := range []string{"sweep/outbox", "sweep/timers", "ack/outbox", "list/deep"} {
		shade := []color.Color{blue, green, orange, red}[i]
		ours := curveLine{label: name, color: shade}
		seed := curveLine{label: "the seed's " + name, color: shade, dashed: true}
		for j, label := range sizeLabels {
			if r, ok := find(results, sweepCurve(name, label)); ok {
				ours.points = append(ours.points, plotter.XY{X: sizes[j], Y: r.Ours / 1000})
				seed.points = append(seed.points, plotter.XY{X: sizes[j], Y: r.Seed / 1000})
			}
		}
		lines = append(lines, ours, seed)
	}
	p := plot.New()
	p.Title.Text = "A sweep by the size of the collection (100 due)"
	p.X.Label.Text, p.Y.Label.Text = "executions stored", "milliseconds"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker = plot.ConstantTicks{{Value: 1e4, Label: "10,000"}, {Value: 1e5, Label: "100,000"}, {Value: 1e6, Label: "1,000,000"}}
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0.1, Label: "0.1"}, {Value: 1, Label: "1"}, {Value: 10, Label: "10"},
		{Value: 100, Label: "100"}, {Value: 1000, Label: "1,000"}, {Value: 10000, Label: "10,000"}}
	return drawLines(p, sweepPlot, lines...)
}

// drawLines saves the plot unless no line has points.
func drawLines(p *plot.Plot, file string, lines ...curveLine) error {
	p.Add(plotter.NewGrid())
	drawn := false
	for _, l := range lines {
		if len(l.points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return err
		}
		line.Color, line.Width = l.color, vg.Points(1.5)
		dots.Color, dots.Shape = l.color, draw.CircleGlyph{}
		if l.dashed {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		p.Add(line, dots)
		p.Legend.Add(l.label, line, dots)
		drawn = true
	}
	if !drawn {
		return nil
	}
	p.Legend.Left, p.Legend.Top = true, true
	return p.Save(18*vg.Centimeter, 11*vg.Centimeter, file)
}
