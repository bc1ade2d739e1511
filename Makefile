# Every target sets itself up: a fresh clone needs Python 3.11 or newer, pip and make, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

WORKERS ?= 2

.PHONY: help setup test check format demo

help:
	@echo "make test     run the tests"
	@echo "make check    lint, formatting and types"
	@echo "make format   rewrite the sources in house format"
	@echo "make demo     the main job on the built-in world"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Etude needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once, a few minutes)"
# torch by its exact version and first: asked for by a range, the resolver looks at wheels of several gigabytes.
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[dev]'
# two files of it are read, the public scorers of SQuAD; its dependencies (TensorFlow) have no part in them
	@$(PIP) --no-deps tf-models-official
	@touch $@

# One thread a worker: two workers already fill two cores, and more threads than cores slow each other down.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(STAMP)
	$(BIN)/etude demo
