# Everything here needs Go, make and the module proxy; nothing else need be installed.
# As root, the end-to-end tests and bench-heal drop packets in network namespaces;
# otherwise a proxy takes their place.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
PROTOC_GEN_GO := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GEN_GRPC := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

# What libraries link and nobody here uses: gRPC's trace pages, the command line's
# manual pages. Without them the binary is 0.6 MB smaller. lab/harness builds alike.
TAGS := grpcnotrace,urfave_cli_no_docs
# The binary is built without C. So is everything else: where there is a C compiler, all
# libraries would be compiled twice.
export CGO_ENABLED := 0

TOOLS := $(CURDIR)/lab/.bin

# Runs steps one at a time, counts their tests and names what failed; see lab/gate.
RUN = mkdir -p $(TOOLS)/gate && cd lab && go build -o .bin/gate/gate ./gate && .bin/gate/gate

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

# GOOS and GOARCH build for another machine. VERSION is what --version says; without it,
# what Go knows of the source.
.PHONY: build
build: ## build the static binary bin/holdfast; VERSION=v1.2.3 names it
	CGO_ENABLED=0 go build -tags '$(TAGS)' -trimpath -ldflags '-s -w$(if $(VERSION), -X main.buildVersion=$(VERSION))' -o bin/holdfast .

.PHONY: demo
demo: ## etcd, three NATS servers, three sidecars, and what goes wrong; ARGS=--stay leaves it running
	@cd lab && go run ./demo $(ARGS)

.PHONY: test
test: ## the fast tests, which are three steps of the gate; two minutes on two cores, four the first time
	@$(RUN) deterministic realtime lab

.PHONY: gate
gate: ## all that decides whether a change is good: .ci/run; STEPS='race demo' runs some
	@$(RUN) $(STEPS)

.PHONY: proof
proof: ## what takes too long for the gate, two hours; goes on where it was interrupted; STEPS='race fuzz' runs some
	@$(RUN) -proof $(STEPS)

.PHONY: e2e
e2e: ## end to end, real TTLs and real cuts; ARGS='-run Scenario2' does some
	cd lab && go test ./e2e -count 1 -timeout 40m $(ARGS)

# The tag keeps these tests, and the client that they compile, out of all other targets.
.PHONY: test-pulsar
test-pulsar: ## Holdfast beside a real Pulsar; skipped without Java 17 and Maven; ARGS='-run Conforms' does some
	cd lab && go test ./pulsar -tags pulsar -count 1 -timeout 30m $(ARGS)

.PHONY: compare-pulsar
compare-pulsar: ## the same faults on a real Pulsar with and without Holdfast, as one table; hours; ARGS='-run kill' does some
	@cd lab && go run -tags pulsar ./comparepulsar $(ARGS)

.PHONY: rules
rules: ## the alerts: each clause of each rule, courses of events, promtool and amtool where they are
	cd lab && go test -count 1 -timeout 20m ./alerttest

.PHONY: pictures
pictures: ## draw the status page for the documentation; needs chromium
	@mkdir -p docs/images && cd lab && go run ./pictures ../docs/images

.PHONY: bench-heal
bench-heal: ## time from the end of a 60 s black hole to the registration, ten times
	@cd lab && go run ./bench heal $(ARGS)

.PHONY: bench-fence
bench-fence: ## how long before its deadline a broker stops, 5 times for each fault; ARGS='-each 50' for more
	@cd lab && go run ./bench fence $(ARGS)

.PHONY: bench-idle
bench-idle: ## what a sidecar costs while nothing happens, beside a bare client; ARGS='-for 1m' is shorter
	@cd lab && go run ./bench idle $(ARGS)

.PHONY: guard-load
guard-load: ## five minutes with all processors busy: the guard leaves a healthy sidecar's broker alone
	@cd lab && go run ./bench guard $(ARGS)

.PHONY: bench-etcd
bench-etcd: ## what a look and a registration cost among 10,000 others, beside the same among 10
	@cd lab && go run ./bench etcd $(ARGS)

.PHONY: bench-neighbours
bench-neighbours: ## 2,000 sidecars on one etcd for five minutes, then without it for 20 s; ARGS='-sidecars 500 -for 1m'
	@cd lab && go run ./bench neighbours $(ARGS)

.PHONY: bench-load
bench-load: ## rate of loading topics, beside a bare loop of the broker's client
	@cd lab && go run ./bench load $(ARGS)

.PHONY: bench-move
bench-move: ## moving topics between NATS servers, beside plain snapshots and restores; ARGS='-size 50 -streams 30' is short
	@cd lab && go run ./bench move $(ARGS)

.PHONY: bench-plan
bench-plan: ## time to plan 10,000 topics, to place them when one of 100 brokers leaves, and to look on while others get theirs
	go test -run '^$$' -bench 'Plan|Placement' -benchmem ./recovery ./recovery/topics

.PHONY: simulate
simulate: ## 10,000 random schedules for whole sidecars in virtual time; ARGS='-schedules 1 -seed 7 -v' tells one
	go test ./agent/simulation -run 'TestNamed|TestNothing' -timeout 30m $(or $(ARGS),-schedules 10000 -seed $(shell date +%s))

.PHONY: mutate
mutate: ## break each decision and each guard of a transaction on purpose, and see that a test notices; ARGS='-run suspicion' does some
	@cd lab && go run ./mutate $(ARGS)

.PHONY: mutate-simulation
mutate-simulation: ## break safety rules that only whole sidecars show broken; ARGS='-mutate lease' does some
	GOFLAGS=-p=2 go test ./agent/simulation -run 'TestEveryMutant' -timeout 60m -v $(or $(ARGS),-mutate .) | { grep --line-buffered -v -e '^=== ' || true; }

.PHONY: bench-scrape
bench-scrape: ## time and size of a scrape with 10,000 topics, beside a scrape of the Go collector alone
	go test -run 'TestAScrape' -bench 'Scrape' -benchtime 200x -v ./agent | { grep -v -e '^=== ' || true; }

FUZZTIME ?= 1m
.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (1m), nine or more at a time; ARGS='-run nats' does some
	@cd lab && go run ./fuzz -time $(FUZZTIME) $(ARGS)

.PHONY: lint
lint: ## gofmt, vet, staticcheck
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted, run gofmt -w:" $$files; exit 1; fi
	go vet ./...
	cd lab && go vet ./...
	cd dashboards && go vet ./...
	GOBIN=$(TOOLS) go install $(STATICCHECK)
	$(TOOLS)/staticcheck ./...
	cd lab && $(TOOLS)/staticcheck ./...
	cd dashboards && $(TOOLS)/staticcheck ./...

.PHONY: lint-all
lint-all: lint ## the same, with what is beside a real Pulsar, and govulncheck
	cd lab && go vet -tags pulsar ./... && $(TOOLS)/staticcheck -tags pulsar ./...
	@$(MAKE) --no-print-directory vulncheck

# Exit code 3 says that there is something; any other says that it could not look.
.PHONY: vulncheck
vulncheck:
	@GOBIN=$(TOOLS) go install $(GOVULNCHECK) || { echo "govulncheck skipped: cannot be installed from here"; exit 0; }; \
	code=0; $(TOOLS)/govulncheck ./... || code=$$?; \
	case $$code in 0) ;; 3) exit 1;; *) echo "govulncheck skipped: its database cannot be reached from here";; esac

PROTO := brokerapi/danube/danubepb
.PHONY: proto
proto: ## generate the code of the gRPC interfaces; needs protoc (protobuf-compiler)
	GOBIN=$(TOOLS) go install $(PROTOC_GEN_GO)
	GOBIN=$(TOOLS) go install $(PROTOC_GEN_GRPC)
	protoc -I $(PROTO) --plugin=$(TOOLS)/protoc-gen-go --plugin=$(TOOLS)/protoc-gen-go-grpc \
		--go_out=$(PROTO) --go_opt=paths=source_relative \
		--go-grpc_out=$(PROTO) --go-grpc_opt=paths=source_relative $(notdir $(wildcard $(PROTO)/*.proto))

.PHONY: dashboards
dashboards: ## generate the Grafana dashboards in dashboards/
	cd dashboards && go run .

.PHONY: clean
clean: ## remove what was built
	rm -rf bin lab/.bin

# Lines of Go without blanks and comments. Test code are also packages that only tests import.
.PHONY: weights
weights: ## lines of code by room
	@git ls-files '*.go' | while read f; do echo "$$(grep -cvE '^[[:space:]]*(//.*)?$$' "$$f") $$f"; done | awk ' \
	{ n = split($$2, p, "/"); room = n > 1 ? p[1] : "verbs"; kind = "product"; \
	  if ((room == "agent" || room == "recovery") && n > 2) room = p[1] "/" p[2]; \
	  if ($$2 ~ /_test\.go$$|\/(brokertest|memory|guardtest|simulation)\/|^(standstill|internal)\//) kind = "tests"; \
	  if (room == "lab" || room == "dashboards") kind = room; \
	  if ($$2 ~ /\.pb\.go$$/) kind = "generated"; \
	  if ($$2 ~ /(^|\/)(moves|moving)\/|(\/|_)moves?\.go$$/ && kind == "product") room = "moves"; \
	  if (kind == "product") w[room] += $$1; sum[kind] += $$1 } \
	END { for (r in w) printf "%-16s %7d\n", r, w[r] | "sort"; close("sort"); print ""; \
	  for (k in sum) printf "%-16s %7d\n", k, sum[k] | "sort" }'
