package main

import (
	"testing"

	"github.com/execstore/mongostore/internal/mongotest"
)

func TestMain(m *testing.M) { mongotest.Main(m) }
