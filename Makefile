# make setup | demo | test | test-all | lint | bench | clean
#
# Everything runs in a virtual environment of the project's own, with pinned versions.
# PYTHON chooses the interpreter; by default the newest supported one that really runs.

SHELL := /bin/bash
CANDIDATES := python3.13 python3.12 python3.11 python3
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 \
	&& echo $$p && break; done)
BIN := .venv/bin
JOBS ?= 2

.PHONY: setup demo test test-all lint bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "norewind needs Python 3.11, 3.12 or 3.13 with venv; none was found. Install one, or say make PYTHON=/path/to/python setup."; exit 1; }
	@echo "setting up .venv with $$($(PYTHON) --version) (once; a few minutes on a slow network)"
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --build-constraint constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

test-all: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m 'slow or not slow'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# In an environment of its own: PyTorch and braintrace are only needed to be compared with.
# SECTIONS="step lstm" measures only these again.
bench: .venv-bench/ready
	.venv-bench/bin/python -m benchmarks $(SECTIONS)

.venv-bench/ready: pyproject.toml constraints.txt benchmarks/constraints.txt
	@test -n "$(PYTHON)" || { echo "norewind needs Python 3.11, 3.12 or 3.13 with venv; none was found. Install one, or say make PYTHON=/path/to/python bench."; exit 1; }
	@echo "setting up .venv-bench with $$($(PYTHON) --version) (once; PyTorch is large)"
	$(PYTHON) -m venv --clear .venv-bench
	.venv-bench/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	.venv-bench/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -c benchmarks/constraints.txt --build-constraint constraints.txt -e '.[bench]'
	@touch $@

clean:
	rm -rf .venv .venv-bench
