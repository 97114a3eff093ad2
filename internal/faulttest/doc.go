// Package faulttest breaks servers, connections and processes on purpose, while both
// stores work, and shows that nothing is lost, doubled or reordered, and that every
// outcome is told truly. Its tests have the build tag faults: `make test/faults` runs
// them and writes the table of docs/reliability.md.
//
// A test is a fault (kill a server, lose replies, ...), a workload (commits of
// executions, deliveries of a relay, events of the outbox) and a row of the table.
// Settings: MONGOSTORE_TEST_DURATION is how long the random faults go on (10s each),
// MONGOSTORE_TEST_SEED replays their choices.
package faulttest
