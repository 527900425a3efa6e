# Pitcrew. `make` lists the targets.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# The tag of the images, the one that the chart asks for, and with `make VERSION=v1.2.3` the release that programs print;
# otherwise they print what the go command recorded.
VERSION  ?= $(shell awk '/^appVersion:/ {print $$2}' manifests/chart/Chart.yaml)
RELEASE  := $(if $(filter-out file,$(origin VERSION)),-X=github.com/pitcrew-dev/pitcrew/internal/version.release=$(VERSION))
GO_BUILD := go build -trimpath -ldflags "-s -w $(RELEASE)"
# These plugins load NVIDIA's libraries at run time. All other programs are static.
CGO      := $(wildcard $(addprefix ./plugins/,dcgm ecc gpucount nvlink stall thermal))
# The tests, the linter, `go run` and the programs use what one of them has compiled: with cgo, or with paths, Kubernetes is compiled once more.
# Nobody debugs them, and the tables for it would take an eighth of the compiler's CPU time.
export CGO_ENABLED ?= 0
export GOFLAGS     ?= -trimpath -gcflags=all=-dwarf=false
# go-nvml binds functions that NVIDIA calls deprecated. Without this flag gcc warns about each.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
LINTER   := bin/components/golangci-lint
# Of this checkout alone: the linter stores the paths of files with its results. In a shared cache those of a checkout that is
# gone come back, and no nolint comment is found for them.
export GOLANGCI_LINT_CACHE := $(CURDIR)/bin/lint-cache
HELM     := bin/components/helm
export KUBERNETES
# COMPONENTS=build compiles what would be fetched as a release.
export COMPONENTS
# Registries may refuse once.
APT      := apt-get -qq -o Acquire::Retries=5
RETRY     = for pause in 5 15 60 0; do $(1) && break; (( pause )) || exit 1; sleep $$pause; done

.PHONY: help try demo test test-packages test-cgo test-kernel-log test-slow test-race test-node test-operators test-images operators build components lint vuln generate verify fuzz images release publish bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

try: ## in less than a minute: a fault in a sample kernel log, what it means, and the heatmap of a slow node
	@echo "compiling the xid plugin and this command: less than a minute on two cores with empty caches"
	@go run ./e2e/try

demo: nft ## an Xid in the kernel log leads to a condition, a taint and a restarted training job, on real components
	@echo "fetches the releases of etcd, Kubernetes, KWOK and NPD, or builds them where they cannot be reached, and builds JobSet and Pitcrew;" \
		"then they start on loopback and a GPU fails"
	@go run ./e2e/components/build kube kwok jobset-controller node-problem-detector ./e2e/demo ./plugins/xid ./remediator
	@bin/demo

# Real clusters on a busy machine miss a time limit now and then, so a test that failed runs once more when the others have ended. What it
# printed stays in the output, "=== FAIL" names it, and the last line has "DONE 2 runs": mend it, a test that needs this is broken. More than
# five failures are not run again. $(1) are the packages, $(2) the flags of go test. With GOGC the pure tests need a third less CPU time, and
# without the tables of debuggers (-s) linking them a quarter less. No result comes from Go's cache (-count=1): it knows the files that a test
# opens, not the sources of a program that the test builds and runs.
GOTEST = packages="$$(go list $(3) $(1))"; GOGC=400 bin/components/gotestsum --format=standard-quiet --rerun-fails=1 --rerun-fails-max-failures=5 \
	--rerun-fails-run-root-test --rerun-fails-abort-on-data-race --packages "$$(echo $$packages)" -- -vet=off -ldflags=-s -count=1 $(3) $(2) | bin/remaining $(or $(patsubst -p=%,%,$(filter -p=%,$(2))),$$(nproc)) $$packages

# These share this machine's kernel log: they report every fault in it, and write faults there or more than it holds. So they run one by one.
KERNEL_LOG := e2e/detect e2e/kernellog internal/kmsg
# These load NVIDIA's libraries.
WITH_CGO   := internal/nvml $(CGO:./%=%)
# These run a kubelet and containerd on this machine, and write to its kernel log, too.
REAL_NODE  := e2e/node e2e/newcomer
# These run operators of other kinds of job than JobSet.
OPERATORS  := e2e/slurm
# It builds earlier commits, which a shallow clone does not have.
HISTORY    := e2e/upgrade
# It reads what `make site` has made.
SITE       := site
# These test what the repository promises about itself, a thousand nodes, healthy machines, an API server that fails, and the tests' own cluster.
SLOW       := e2e/outage e2e/hostile e2e/scale e2e/chaos e2e/cluster bench/falsealarms e2e/contributing e2e/hardware e2e/components images/release

# Their own code runs in several goroutines, so they are tested with the race detector, which has to compile what they import once more. A
# test of e2e/lint compares the list with the code. The longest come first.
RACED := internal/kmsg/textlog remediator/rejections remediator/latekinds remediator/record remediator/node remediator/visits remediator/visits/failures remediator remediator/jobs remediator/jobs/report preflight remediator/preflight remediator/nodes remediator/nodes/memory remediator/record/pending remediator/nodes/report remediator/nodes/tally remediator/record/keystore remediator/followers/devices remediator/followers/queue remediator/catchup remediator/policy remediator/followers/evidence remediator/progress \
	remediator/followers/webhooks remediator/slim remediator/watchguard remediator/away internal/bounded internal/npd internal/nvml internal/tool internal/xid plugins/dcgm plugins/hung plugins/xid repair repair/collect docs/examples/fencer docs/examples/replacer docs/examples/webhook

# The longest: they come first, since at the end one of them would run alone.
FIRST      := remediator manifests/chart kubectl-pitcrew e2e/asshipped remediator/visits e2e/deadnode e2e/attacks remediator/preflight \
	remediator/quarantine remediator/jobs remediator/repair repair e2e/alerts remediator/slim

# Tests on a control plane use about a third of a core, so five packages run side by side on two cores. `make lint` vets everything.
AT_ONCE    := $$((5*$$(nproc)/2))
TEST_FLAGS  = -timeout 30m -p=$(AT_ONCE) -parallel 8
RACE_FLAGS := -timeout 30m -p=$$(nproc) -parallel 8

# What `make test` builds first. The tests build the programs of this repository.
SHARED := gotestsum kube kwok jobset-controller node-problem-detector helm ./e2e/components/remaining

.PHONY: test-components
test-components:
	@echo "fetches or builds the components of the tests, as far as they are missing: etcd, Kubernetes, KWOK, JobSet, NPD, helm"
	@go run ./e2e/components/build $(SHARED)

# The tests that write to the kernel log wait more than they compute, and those that need cgo are few: they run beside the others.
test: test-components chromium bin/debian ## what to run before a commit: the pure tests, and those on a real control plane with KWOK, JobSet, NPD and helm
	@$(MAKE) --no-print-directory --old-file=test-components --keep-going --jobs=3 test-packages test-kernel-log test-cgo

# Without WITHOUT.
test-packages: test-components chromium bin/debian
	@$(call GOTEST,$$(go list $(addprefix ./,$(FIRST)) ./... | awk '!seen[$$0]++' | \
		grep -vE '/pitcrew/($(subst $() ,|,$(strip $(WITH_CGO) $(KERNEL_LOG) $(REAL_NODE) $(OPERATORS) $(SLOW) $(SITE) $(HISTORY) e2e/lint e2e/vuln $(WITHOUT))))$$'),$(TEST_FLAGS))

test-cgo: test-components bin/debian ## the plugins that load NVIDIA's libraries
	@export CGO_ENABLED=1; $(call GOTEST,$(addprefix ./,$(filter-out $(WITHOUT),$(WITH_CGO))),$(TEST_FLAGS))

test-kernel-log: test-components programs bin/debian ## the tests that write to this machine's kernel log
	@$(call GOTEST,$(addprefix ./,$(KERNEL_LOG)),-timeout 30m -p=1)

test-slow: test-components programs ## an API server that is away or silent, chaos, a thousand nodes, also hostile ones, false alarms, the steps of docs/add-a-check.md, the kit for GPUs, the fetch of components, a release
	@$(call GOTEST,$(addprefix ./,$(SLOW)),$(TEST_FLAGS))

test-race: test-components programs bin/debian ## the packages whose own code runs in several goroutines, with the race detector
	@export CGO_ENABLED=1; $(call GOTEST,$(addprefix ./,$(RACED)),-race $(RACE_FLAGS))

test-node: programs bin/debian bin/images/debian ## on this machine's own kernel with a real kubelet and containerd (as root)
	@go run ./e2e/components/build $(SHARED) kubelet dra-example-driver
	@$(call GOTEST,$(addprefix ./,$(REAL_NODE)),-timeout 60m -p=1)

# With KUBERNETES=1.36 on that version, with a control plane of its own.
test-operators: operators ## job restarts with the real job operators (the first build takes about 10 minutes); KUBERNETES=1.36 on an older version
	@$(call GOTEST,./remediator/jobs/operators $(addprefix ./,$(OPERATORS)),-timeout 60m -parallel 8,-tags=operators)

test-images: bin/images/debian ## the images of both architectures
	@go run ./e2e/components/build helm
	go test -C images/build -vet=off -count=1 ./...

# What .ci/run runs after `make verify`: three targets side by side, the next when one has ended, the longest first. Tests wait more than they
# compute, so each target has no more packages at once than there are cores. What all need is fetched and built first, and what no time limit
# waits for is nice to the others. What shares the kernel log runs one after the other. A failure ends no other target.
CI := ci-test-node ci-test-packages ci-test-race ci-test-operators ci-test-slow ci-lint ci-test-images
ci-test-node: THEN := test-kernel-log test-cgo
ci-lint ci-test-images: NICE := nice
.PHONY: ci $(CI)
ci: test-components chromium bin/debian bin/images/debian
	@$(MAKE) --no-print-directory --keep-going --jobs=3 $(CI)

$(CI): ci-%:
	@failed=; for target in $* $(THEN); do begun=$$SECONDS; $(NICE) $(MAKE) --no-print-directory WITHOUT="$(RACED)" AT_ONCE=$$(nproc) $$target || failed+=" $$target"; \
		echo "== $$target: $$(( (SECONDS - begun + 30) / 60 )) min"; done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

operators:
	@go run ./e2e/components/build $(SHARED) kube$(KUBERNETES:%=-%) training-operator mpi-operator trainer \
		kuberay lws kueue volcano-controller-manager volcano-webhook-manager volcano-scheduler slurm-operator

# SEED is that of the first world, FOR how long worlds go wrong; each has a minute, or WORLD, and the next seed. With TAGS=operators the jobs are those of
# the operators of `make operators`.
.PHONY: chaos
chaos: components ## random worlds beside real remediators that are killed: make chaos SEED=7 FOR=1h; a failure names its seed
	go test ./e2e/chaos -vet=off $(TAGS:%=-tags %) -count=1 -timeout 0 -v -run 'TestChaos$$' -args -seed $(or $(SEED),5) -for $(or $(FOR),1m) \
		-world $(or $(WORLD),1m)

# The versions of Kubernetes before the newest, and the tests of what they do not serve: policies that change objects came with 1.36, and so did
# DeviceTaintRules, which TestDevicesOnKubernetes136 has; the version of these that the other tests use came with 1.37, as did the condition of a repair.
OLDER := $(patsubst e2e/components/kubernetes-%,%,$(wildcard e2e/components/kubernetes-*))
NEWER = TheConditionOfARepair|$(if $(filter 1.34 1.35,$*),Device|InjectedContainer,Device([^s]|s[^OF]))

.PHONY: older $(OLDER:%=older-%)
older: $(OLDER:%=older-%)

$(OLDER:%=older-%): older-%:
	@KUBERNETES=$* go run ./e2e/components/build gotestsum kube-$* kwok jobset-controller helm ./e2e/components/remaining
	@export KUBERNETES=$*; $(call GOTEST,./remediator ./remediator/visits ./manifests/chart,$(TEST_FLAGS) -skip '$(NEWER)')

.PHONY: week silences upgrade nightly
week: test-components
	go test ./remediator/visits -vet=off -count=1 -timeout 60m -v -run TestAWeekOfSweeps -args -week.days 7 -week.nodes 50

silences: test-components
	go test ./e2e/outage -vet=off -count=1 -timeout 30m -v -run Silent -args -silences

upgrade: test-components
	go test ./$(HISTORY) -vet=off -count=1 -timeout 30m -v

nightly: week silences upgrade older ## what is too long for CI, or needs the whole history: a week of sweeps, silent watches, an upgrade and back, an hour of chaos, and older versions of Kubernetes
	@$(MAKE) --no-print-directory site chaos FOR=1h
	@$(MAKE) --no-print-directory test-operators KUBERNETES=1.36

build: ## build plugins, remediator, preflight, repair and kubectl plugin into bin/
	$(GO_BUILD) -o bin/ $(filter-out $(CGO),$(wildcard ./plugins/*)) ./remediator ./preflight ./repair ./kubectl-pitcrew
	CGO_ENABLED=1 $(GO_BUILD) -o bin/ $(CGO)

components: ## fetch or build the real components of `make test` and `make test-node` (once; minutes on a fresh machine)
	@go run ./e2e/components/build $(SHARED) kubelet dra-example-driver slurm-operator

lint: shellcheck ## the rules of .golangci.yml, tests of these rules, workflows, scripts, and known vulnerabilities
	@go run ./e2e/components/build golangci-lint actionlint
	$(LINTER) run $$(go list -tags operators ./... | sed 's,^[^/]*/[^/]*/[^/]*,.,' | grep -vxE '$(subst $() ,|,$(addprefix ./,$(WITH_CGO)))')
	@# With -trimpath the files that cgo has made come from the checkout that made them, and name their sources by its paths.
	CGO_ENABLED=1 GOFLAGS='$(filter-out -trimpath,$(GOFLAGS))' $(LINTER) run $(addprefix ./,$(WITH_CGO))
	cd images/build && ../../$(LINTER) run ./...
	bin/components/actionlint
	@if ! command -v shellcheck >/dev/null; then echo "shellcheck is missing: scripts are not checked"; [ -z "$${CI:-}" ]; else set -x; shellcheck $$(git grep -lE '^#!.*\b(ba)?sh$$' -- '*.sh' .ci '*/testdata/*-smi' 'kubectl-pitcrew/*complete*'); fi
	go test -vet=off -ldflags=-s -count=1 ./e2e/lint ./e2e/vuln
	@$(MAKE) --no-print-directory vuln

vuln: ## known vulnerabilities in what the programs call; a database that cannot be reached is reported and is not a failure
	@CGO_ENABLED=1 go run ./e2e/vuln ./plugins/... ./remediator ./preflight ./repair ./kubectl-pitcrew ./images/install

generate: ## the pages of conditions, Xids and policy, the policy's schema, the alerts, the chart's copies and schema, and install.yaml, from their sources
	go test ./internal/xid -run UpToDate -update
	go test ./monitors -run Page -update
	go test ./remediator/policy -run Page -update
	go test ./manifests/alerts -run Generated -update
	go test ./manifests/chart -run Generated -update

verify: ## fail if formatting, modules or generated files are not as committed, and name them
	@stale="$$(gofmt -l $$(git ls-files '*.go'))"; [ -z "$$stale" ] || { echo "not formatted, run gofmt -w:" $$stale; exit 1; }
	@for module in . images/build; do \
		$(call RETRY,diff="$$(go -C $$module mod tidy -diff)" || [ -n "$$diff" ]); \
		[ -z "$$diff" ] && go -C $$module mod verify >/dev/null || { echo "$$diff"; echo "$$module/go.mod is not tidy, or a module is not as published"; exit 1; }; done
	@go run ./e2e/components/build helm
	go test -vet=off -ldflags=-s ./internal/xid ./monitors ./remediator/policy ./manifests/alerts ./manifests/chart -run 'UpToDate|Generated'

fuzz: ## fuzz every parser, FUZZTIME each
	@git ls-files '*_test.go' | xargs grep -Ho '^func Fuzz[A-Za-z]*' | sed 's/:func / /' | while read -r file name; do \
		echo "$$name in $$(dirname $$file)"; CGO_ENABLED=1 go test "./$$(dirname $$file)" -run '^$$' -fuzz "^$$name\$$" -fuzztime $${FUZZTIME:-30s}; done

images: bin/images/debian cross ## the container images, for amd64 and arm64, into bin/images
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) go run -C images/build . -version "$(VERSION)" -revision "$$(git rev-parse HEAD)"

release: ## the files of a release, into bin/release: make release VERSION=v0.2.0
	@[[ "$(origin VERSION)" != file && "$(VERSION)" == v* ]] || { echo "name the release: make release VERSION=v0.2.0"; exit 1; }
	@$(MAKE) --no-print-directory images
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) go run ./images/release -version "$(VERSION)"

publish: push draft ## upload bin/release to a draft on GitHub and the images and the chart to ghcr.io; needs gh, skopeo and a login to both

.PHONY: push draft
push:
	@go run ./e2e/components/build helm
	cd bin/release && sha256sum --check --strict --quiet checksums.txt
	@for image in npd-plugins plugins preflight remediator; do \
		skopeo copy --all oci-archive:bin/release/$$image.tar "docker://ghcr.io/pitcrew-dev/$$image:$(VERSION)"; done
	$(HELM) push "bin/release/pitcrew-$(VERSION:v%=%).tgz" oci://ghcr.io/pitcrew-dev/charts

draft:
	gh release create "$(VERSION)" --verify-tag --draft --title "$(VERSION)" \
		--notes "What has changed: https://github.com/pitcrew-dev/pitcrew/blob/$(VERSION)/CHANGELOG.md" bin/release/*

# The site is not part of `make test`: Hugo is a large program that nothing else needs.
.PHONY: site
site: chromium ## the pages of docs/ as a site in bin/site, with search and without a server; checks its links and looks at it in a browser
	@go run ./e2e/components/build hugo
	bin/components/hugo --config site/hugo.yaml --destination bin/site --cleanDestinationDir --cacheDir "$(CURDIR)/bin/hugo-cache" --noBuildLock --panicOnWarning
	go test ./site -vet=off -count=1

.PHONY: hardware-kit
hardware-kit: ## one archive, bin/hardware-kit.tar.gz, that checks everything on a machine with GPUs in five minutes
	@go run ./e2e/hardware/pack

bench: components build ## the comparisons in bench/results
	go run ./bench/latency
	go run ./bench/xid
	go run ./bench/podlog
	go run ./bench/falsealarms
	go run ./bench/restart
	go run ./bench/deadnode
	go run ./bench/repair
	go run ./bench/slownode
	go run ./bench/progress
	go run ./bench/cost
	go run ./bench/node

clean: ## remove everything that was built
	rm -rf bin

# The plugins that load NVIDIA's libraries need a C compiler for each architecture.
.PHONY: cross
cross:
	@if [ "$$(id -u)" = 0 ] && [ "$$(uname -m)" = x86_64 ] && ! command -v aarch64-linux-gnu-gcc >/dev/null; then \
		$(APT) update && $(APT) install -y --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross >/dev/null; fi

# The tests and the demo have the kernel itself write records, by netfilter's log, which needs root and nft.
.PHONY: nft
nft:
	@if [ "$$(id -u)" = 0 ] && ! command -v nft >/dev/null && ! [ -x /usr/sbin/nft ]; then \
		if command -v apt-get >/dev/null; then echo "installs nftables with apt-get"; $(APT) update && $(APT) install -y nftables >/dev/null; \
		else echo "nft is missing: with the package nftables of your distribution the kernel itself would write the records"; fi; fi

# What the tests run of the machine's own programs, each with its package, where Debian 12 does not have it or a container of it has left it out.
# After nft, because apt-get runs once at a time.
PROGRAMS := mkfs.xfs=xfsprogs mkfs.ext4=e2fsprogs ip=iproute2 journalctl=systemd ps=procps
.PHONY: programs
programs: nft
	@missing=; for p in $(PROGRAMS); do PATH="$$PATH:/usr/sbin:/sbin" command -v "$${p%=*}" >/dev/null || missing+=" $${p#*=}"; done; \
	if [ "$$(id -u)" = 0 ] && [ -n "$$missing" ]; then echo "installs$$missing with apt-get"; \
		$(APT) update && $(APT) install -y --no-install-recommends $$missing >/dev/null; fi

# A test looks at HTML pages in a real browser: about 100 MB from Debian.
.PHONY: chromium
chromium: programs
	@if [ "$$(id -u)" = 0 ] && ! command -v chromium-headless-shell >/dev/null; then \
		$(APT) update && $(APT) install -y --no-install-recommends chromium-headless-shell fonts-liberation >/dev/null; fi

.PHONY: shellcheck
shellcheck:
	@if [ "$$(id -u)" = 0 ] && ! command -v shellcheck >/dev/null; then $(APT) update && $(APT) install -y --no-install-recommends shellcheck >/dev/null; fi

# Programs that the tests run but must not install: chrony would replace the machine's own time daemon, NVIDIA's library is in
# non-free, which the machine's own sources may leave out, and Prometheus would start services.
DEBS := chrony ntpsec libnvidia-ml1 prometheus prometheus-alertmanager containerd runc containernetworking-plugins
bin/debian: PACKAGES = $(DEBS)
bin/debian: Makefile
	@$(FETCH)
	@for deb in $@.new/*.deb; do dpkg-deb -x "$$deb" $@.new; done
	@touch $@.new && rm -rf $@ && mv $@.new $@

# The packages in the images. `make images` refuses other versions, the tests do not.
bin/images/debian: PACKAGES = $(shell awk '!/^#/ {print $$1 ($$2 == "all" ? "" : ":" $$2) "=" $$3}' images/debian.lock)
bin/images/debian: images/debian.lock
	@$(FETCH)
	@rm -rf $@ && mv $@.new $@

# Packages from the machine's own sources, for both architectures; the newest if the archive no longer has the pinned one.
define FETCH
rm -rf $@.new && mkdir -p $@.new/apt/{lists/partial,sources.list.d}; \
cp -r $(wildcard /etc/apt/sources.list /etc/apt/sources.list.d) $@.new/apt; \
find $@.new/apt -type f -exec sed -i -E '/^(Components:|deb )/s/$$/ non-free/' {} +; \
cd $@.new; apt="$(APT) -o Dir::Etc::sourcelist=$$PWD/apt/sources.list -o Dir::Etc::sourceparts=$$PWD/apt/sources.list.d \
	-o Dir::State::lists=$$PWD/apt/lists -o Dir::Cache=$$PWD/apt -o APT::Sandbox::User=root -o APT::Architectures::=arm64"; \
$$apt update; $$apt download $(PACKAGES) || $$apt download $(foreach p,$(PACKAGES),$(firstword $(subst =, ,$(p)))); rm -rf apt
endef
