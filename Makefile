# make setup | demo | test | test-all | storm | fuzz | memory-use | lint | numbers | docs | bench | clean
#
# Everything runs in a virtual environment of the project's own, with pinned versions.
# PYTHON chooses the interpreter; by default the newest supported one that really runs.

SHELL := /bin/bash
CANDIDATES := python3.13 python3.12 python3.11 python3
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 \
	&& echo $$p && break; done)
BIN := .venv/bin
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt --build-constraint constraints.txt
JOBS ?= 2

.PHONY: setup demo test test-all storm fuzz memory-use lint numbers docs bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "norewind needs Python 3.11, 3.12 or 3.13 with venv; none was found. Install one, or say make PYTHON=/path/to/python setup."; exit 1; }
	@echo "setting up .venv with $$($(PYTHON) --version) (once; a few minutes on a slow network)"
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/pip install $(PIP_FLAGS) -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

# Everything, and how much of the package it runs through.
test-all: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m 'slow or not slow' --cov=norewind

# Not part of the tests: an hour of kills, ten minutes of random input, 3·10⁸ bytes of stream (docs/reliability.md).
storm: setup
	$(BIN)/python -m tools.storm $(STORM)

fuzz: setup
	$(BIN)/python -m tools.fuzz $(FUZZ)

memory-use: setup
	$(BIN)/python -m tools.memory $(MEMORY)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

# Write the numbers that the pages quote again from their records. `make test` fails where they disagree.
numbers: setup
	$(BIN)/python -m tools.stamp

# The site, in docs/_build/html. Needs no network once its packages are there.
docs: .venv/docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

.venv/docs: .venv/ready
	$(BIN)/pip install $(PIP_FLAGS) -e '.[docs]'
	@touch $@

# In an environment of its own: PyTorch and braintrace are only needed to be compared with.
# SECTIONS="step lstm" measures only these again.
bench: .venv-bench/ready
	.venv-bench/bin/python -m benchmarks $(SECTIONS)
	.venv-bench/bin/python -m tools.stamp

.venv-bench/ready: pyproject.toml constraints.txt benchmarks/constraints.txt
	@test -n "$(PYTHON)" || { echo "norewind needs Python 3.11, 3.12 or 3.13 with venv; none was found. Install one, or say make PYTHON=/path/to/python bench."; exit 1; }
	@echo "setting up .venv-bench with $$($(PYTHON) --version) (once; PyTorch is large)"
	$(PYTHON) -m venv --clear .venv-bench
	.venv-bench/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	.venv-bench/bin/pip install $(PIP_FLAGS) -c benchmarks/constraints.txt -e '.[bench]'
	@touch $@

clean:
	rm -rf .venv .venv-bench docs/_build docs/api docs/project
