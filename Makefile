# Every target makes its environment first, so any one of them is enough on a fresh clone.

.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

# Any Python that runs starts the bootstrap; that one finds or refuses the right ones itself.
ANY_PYTHON = $(shell for p in python3 python python3.13 python3.12 /usr/bin/python3 /usr/local/bin/python3 \
	/opt/homebrew/bin/python3 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/*/bin/python3 \
	"$$HOME"/.local/share/uv/python/*/bin/python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
BOOTSTRAP = python="$(ANY_PYTHON)"; \
	[ -n "$$python" ] || { echo "bootstrap: no Python 3.8 or later that runs was found" >&2; exit 1; }; \
	"$$python" tools/bootstrap.py
PYTHON := .venv/bin/python

# CI tests on both versions; elsewhere the second one is tested on if it is there.
ifeq ($(CI),true)
MAIN := --python 3.12
OTHER := --python 3.13 --env .venv-3.13
else
MAIN :=
OTHER := --python 3.13 --env .venv-3.13 --optional
endif

# The tests start Python thousands of times, so what was compiled is kept, here at any rate.
unexport PYTHONDONTWRITEBYTECODE

# Those on one worker wait most of their time (see `tests/conftest.py`), so there is one more than CPUs.
WORKERS := 3

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

.PHONY: env
env: ## make or refresh .venv, the environment for development
	@$(BOOTSTRAP) $(MAIN)

.PHONY: demo
demo: env ## watch processes take turns, one killed, its lock passing on
	@$(PYTHON) examples/demo.py

.PHONY: test
test: env env-other env-servers test-main test-other ## run all tests, on Python 3.12 and 3.13 (ARGS="-k word" for some)

# Without servers and processes, on memory and SQLite, for each time that you save.
FAST_TESTS := $(addprefix tests/,api config conformance core fencing locks runtime tasks testing torture stores)
NO_SERVER := not (redis or valkey or postgres or etcd or nats or s3 or kube or temporal or http)

.PHONY: test-fast
test-fast: env ## run the tests that need no server and start no process
	$(PYTHON) -m pytest -q -n $(WORKERS) --dist worksteal $(FAST_TESTS) $(ARGS) \
		-m "not (long or slow or serial or multiprocess or once)" -k "$(NO_SERVER)"

.PHONY: env-other
env-other: env
	@$(BOOTSTRAP) $(OTHER)

.PHONY: env-servers
env-servers: env env-other
	@$(BOOTSTRAP) $(MAIN) --servers

.PHONY: test-main
test-main: env-servers
	$(call RUN_TESTS,.venv,)

.PHONY: test-other
test-other: test-main
	@if [ -x .venv-3.13/bin/python ]; then $(MAKE) run-other; fi

# What depends on the version of Python: the public surface and the runtime. All else is tested on one.
OTHER_TESTS := $(addprefix tests/,api config conformance contrib core fencing locks runtime tasks testing typing)

.PHONY: run-other
run-other:
	$(call RUN_TESTS,.venv-3.13,$(OTHER_TESTS) -m "not once and not long")

.PHONY: check
check: env ## lint, formatting, the generated side, types, architecture
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) tools/unasync.py --check
	@$(MAKE) -j 3 check-mypy check-pyright check-layers

.PHONY: check-mypy check-pyright check-layers
check-mypy:
	$(PYTHON) -m mypy
check-pyright:
	$(PYTHON) -m pyright
check-layers:
	$(PYTHON) -m pytest -q tests/architecture

.PHONY: fix
fix: env ## generate dibs.sync, and let ruff repair and format what it can
	$(PYTHON) tools/unasync.py
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

.PHONY: bench
bench: ## measure, beside the peers, in one table
	@$(BOOTSTRAP) $(MAIN) --bench --servers
	$(PYTHON) -m benchmarks $(ARGS)

CAS_STORES := etcd kubernetes nats
THOROUGH := --hypothesis-profile=thorough --timeout=1800 tests/core tests/locks tests/stores

.PHONY: torture
torture: env env-servers ## the long runs: proofs, a million cycles, kills and pauses, churn beside redis-py, hostile tenants
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m long
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m "hypothesis and not long" $(THOROUGH)
	DIBS_WHOLE_CONFORMANCE=1 $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal tests/conformance
	$(PYTHON) -m tests.torture simulate
	$(PYTHON) -m tests.torture processes
	@for store in $(CAS_STORES); do $(PYTHON) -m tests.torture servers --store $$store || exit 1; done
	$(PYTHON) -m tests.torture servers --store s3 --cycles 10000
	$(PYTHON) -m tests.torture churn
	$(PYTHON) -m tests.server.torture.hostile $(ARGS)

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
lock: ## compile requirements/*.in again (ARGS=--upgrade for newer versions)
	@$(BOOTSTRAP) --lock $(ARGS)

.PHONY: clean
clean: ## remove environments, tools, builds and caches
	rm -rf .venv .venv-3.13 .tools build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
