# Every target sets itself up: a fresh clone needs Python 3.11 or newer, pip and make, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.documented
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

WORKERS ?= 2

.PHONY: help setup test check format demo docs wheel hooks

help:
	@echo "make demo     the main job on the built-in world"
	@echo "make test     run the tests"
	@echo "make check    lint, formatting and types"
	@echo "make format   rewrite the sources in house format"
	@echo "make docs     build the documentation into site/"
	@echo "make wheel    build the wheel into dist/"
	@echo "make hooks    run the checks before each commit, by pre-commit"

setup: $(STAMP)

# What the package itself needs, and compiled word vectors: enough for the demo.
$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Etude needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Installing into $(VENV) (once, a few minutes, 1.3 GB with torch for the CPU)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# torch by its exact version and first: asked for by a range, the resolver looks at wheels of several gigabytes.
# pip says what it is doing: in silence, minutes look like a standstill.
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[fast]'
	@touch $@

$(STAMP): $(RUNTIME)
	@echo "Installing what tests and checks need"
	@$(PIP) --editable '.[dev]'
# two files of it are read, the public scorers of SQuAD; its dependencies (TensorFlow) have no part in them
	@$(PIP) --no-deps tf-models-official
	@touch $@

# One thread a worker: two workers already fill two cores, and more threads than cores slow each other down.
# Bytecode is kept even where the environment says not to: else each worker rewrites all assertions again, and each
# process that a test starts compiles the package again.
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(RUNTIME)
	$(BIN)/etude demo

$(DOCS_STAMP): $(RUNTIME)
	@echo "Installing what the documentation needs"
	@$(PIP) --editable '.[docs]'
	@touch $@

# Nothing is fetched by the build, nor by the pages: open site/index.html.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html: open it in a browser"

# setuptools, which torch brings, builds it: nothing is downloaded. Files of an earlier build must not get in.
wheel: $(RUNTIME)
	@rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

hooks: $(STAMP)
	@$(PIP) pre-commit
	$(BIN)/pre-commit install
