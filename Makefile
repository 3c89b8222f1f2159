# Every target sets up what it needs: Python packages in $(VENV), Node.js packages of the example.
# The machine needs Python 3.11 or newer, make, Node.js 20 or newer and a C++ compiler.

VENV ?= .venv
PYTHONS ?= python3 python3.13 python3.12 python3.11
# Processes that share the tests, a thread each: OpenMP's threads wait for each other by spinning, which
# is very slow where others need the cores.
TEST_PROCESSES ?= 2
# `python -m benchmarks` lists them.
BENCH ?= cpu_stack scheduler_load live_policies

BIN := $(abspath $(VENV))/bin
# Named after what was installed, and for which folder, so that a stale environment is refreshed.
STAMP := $(VENV)/.installed-$(shell (echo "$(CURDIR)"; cat pyproject.toml constraints.txt) | cksum | cut -d ' ' -f 1)
NODE := examples/node
NODE_STAMP := $(NODE)/node_modules/.package-lock.json

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo example test lint proto proto-check bench chaos soak systemd fuzz wheel audit clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /  \1	/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP) $(NODE_STAMP) ## Install everything for development.

demo: $(STAMP) ## Serve two models with one worker and print what they write.
	$(BIN)/python examples/demo.py

example: $(STAMP) ## Run examples/python_api.py, with the demo model in place of its own.
	$(BIN)/python examples/with_demo_model.py

# The model is fetched first, so that no test waits for the network.
test: setup ## Run all tests.
	$(BIN)/python -m aegaeon.demo_model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

lint: setup ## Check style, types and the contract.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

proto: setup ## Generate the stubs from proto/.
	rm -rf aegaeon/v1/*_pb2* $(NODE)/gen
	PATH="$(BIN):$$PATH" buf generate

proto-check: setup ## Fail when the stubs are out of date.
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	PATH="$(BIN):$$PATH" buf generate --output "$$out" && \
	diff --recursive --brief --exclude=__init__.py --exclude=__pycache__ aegaeon/v1 "$$out/aegaeon/v1" && \
	diff --recursive --brief $(NODE)/gen "$$out/$(NODE)/gen" || \
	{ echo 'The stubs are out of date: run `make proto` and commit what it writes.' >&2; exit 1; }

bench: $(STAMP) ## Measure stack and scheduler on this machine's CPU, with transformers beside it.
	$(BIN)/python -m benchmarks $(BENCH)

chaos: $(STAMP) ## Kill, stop, cut and fill while tokens are compared: ROUNDS=200, SEED=, FIRST=0.
	$(BIN)/python -m tests.chaos --rounds $(or $(ROUNDS),200) --first $(or $(FIRST),0) $(if $(SEED),--seed $(SEED))

systemd: $(STAMP) ## The units under a real systemd, as root; says why where it cannot boot.
	$(BIN)/python -m tests.systemd.booted

soak: $(STAMP) ## Serve twice what fits and watch the memory: MINUTES=10.
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),10)

fuzz: $(STAMP) ## New examples for every property, then nonsense: MINUTES=5 for each kind, FUZZ_SEED=.
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=explore -o timeout=0
	FUZZ_SECONDS=$$(( $(or $(MINUTES),5) * 60 )) FUZZ_SEED=$(or $(FUZZ_SEED),$$(date +%s)) $(BIN)/python -m pytest tests/fuzz -s -o timeout=0

wheel: $(STAMP) ## Build the wheel into dist/.
	rm -rf build dist
	$(BIN)/python -m build --wheel

audit: $(STAMP) ## Ask the registry for advisories about the pinned dependencies, where it has any.
	$(BIN)/python tools/audit.py constraints.txt

clean: ## Remove everything that the other targets made in this folder.
	rm -rf .venv build dist *.egg-info $(NODE)/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find aegaeon scheduler worker tests benchmarks examples tools -name __pycache__ -prune -exec rm -rf {} +

# torch comes alone and pinned: a looser requirement would let pip prefer a build of several
# gigabytes for another device.
$(STAMP):
	@for python in $(PYTHONS); do \
	  if $$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv $(VENV)"; exec $$python -m venv $(VENV); \
	  fi; \
	done; \
	echo 'No Python 3.11 or newer with the venv module found among: $(PYTHONS)' >&2; exit 1
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	rm -f $(VENV)/.installed-*
	touch $@

$(NODE_STAMP): $(NODE)/package.json $(NODE)/package-lock.json
	cd $(NODE) && npm ci
	touch $@
