# Each target does its own set-up. PYTHON: an interpreter of version 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SITE_TOOLS := $(VENV)/.site-tools

COUNT ?= 10000

.PHONY: demo test test-all bench fuzz matrix kills lint docs notebooks clean

demo: $(INSTALLED)
	$(BIN)/fedspill run scenarios/quickstart.yaml --out runs/demo

# three processes on two cores: those that start Ray wait most of their time;
# bytecode is kept whatever the environment says: hundreds of processes would compile the packages anew
test: lint $(SITE_TOOLS)
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# and the quick benchmark of defenses against its recorded table: minutes more
test-all: test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/benchmarks/recorded_defenses.py

matrix: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/reliability/whole_matrix.py

kills: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability.kills --count $(COUNT)

bench: $(INSTALLED)
	$(BIN)/python -m tests.benchmarks

fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --count $(COUNT)

docs: $(SITE_TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

notebooks: $(SITE_TOOLS)
	for source in docs/start/*.py; do OMP_NUM_THREADS=1 $(BIN)/jupytext --to ipynb --execute $$source || exit 1; done

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), f'fedspill needs Python 3.11 or later, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...'"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

$(SITE_TOOLS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $(SITE_TOOLS)

clean:
	rm -rf $(VENV) site
