# `make serve` and `make test` need nothing but Python 3.11+, make and pip: they set up the rest in .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := .uv/bin/uv
PYTEST := $(BIN)/python -m pytest
export PIP_DISABLE_PIP_VERSION_CHECK := 1
ifneq ($(PIP_INDEX_URL),)
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.PHONY: help setup serve test test-slow check check-static oracle format lock bench clean

help:
	@echo "make serve      set up what is needed and serve a model on http://127.0.0.1:8000"
	@echo "make test       the quick tests (under 10 minutes)"
	@echo "make test-slow  all tests: reference values made again, other Pythons, an emulated aarch64"
	@echo "make check      formatting, lint, types and the quick tests"
	@echo "make bench      measure speed and memory (long; stop other work first)"
	@echo "make oracle     make the reference values of the tests again (needs torch, of its own)"
	@echo "make lock       renew the locked dependencies"

$(UV): requirements/uv.txt
	@echo "rkserve: fetching the installer (uv)"
	@$(PYTHON) -c 'import sys; sys.exit("rkserve needs Python 3.11, 3.12 or 3.13; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 ...") if not (3, 11) <= sys.version_info[:2] <= (3, 13) else None'
	@$(PYTHON) -m pip install --quiet --upgrade --require-hashes --root-user-action=ignore --target .uv -r requirements/uv.txt
	@touch $(UV)

$(VENV)/.installed: $(UV) pyproject.toml requirements/all.txt
	@echo "rkserve: installing what is needed into $(VENV) (a minute or so the first time)"
	@test -x $(BIN)/python || $(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	@VIRTUAL_ENV=$(VENV) $(UV) pip sync --quiet --require-hashes --compile-bytecode requirements/all.txt
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.installed

serve: setup
	@$(BIN)/rkserve serve --demo $(ARGS)

test: setup
	$(PYTEST) -m "not slow" $(ARGS)

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

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m bench $(ARGS)

LOCK := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: $(UV)
	$(LOCK) --upgrade pyproject.toml --extra rknn -o requirements/server.txt
	$(LOCK) --upgrade pyproject.toml --extra rknn --extra convert --extra dev -c requirements/server.txt -o requirements/all.txt
	echo uv | $(LOCK) --upgrade - -o requirements/uv.txt

clean:
	rm -rf .venv .venv-* .uv .data build dist .pytest_cache .mypy_cache .ruff_cache
