//go:build !mutants

// Package mutant breaks the stores on purpose, one rule at a time, to prove that the
// tests would notice. In a normal build nothing can be switched on.
package mutant

// On is whether the rule of that name is broken: never, in this build.
func On(string) bool { return false }
