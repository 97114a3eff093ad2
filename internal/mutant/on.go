//go:build mutants

// Package mutant breaks the stores on purpose, one rule at a time, to prove that the
// tests would notice. This is the build in which MONGOSTORE_MUTANT names the rule.
package mutant

import "os"

var broken = os.Getenv("MONGOSTORE_MUTANT")

// On is whether the rule of that name is broken.
func On(name string) bool { return name == broken }
