package main

import (
	"time"

	"github.com/execstore/mongostore"
)

// Parcel is what one region packs of an order: a child execution.
type Parcel struct {
	mongostore.Header
	Region string        `json:"region"`
	Takes  time.Duration `json:"takes"`
	Starts int           `json:"starts"` // 1, unless the child was created again over itself
}

const (
	nodePacking = "Parcel.Packing"
	packTime    = "Parcel.Packing.Time"
)

var parcelTransitions = transitions[*Parcel]{
	"":          {"start": (*Parcel).start},
	nodePacking: {timeout(packTime): (*Parcel).packed},
}

func parcelID(order, region string) string { return "parcel:" + order + ":" + region }

// Handle implements Machine.
func (p *Parcel) Handle(s *Step) bool { return parcelTransitions.apply(p, s) }

func (p *Parcel) start(s *Step) {
	p.Region, p.Takes = s.Event.Region, s.Event.Takes
	p.Starts++
	s.Go(nodePacking)
	s.Wake(packTime, p.Takes)
}

func (p *Parcel) packed(s *Step) {
	s.Send(p.ParentID, Event{Name: "packed", Order: p.ParentID, Region: p.Region})
	s.Finish(done, "packed")
}
