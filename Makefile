# `make` lists the targets. Settings, as in `make test PKGS=./internal/storetest`:
#   PKGS       the packages to test            (all)
#   TESTFLAGS  more for go test                (such as '-run Commit -count 3')
#   SKIPS      a file that names the only tests that may be skipped (any may)
#   FUZZTIME   how long each target is fuzzed  (10s)
#   DURATION   how long each fault goes on     (10s)
#   ARGS       arguments of a demo             (such as '-orders 100 -kills 2')
# Which server the tests and the demo get, and how to choose it: CONTRIBUTING.md.

GO        ?= go
PKGS      ?= ./...
FUZZTIME  ?= 10s
DURATION  ?= 10s
COVERAGE  ?= 90
COVERFILE ?= cover.out

# Built, not `go run`: that would add a line to each message and swallow exit codes.
TOOLS     = $(GO) build -o .bin/ ./internal/mongotest/cmd/withmongo ./scripts/testreport
WITHMONGO = .bin/withmongo
FAULTS    = $(CURDIR)/.bin/faults.jsonl
REPORT    = .bin/testreport $(if $(SKIPS),-skips $(SKIPS))
GOLANGCI  = $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOFILES   = $(shell git ls-files '*.go')

# The race detector needs cgo, that is a C compiler, and one of these systems.
RACE := $(if $(and $(filter 1,$(shell $(GO) env CGO_ENABLED)),$(filter amd64 arm64 ppc64le s390x,$(shell $(GO) env GOARCH))),-race)

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z/-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

.PHONY: demo
demo: ## run 1,000 orders on a real server while workers are killed, and check that nothing got lost
	@echo "mongostore: building the demo (the first time this takes minutes)"
	@$(TOOLS) && $(GO) build -o .bin/ ./examples/orders
	@$(WITHMONGO) -only standalone -- .bin/orders $(ARGS)

.PHONY: demo/shop
demo/shop: ## run a shop on the outbox while its processes are killed, and check that each order has its mail and its place in the sums
	@echo "mongostore: building the demo (the first time this takes minutes)"
	@$(TOOLS) && $(GO) build -o .bin/ ./examples/shop
	@$(WITHMONGO) -only replicaset -- .bin/shop $(ARGS)

.PHONY: shell
shell: ## open a shell with a standalone server and a replica set to try things on, which are gone at its end
	@$(TOOLS)
	@$(WITHMONGO) -- sh -c 'echo "standalone:  $$MONGOSTORE_TEST_URI"; echo "replica set: $$MONGOSTORE_TEST_RS_URI"; exec $${SHELL:-sh}'

.PHONY: test
test: ## run all tests on a standalone and a replica set of one, under the race detector where there is one
	@echo "mongostore: building the tests (the first time this takes minutes), $(if $(RACE),with -race,WITHOUT -race: it needs cgo and a C compiler)"
	@$(TOOLS)
	@$(REPORT) -- $(WITHMONGO) -- $(GO) test -json -timeout 20m $(RACE) $(TESTFLAGS) $(PKGS)

.PHONY: test/faults
test/faults: ## break servers, connections and processes on purpose for DURATION, and check that nothing is lost
	@echo "mongostore: building the fault suite"
	@$(TOOLS)
	@rm -f $(FAULTS)
	@MONGOSTORE_TEST_DURATION=$(DURATION) MONGOSTORE_TEST_REPORT=$(FAULTS) $(REPORT) -- $(GO) test -tags faults -json -count 1 $(if $(filter 10s,$(DURATION)),-parallel 6 -timeout 20m,-parallel 2 -timeout 8h) $(TESTFLAGS) ./internal/faulttest

.PHONY: test/mutants
test/mutants: ## break one rule of the stores after the other, and see that the fault suite notices
	@MONGOSTORE_TEST_REPORT=$(FAULTS) $(GO) test -tags 'faults mutants' -count 1 -v -timeout 30m -run '^TestMutants$$' ./internal/faulttest

.PHONY: reliability
reliability: ## write the tables of docs/reliability.md from what test/faults and test/mutants have reported
	@$(GO) run ./scripts/faultreport $(FAULTS)

.PHONY: test/long
test/long: ## the same, with 64 writers, 10,000 commits, 2,000 executions for 8 relays that are killed, five minutes of the outbox's property test, which has to notice three broken stores, ten minutes of each fault, every mutant, and a minute for each fuzz target
	@MONGOSTORE_TEST_WRITERS=64 MONGOSTORE_TEST_COMMITS=10000 MONGOSTORE_TEST_EXECUTIONS=2000 MONGOSTORE_TEST_STEPS=4000 MONGOSTORE_TEST_DURATION=5m $(MAKE) --no-print-directory test
	@$(WITHMONGO) -only replicaset -- $(GO) test -count 1 -v $(RACE) -tags mutants -run TestThePropertyTestNotices ./outbox
	@$(MAKE) --no-print-directory test/faults DURATION=10m TESTFLAGS='$(TESTFLAGS) $(RACE)'
	@$(MAKE) --no-print-directory test/mutants
	@$(MAKE) --no-print-directory fuzz FUZZTIME=1m

.PHONY: cover
cover: ## run all tests and fail if they cover less than COVERAGE percent of the root package
	@$(MAKE) --no-print-directory test TESTFLAGS='$(TESTFLAGS) -coverpkg=. -coverprofile=$(COVERFILE)'
	@GO='$(GO)' scripts/check-coverage $(COVERFILE) $(COVERAGE)

.PHONY: fuzz
fuzz: ## fuzz each target for FUZZTIME
	@$(TOOLS)
	@$(WITHMONGO) -only standalone -- env GO='$(GO)' scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: ## measure against raw driver calls, and write bench/results.json; BENCH_SHORT=1: only see that it runs
	@cd bench && $(GO) run .

.PHONY: fmt
fmt: ## format the code
	@gofmt -w $(GOFILES)

.PHONY: fmt/check
fmt/check: ## fail if fmt would change something
	@files=$$(gofmt -l $(GOFILES)) && if [ -n "$$files" ]; then echo "make fmt would change:"; echo "$$files"; exit 1; fi

.PHONY: build
build: ## compile everything, the benchmarks too
	@$(GO) build ./...
	@cd bench && $(GO) build -o /dev/null .

.PHONY: vet
vet: ## go vet
	@$(GO) vet ./...
	@cd bench && $(GO) vet ./...

.PHONY: lint
lint: ## golangci-lint; the first time it is compiled, which takes some minutes
	@$(GOLANGCI) run ./...
	@cd bench && $(GOLANGCI) run --config ../.golangci.yaml ./...

.PHONY: verify
verify: fmt/check vet lint build cover fuzz demo demo/shop ## what CI does, but for the pass through Docker
	@BENCH_SHORT=1 $(MAKE) --no-print-directory bench
