# Every job of the project; a virtual environment is made when there is none.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
# One pip line: the five distributions depend on each other, so they are resolved together.
DISTS   = -e core -e . -e plugins/langchain-mdiff -e plugins/llama-index-readers-mdiff -e plugins/docling-mdiff
STAMP   = $(VENV)/.installed
PROJECTS = pyproject.toml core/pyproject.toml $(wildcard plugins/*/pyproject.toml)

LOWEST  = build/lowest

.PHONY: help setup check fix test test-lowest test-install test-all bench gpu-check demo clean

help:
	@echo "make setup   create $(VENV) and install the workspace"
	@echo "make demo    read a scanned page with the embedded checkpoint"
	@echo "make test    the test suite; make test-all adds the slow tests"
	@echo "make test-lowest   docling's tests on the lowest docling that is supported"
	@echo "make test-install  each adapter from wheels in an environment of its own (gigabytes)"
	@echo "make check   lint, format, types, import layers"
	@echo "make fix     apply what ruff can fix"
	@echo "make bench   decoding benchmark on this CPU"
	@echo "make gpu-check  parity and benchmark on a CUDA device"
	@echo "make clean   remove build products and caches"

$(STAMP): $(PROJECTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $(DISTS) --group dev
	touch $@

setup: $(STAMP)

check: setup
	$(BIN)/python -m pip check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each worker holds torch and docling: a few of them are enough on any machine.
test: setup
	$(BIN)/python -m pytest -m "not gpu and not slow" -n auto --maxprocesses 4

# `make setup` takes the newest docling. The lowest one goes before it on the path.
test-lowest: setup
	test -d $(LOWEST)/docling || $(BIN)/python -m pip install --quiet --no-deps --target $(LOWEST) docling-slim==2.130.0
	PYTHONPATH=$(LOWEST) $(BIN)/python -m pytest -m "not gpu and not slow" -n auto --maxprocesses 4 tests/unit/plugins/test_docling_*.py

test-install: setup
	MDIFF_TEST_INSTALL=1 $(BIN)/python -m pytest tests/e2e/test_install.py $(if $(ADAPTER),-k $(ADAPTER))

# Also what takes longer: clean environments per adapter, long documents, longer training runs.
test-all: setup
	$(BIN)/python -m pytest -m "not gpu"

bench: setup
	$(BIN)/python -m tests.benchmarks.bench_decode --dtype auto

gpu-check:
	PYTHONPATH=core:. $(PYTHON) -m tests.benchmarks.gpu_check

demo: setup
	$(BIN)/mdiff-adapters parse examples/scan.png

clean:
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
