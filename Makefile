# Needs make, bash and Python >= 3.11; installs the rest below this folder (.tools, .venv).
# ARGS go to the command of the target: make test ARGS="-k planner", make demo ARGS="--seconds 10".
# make faults ROW=3 runs one row of the fault matrix, ARGS=--full its full counts.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test check bench faults soak guarantees clean

PYTHON ?= python3
ARGS ?=
ROW ?=
MINUTES ?= 60

UV := .tools/bin/uv
BIN := .venv/bin
READY := .venv/.ready
TOOLS_READY := .venv/.tools-ready
BENCH_READY := .venv/.bench-ready
MONGOD_READY := .venv/.mongod-ready
PROMETHEUS_READY := .tools/.prometheus-ready

export UV_PYTHON_DOWNLOADS := never
# Installers name addresses when they fail; logs are shared, and where a machine gets its packages is its own affair.
HIDE_ADDRESSES := 2>&1 | sed -E 's,[a-z]+://[^[:space:]]+,[address],g'

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(MONGOD_READY) ## an example shop on a MongoDB of its own: watch tasks flow
	@$(BIN)/oplogue demo $(ARGS)

test: $(TOOLS_READY) $(MONGOD_READY) $(PROMETHEUS_READY) ## all tests but the fault matrix
	@$(BIN)/pytest --ignore=tests/faults $(ARGS)

# --verifytypes looks for the package where the first python on PATH does, whatever pyproject.toml says.
check: $(TOOLS_READY) ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright --verifytypes oplogue --ignoreexternal

bench: $(BENCH_READY) $(MONGOD_READY) ## measure; prints figures; make bench ONLY=P3 for one of them
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(ARGS)

faults: $(TOOLS_READY) $(MONGOD_READY) ## the fault matrix: killed and frozen processes, lost connections
	@if [ ! -d tests/faults ]; then echo "make faults: there is no folder tests/faults/ yet" >&2; exit 2; fi
	@$(BIN)/pytest tests/faults --row=$(ROW) $(ARGS)

soak: $(TOOLS_READY) $(MONGOD_READY) ## mixed faults for an hour; make soak MINUTES=5 for less
	@$(BIN)/pytest tests/faults --minutes=$(MINUTES) $(ARGS)

guarantees: $(TOOLS_READY) ## put the figures of the last full run of the fault matrix into docs/
	@$(BIN)/python -m tests.faults.publish

clean: ## remove everything that this file installed, and caches
	@rm -rf .venv .tools .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV):
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) was not found: install Python 3.11 or later, or make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version) is too old: Python 3.11 or later is needed; make PYTHON=/path/to/python" >&2; exit 2; }
	@echo "Installing uv into .tools"
	@rm -rf .tools
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  $(PYTHON) -m venv .tools; \
	  .tools/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt uv $(HIDE_ADDRESSES); \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -m pip install -q --disable-pip-version-check -c constraints.txt --target .tools uv $(HIDE_ADDRESSES); \
	else \
	  echo "$(PYTHON) has neither ensurepip nor pip; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; \
	fi

$(READY): pyproject.toml constraints.txt | $(UV)
	@echo "Installing oplogue into .venv"
	@[ -x $(BIN)/python ] || $(UV) venv -q --python "$$(command -v $(PYTHON))" .venv $(HIDE_ADDRESSES)
	@$(UV) pip install -q --python $(BIN)/python -c constraints.txt -e '.[all]' $(HIDE_ADDRESSES)
	@touch $@

$(TOOLS_READY): $(READY)
	@echo "Installing the development tools into .venv"
	@$(UV) pip install -q --python $(BIN)/python -c constraints.txt --group dev $(HIDE_ADDRESSES)
	@touch $@

$(BENCH_READY): $(TOOLS_READY)
	@echo "Installing what draws the benchmarks' charts into .venv"
	@$(UV) pip install -q --python $(BIN)/python -c constraints.txt --group bench $(HIDE_ADDRESSES)
	@touch $@

# The wheel's mongod needs two shared libraries that a small Debian image does not have.
FIND_MONGOD := $(BIN)/python -c 'from oplogue.embedded import find_mongod; find_mongod()'
$(MONGOD_READY): $(READY)
	@if ! problem=$$($(FIND_MONGOD) 2>&1); then \
	  if [[ "$$problem" == *"apt-get install"* ]] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing libcurl4 and libssl3, which mongod needs"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	      apt-get install -qq -y --no-install-recommends libcurl4 libssl3 >/dev/null; } $(HIDE_ADDRESSES); \
	    $(FIND_MONGOD) 2>&1 | tail -n 4 >&2; \
	  else \
	    tail -n 4 <<< "$$problem" >&2; exit 2; \
	  fi; \
	fi
	@touch $@

# A Prometheus that scrapes workers in tests: Debian's package, unpacked and not installed. Without it they are skipped.
GET_PROMETHEUS = cd .tools && { timeout 60 apt-get download prometheus || \
	{ [ "$$(id -u)" = 0 ] && timeout 60 apt-get update && timeout 60 apt-get download prometheus; }; } && \
	dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/prometheus && rm prometheus_*.deb
$(PROMETHEUS_READY): | $(UV)
	@if ! command -v prometheus >/dev/null && ! command -v apt-get >/dev/null; then \
	  echo "There is no prometheus on PATH: tests that are scraped by one are skipped"; \
	elif ! command -v prometheus >/dev/null; then \
	  echo "Unpacking Prometheus into .tools"; \
	  ( $(GET_PROMETHEUS) ) >/dev/null 2>&1 || echo "It could not be had: tests that are scraped by one are skipped"; \
	fi
	@touch $@
