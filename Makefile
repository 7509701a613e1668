# `make demo` and `make test` need make, Python 3.11 or newer and the package registries; they set up the rest.
# ARGS goes to the command: make demo ARGS='--seconds 60 --json', make test ARGS='tests/unit -k tag'.

# Modules are compiled once, and not at each of the hundreds of starts of a process that the tests and the demo make.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# What setup installs, by content: after a change of branch that leaves these files alike, nothing is installed again.
LOCKS := requirements-build.lock requirements.lock stack/jars.lock stack/jdk.lock pyproject.toml setup.py \
	cdc/event_format/_kernel.pyx sinks/_kernel.pyx
READY := $(VENV)/.ready-$(shell cat $(LOCKS) | cksum | tr ' ' -)
DEV_READY := $(VENV)/.dev-ready-$(shell cat requirements-dev.lock | cksum | tr ' ' -)

.DEFAULT_GOAL := help
.PHONY: help demo check test soak conformance bench lint setup setup-dev wheel sbom clean

help:
	@echo "make demo    start everything on this machine, with a sample shop and live traffic"
	@echo "make check   check format, lint and types, then run the tests that need no servers: two minutes"
	@echo "make test    check format, lint and types, then show each promise on real servers"
	@echo "make soak    run the tests that take too long for every change: hours"
	@echo "make bench   measure, and write bench/results"
	@echo "make conformance  run the conformance suite on PostgreSQL 14 to 18, and write docs/conformance.md"
	@echo "make lint    check format, lint and types"
	@echo "make setup   install what the pipeline and the demo need, and nothing else"
	@echo "make setup-dev  that, and what tests and checks need"
	@echo "make wheel   build dist/*.whl, with compiled code where a C compiler is; LOCKSTEP_KERNEL=require insists on it"
	@echo "make sbom    list the locked packages and jars as CycloneDX JSON"
	@echo "make clean   stop the local servers and delete the environment and their data"

demo: setup
	@$(BIN)/lockstep demo $(ARGS)

# For the loop of a working day.
check: lint
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "unit and not soak" tests/unit tests/property tests/docs tests/extensions tests/test_*.py $(ARGS)

# tests/__main__.py says what runs alone and what beside each other.
test: lint
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m tests
else
	@$(BIN)/python -m pytest $(ARGS)
endif

# ARGS='-- -k compaction' for a part of it.
soak: setup-dev
	@$(BIN)/python -m tests --soak $(ARGS)

# ARGS='--major 17 --case PG-010' for a part of it; the table is written only after the whole.
conformance: setup-dev
	@$(BIN)/python -m tests.conformance --write $(ARGS)

bench: setup-dev
	@$(BIN)/python -m bench $(ARGS)

lint: setup-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

setup: $(READY)

setup-dev: $(DEV_READY)

# All of it goes to standard error: the output of `make demo ARGS=--json` is one JSON document.
$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: Lockstep needs Python 3.11 or newer, and $(PYTHON) isn't; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@rm -f $(VENV)/.ready-*
	@$(PYTHON) -m stack.environment --directory $(VENV) >&2
	@touch $@

$(DEV_READY): | $(READY)
	@rm -f $(VENV)/.dev-ready-*
	@$(BIN)/python -m stack.environment --directory $(VENV) --dev >&2
	@touch $@

wheel: setup
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

sbom: setup
	@$(BIN)/python -m stack.sbom

# A pipeline's own checkpoints and stored values, below .lockstep as well, stay.
clean:
	@for stack in .lockstep/stack .lockstep/demo/stack; do \
		if [ -e $$stack/stack.json ]; then \
			[ -x $(BIN)/python ] || { echo "error: $$stack may have servers that run, and without $(VENV) nothing here can" \
				"stop them: run make setup first" >&2; exit 1; }; \
			$(BIN)/python -m stack remove --directory $$stack || exit 1; fi; done
	rm -rf $(VENV) .lockstep/stack .lockstep/demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache cdc/event_format/_kernel.*.so sinks/_kernel.*.so
