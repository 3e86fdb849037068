# `make serve` and `make test` need nothing but Python 3.11+, make and pip; tools/environment.py does the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := .uv/bin/uv
# A process a core; a file's tests stay together, since they share its servers.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BOARD = /opt/rkserve/$(VERSION)

.PHONY: help setup serve test test-smoke test-slow check check-static oracle format lock bench soak clean wheels install

help:
	@echo "make serve      set up what is needed and serve a model on http://127.0.0.1:8000"
	@echo "make test       the quick tests (about 10 minutes)"
	@echo "make test-slow  all tests: reference values made again, other Pythons, an emulated aarch64, Open WebUI"
	@echo "make check      formatting, lint, types and the quick tests"
	@echo "make bench      measure speed and memory (long; stop other work first)"
	@echo "make soak       200 clients for 10 minutes, while workers are killed and the log's disk is full"
	@echo "make oracle     make the reference values of the tests again (needs torch, of its own)"
	@echo "make lock       renew the locked dependencies"
	@echo "make wheels     build what a board installs into dist"
	@echo "make install    on a board, as root: install the service (docs/service.md)"
	@echo "make setup      set up what is needed, or mend it, and nothing more (PYTHON=python3.12: for that one)"
	@echo "make clean      remove what the others made here; models and keys stay, see docs/files.md"

# A Python that was named makes the environment anew where another one made it; python3 takes it as it is.
setup:
	@$(PYTHON) tools/environment.py $(if $(filter-out file,$(origin PYTHON)),--this-python) $(VENV)

serve: setup
	@$(BIN)/rkserve serve --demo $(ARGS)

test: setup
	$(PYTEST) -m "not slow" $(ARGS)

test-smoke: setup
	$(PYTEST) -m smoke $(ARGS)

test-slow: setup
	$(PYTEST) $(ARGS)

check: check-static test

check-static: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

oracle:
	$(PYTHON) -m tests.oracle.environment
	.venv-oracle/bin/python -m tests.oracle.make
	.venv-oracle/bin/python -m tests.oracle.make_architectures
	.venv-oracle/bin/python -m tests.oracle.make_pre_tokenizers
	.venv-oracle/bin/python -m tests.oracle.check_gguf

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m bench $(ARGS)

soak: setup
	$(BIN)/python -m bench.soak $(ARGS)

LOCK := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: setup
	$(LOCK) --upgrade pyproject.toml --extra rknn -o requirements/server.txt
	$(LOCK) --upgrade pyproject.toml --extra rknn --extra convert --extra dev -c requirements/server.txt -o requirements/all.txt
	echo uv | $(LOCK) --upgrade - -o requirements/uv.txt
	echo hatchling | $(LOCK) --upgrade - -c requirements/all.txt -o requirements/build.txt

wheels: setup
	$(BIN)/python -m hatchling build -t wheel -d dist
	cp requirements/server.txt dist/requirements.txt
	$(BIN)/python tools/kernels.py --out dist

# An environment of its own, without anything of the tests; what docs/service.md does with the wheel.
install:
	$(PYTHON) -m venv $(BOARD)
	$(BOARD)/bin/pip install --quiet --require-hashes -r requirements/server.txt
	$(BOARD)/bin/pip install --quiet --no-deps --force-reinstall .
	$(BOARD)/bin/rkserve service install $(ARGS)

clean:
	rm -rf .venv .venv-* .uv .data build dist *.egg-info tests/sdk/node/node_modules tests/webui/node/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
