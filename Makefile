# Every target carries its help text after `##`; `make` prints them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# What pip installs where no NVIDIA driver is found; the CPU build of it (+cpu) is asked for first,
# because the plain wheel brings gigabytes of CUDA libraries.
TORCH ?= torch==2.13.0
# More words for every pip call, an index of your own for instance.
PIP_ARGS ?=
# More words for pytest, such as `make test PYTEST_ARGS="-k lr -x"`.
PYTEST_ARGS ?=
# Processes that `make test` shares the test files out to.
WORKERS ?= 2
# For `make replay`: the commit to compare with, and more words, such as REPLAY_ARGS=--large.
BASE ?=
REPLAY_ARGS ?=
# No target pays for an import of the GPU toolkit where there is none, and two cores stay two.
export OMP_NUM_THREADS ?= 1
# Each process that a test starts finds our modules compiled.
export PYTHONDONTWRITEBYTECODE =

BIN := .venv/bin
STAMP := .venv/.dev-stamp
LINKS := build/dev/meshwright
ROOMS := ir planner codegen runtime models proof api commands
LINKED := $(wildcard $(ROOMS) cli.py __init__.py py.typed)

.PHONY: help dev links check test long golden replay docs release-check demo clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 15

dev: $(STAMP) links ## create .venv, install torch and meshwright with its test tools; fast when done

# The stamp follows pyproject.toml: a changed dependency installs again, a changed source does not.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = "%d.%d" % sys.version_info[:2]; sys.exit(sys.version_info < (3, 11) \
	  and f"meshwright needs Python 3.11 or later, $(PYTHON) is {v}; try make dev PYTHON=python3.12")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) torch
	@echo "meshwright: installing it with its test tools"
	$(BIN)/python -m pip install -q $(PIP_ARGS) -e ".[test,dev]"
	@touch $@

.PHONY: torch
torch:
	@if command -v nvidia-smi >/dev/null; then \
	  echo "torch: NVIDIA driver found, the build with CUDA comes with meshwright"; \
	elif echo "torch: installing $(TORCH)+cpu, about 200 MB"; $(BIN)/python -m pip install -q $(PIP_ARGS) "$(TORCH)+cpu" 2>/dev/null; then \
	  echo "torch: $(TORCH)+cpu"; \
	else \
	  echo "torch: no $(TORCH)+cpu on the configured indexes, installing $(TORCH)"; \
	  $(BIN)/python -m pip install -q $(PIP_ARGS) "$(TORCH)"; \
	fi

# For mypy and pyright only: they cannot follow the package map of pyproject.toml.
links:
	@mkdir -p $(LINKS)
	@for name in $(LINKED); do ln -sfn "$(CURDIR)/$$name" "$(LINKS)/$$name"; done

check: dev ## format, lint, types and house rules; under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p meshwright
	$(BIN)/pytest -q tests/house

test: dev ## run the test suite without the tests marked long or gpu
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

long: dev ## run the tests marked long
	$(BIN)/pytest -m "long and not gpu" $(PYTEST_ARGS)

golden: dev ## write the golden programs anew; read the diff before committing it
	$(BIN)/pytest tests/golden --update-golden

replay: dev ## plan 12 problems at BASE=commit and here, compare; all 16 with REPLAY_ARGS=--large
	@$(BIN)/python benchmarks/replay.py $(if $(BASE),--base "$(BASE)") $(REPLAY_ARGS)

.PHONY: slurm
slurm: ## install Debian's Slurm where it is missing (as root), start four nodes of it here
	@command -v slurmctld >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends slurm-wlm munge; }
	$(PYTHON) tools/slurm_here.py start

docs: dev ## build the documentation's pages into build/site; a broken link or anchor fails
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install -q $(PIP_ARGS) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

release-check: dev ## build wheel and sdist into build/dist, use the wheel outside of the checkout
	@$(BIN)/python -c 'import build.__main__' 2>/dev/null || $(BIN)/python -m pip install -q $(PIP_ARGS) -e ".[release]"
	$(BIN)/python tools/release_check.py --torch "$(TORCH)"

demo: dev ## plan, write and train a small Llama on two CPU ranks
	$(BIN)/python -m meshwright.cli train examples/demo.toml --out runs/demo

clean: ## remove what make, the checkers and the demo wrote, .venv included
	rm -rf build .venv runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
