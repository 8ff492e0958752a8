# Every target makes what it needs first, so any one of them is enough on a fresh clone.

.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

# uv makes the environments. It finds Python on the PATH, to which pyenv adds only what is switched on.
SPACE := $() $()
PYENV := $(patsubst %,:%,$(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[2-9]*/bin))
export PATH := $(PATH)$(subst $(SPACE),,$(PYENV))
export UV := $(or $(shell command -v uv),.tools/uv/bin/uv)
PYTHON := .venv/bin/python
OTHERS := 3.13

# The tests start Python thousands of times, so what was compiled is kept, here at any rate.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for servers and processes half of their time, so there are two more workers than CPUs.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

define RUN_TESTS
	@echo "== tests on $$($(1)/bin/python -V)"
	@rm -f .pytest_cache/v/cache/lastfailed; status=0; \
	$(1)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(2) $(ARGS) || status=$$?; \
	if [ $$status -eq 1 ]; then \
		echo "== FAILED: each of these is a bug, here or in its test; again, with the machine to themselves"; \
		status=0; $(1)/bin/python -m pytest --last-failed --last-failed-no-failures none $(2) || status=$$?; \
	fi; \
	exit $$status
endef

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: env env-servers
env: .venv/made ## make or refresh .venv, the environment for development
env-servers: .venv/made ## fetch the servers that the tests run, as far as they are missing
	@$(PYTHON) tools/servers.py

define MAKE_ENV
	$(UV) venv --quiet --clear --python $(2) $(1)
	$(UV) pip sync --quiet --python $(1) --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --python $(1) --no-deps --no-build-isolation --editable .
	@touch $@
endef

.venv/made: requirements/dev.txt pyproject.toml | $(UV)
	$(call MAKE_ENV,.venv,3.12)

.PRECIOUS: .venv-%/made
.venv-%/made: requirements/dev.txt pyproject.toml | $(UV)
	$(call MAKE_ENV,.venv-$*,$*)

# Airflow has some 130 packages of versions of its own, so it gets its own environment.
.tools/airflow/made: requirements/airflow.txt | $(UV)
	$(UV) venv --quiet --clear --python 3.12 .tools/airflow
	$(UV) pip sync --quiet --python .tools/airflow --require-hashes $<
	@touch $@

# Without a uv on the PATH, pip fetches the pinned one.
.tools/uv/bin/uv: requirements/uv.txt
	@for python in python3 python /usr/bin/python3; do $$python -m pip --version >/dev/null 2>&1 && break; done; \
	$$python -m pip install --quiet --upgrade --target .tools/uv --require-hashes --no-deps --requirement $< && touch $@ || \
	{ echo "install uv, or a Python with pip (on Debian: apt-get install python3-pip)" >&2; exit 1; }

.PHONY: demo
demo: env ## watch workers take turns, some killed, their locks passing on (ARGS="--for 1m" for less)
	@$(PYTHON) -m dibs demo $(ARGS)

# Without servers and processes, on memory and SQLite, for each time that you save.
FAST_TESTS := $(addprefix tests/,api config conformance core fencing locks runtime tasks testing torture stores)
NO_SERVER := not (redis or valkey or postgres or etcd or nats or s3 or kube or temporal or http)

.PHONY: test-fast
test-fast: env ## run the tests that need no server and start no process
	$(PYTHON) -m pytest -q -n $(WORKERS) --dist worksteal $(FAST_TESTS) $(ARGS) \
		-m "not (long or slow or serial or multiprocess or once)" -k "$(NO_SERVER)"

.PHONY: test test-main
test: test-main $(OTHERS:%=test-%) ## run all tests on Python 3.12, and some on OTHERS (ARGS="-k word" for some)
test-main: env-servers
	$(call RUN_TESTS,.venv,)

# What depends on the version of Python: the public surface and the runtime. All else is tested on one.
OTHER_TESTS := $(addprefix tests/,api config conformance contrib core fencing locks runtime tasks testing)

test-3.%: .venv-3.%/made env-servers
	$(call RUN_TESTS,.venv-3.$*,$(OTHER_TESTS) -m "not once and not long")

.PHONY: test-rust
test-rust: env env-servers check-rust ## lint, build and test the Rust SDK, where cargo is (some minutes at first; part of make torture)
	$(PYTHON) -m pytest -q tests/sdk -m "long or not long"

.PHONY: check
check: env ## lint, formatting, the generated side, types, architecture, prose, documentation
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) tools/unasync.py --check
	@$(MAKE) -j 3 check-mypy check-pyright check-complete check-layers check-prose docs

.PHONY: check-mypy check-pyright check-complete check-layers check-prose check-rust
check-mypy:
	$(PYTHON) -m mypy
check-pyright:
	$(PYTHON) -m pyright
check-complete: # of the symbols that users can see, 99 % at least have a type that every checker infers alike
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PYTHON) -m pyright --verifytypes dibs --ignoreexternal | \
		awk '/completeness score/ { print; good = $$4 + 0 >= 99 } END { exit !good }'
check-layers:
	$(PYTHON) -m pytest -q tests/architecture
check-rust: # the Rust SDK, where cargo is; with CI=true it must be
	@cd sdk/rust; PATH="$$PATH:$$HOME/.cargo/bin"; \
	if ! command -v cargo >/dev/null; then \
		echo "check-rust: there is no cargo, so the Rust SDK is not checked"; test -z "$$CI"; exit; \
	fi; \
	cargo fmt --check && \
	cargo clippy --quiet --all-targets --all-features -- -D warnings && \
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --all-features
check-prose: # short sentences, and words to avoid
	$(PYTHON) tools/prose.py

.PHONY: fix
fix: env ## generate dibs.sync, and let ruff repair and format what it can
	$(PYTHON) tools/unasync.py
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

# A warning is an error: a link that leads nowhere, or a page that the navigation lacks.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs

.PHONY: docs docs-serve
docs: env ## build the documentation site, for any web server or none: build/site/index.html
	$(MKDOCS) build --strict --quiet
docs-serve: env ## serve the site here, and build it again after each change (ARGS="-a 127.0.0.1:8001")
	$(MKDOCS) serve $(ARGS)

.PHONY: bench
bench: env-servers .venv/bench .tools/go-locks ## measure, beside the peers, in one table
	$(PYTHON) -m benchmarks $(ARGS)

CAS_STORES := etcd kubernetes nats
THOROUGH := --hypothesis-profile=thorough --timeout=1800 tests/core tests/locks tests/stores

# Peers in Go; without Go, their rows say so.
.tools/go-locks: benchmarks/go/main.go benchmarks/go/go.sum
	@command -v go >/dev/null || exit 0; cd benchmarks/go && go build -o $(CURDIR)/$@ .

.venv/bench: .venv/made requirements/bench.txt
	$(UV) pip install --quiet --python .venv --require-hashes --requirement requirements/bench.txt
	@touch $@

.PHONY: torture
torture: env env-servers .tools/airflow/made ## the long runs: proofs, a million cycles, kills and pauses, churn beside redis-py, hostile tenants
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m long
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m "hypothesis and not long" $(THOROUGH)
	DIBS_WHOLE_CONFORMANCE=1 $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal tests/conformance
	$(PYTHON) -m tests.torture simulate
	$(PYTHON) -m tests.torture processes --cycles 20000
	@for store in $(CAS_STORES); do $(PYTHON) -m tests.torture processes --store $$store || exit 1; done
	$(PYTHON) -m tests.torture processes --store s3 --cycles 10000
	$(PYTHON) -m benchmarks.churn
	$(PYTHON) -m tests.server.torture.hostile $(ARGS)
	@for store in sqlite redis; do $(PYTHON) -m tests.sdk.torture --store $$store --cycles 20000 || exit 1; done

MODES := slot fair

.PHONY: torture-temporal
torture-temporal: env env-servers ## likewise for Temporal, in each of its modes (MODES=fair ARGS="--cycles 200" for less)
	@for mode in $(MODES); do \
	$(PYTHON) -m tests.temporal.torture --mode $$mode $(ARGS) || exit 1; done

STORES := redis postgres

.PHONY: torture-service
torture-service: env env-servers ## likewise for two servers of the lock service, over each of two stores (STORES=redis for one)
	@for store in $(STORES); do \
	$(PYTHON) -m tests.server.torture --store $$store --cycles 100000 $(ARGS) || exit 1; done

.PHONY: lock
lock: $(UV) ## compile requirements/*.in again (ARGS=--upgrade for newer versions)
	@for name in uv dev bench servers airflow; do $(UV) pip compile --quiet requirements/$$name.in -o requirements/$$name.txt \
	--universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" $$([ $$name = servers ] && echo --no-deps) $(ARGS) || exit 1; done

.PHONY: clean
clean: ## remove environments, tools, builds and caches
	rm -rf sdk/rust/target .venv .venv-* .tools build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
