# make setup | demo | test | test-all | storm | faults | fuzz | memory-use | lint | numbers | docs | bench | clean
#
# Everything runs in the project's own virtual environment, with pinned versions.
# PYTHON selects the interpreter; by default, the newest supported version that works.

SHELL := /bin/bash
CANDIDATES := python3.13 python3.12 python3.11 python3
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 \
	&& echo $$p && break; done)
NEEDS_PYTHON = test -n "$(PYTHON)" || { echo "norewind needs Python 3.11, 3.12 or 3.13 with venv, and none was found. \
	Install one, or pass its path: make PYTHON=/path/to/python."; exit 1; }
BIN := .venv/bin
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt --build-constraint constraints.txt
JOBS ?= 2

.PHONY: setup demo test test-all storm faults fuzz memory-use lint numbers docs bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(NEEDS_PYTHON)
	@echo "setting up .venv with $$($(PYTHON) --version) (once; a few minutes on a slow network)"
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/pip install $(PIP_FLAGS) -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

# All tests, with the coverage of the package.
test-all: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m 'slow or not slow' --cov=norewind

# Too long for the tests: an hour of kills, half an hour of faults, ten minutes of random input, 3·10⁸ bytes of stream
# (docs/reliability.md).
storm: setup
	$(BIN)/python -m tools.storm $(STORM)

faults: setup
	$(BIN)/python -m tools.faults --out results/faults $(FAULTS)

fuzz: setup
	$(BIN)/python -m tools.fuzz $(FUZZ)

memory-use: setup
	$(BIN)/python -m tools.memory $(MEMORY)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

# Update the numbers in the pages from their records. `make test` fails if they disagree.
numbers: setup
	$(BIN)/python -m tools.stamp

# The site, in docs/_build/html. Needs no network once its packages are installed.
docs: .venv/docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

.venv/docs: .venv/ready
	$(BIN)/pip install $(PIP_FLAGS) -e '.[docs]'
	@touch $@

# In a separate environment, since PyTorch and braintrace are only needed for comparison.
# SECTIONS="step lstm" measures only these sections.
bench: .venv-bench/ready
	.venv-bench/bin/python -m benchmarks $(SECTIONS)
	.venv-bench/bin/python -m tools.stamp

.venv-bench/ready: pyproject.toml constraints.txt benchmarks/constraints.txt
	@$(NEEDS_PYTHON)
	@echo "setting up .venv-bench with $$($(PYTHON) --version) (once; PyTorch is large)"
	$(PYTHON) -m venv --clear .venv-bench
	.venv-bench/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	.venv-bench/bin/pip install $(PIP_FLAGS) -c benchmarks/constraints.txt -e '.[bench]'
	@touch $@

clean:
	rm -rf .venv .venv-bench docs/_build docs/api docs/project
