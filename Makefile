# Each target does its own set-up. PYTHON: an interpreter of version 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SITE_TOOLS := $(VENV)/.site-tools

COUNT ?= 10000

# bytecode is kept whatever the environment says: hundreds of processes would compile the packages anew
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all bench golden fuzz matrix zoo published kills lint docs notebooks clean

# run the scenario of the README
demo: $(INSTALLED)
	$(BIN)/fedspill run scenarios/quickstart.yaml --out runs/demo

# what one runs while working, within three minutes: lint, types, and every test that is not marked `slow`
test: lint
	$(PYTEST) -m "not slow" --numprocesses logical --maxprocesses 4 $(BY_FILE)

# everything: `test`, then the slow tests, then the quick benchmark of defenses against its recorded table;
# three processes on two cores, because those that start Ray wait most of their time
test-all: test $(SITE_TOOLS)
	$(PYTEST) -m slow --numprocesses 3 $(BY_FILE)
	$(PYTEST) tests/benchmarks/recorded_defenses.py

# let clients, attacks and scores fail in every way there is, in a deployment of Flower: minutes, and 2 GB of memory
matrix: $(INSTALLED)
	$(PYTEST) tests/reliability/whole_matrix.py

# kill COUNT runs at random moments, resume them, and compare their tables
kills: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability.kills --count $(COUNT)

# measure how fast the attacks are on this machine
bench: $(INSTALLED)
	$(BIN)/python -m tests.benchmarks

# attack networks that people bring, on fresh draws of the data in the folder DATA; goes on where it stopped
zoo: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.zoo --root $(DATA)

# attack what others published figures of, on their settings, with the data in the folder DATA: an hour; goes on where it
# stopped
published: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.published --root $(DATA)

# before a change that is to change no result: write what whole runs give into golden.json; after it: name what differs
golden: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.golden --$(if $(wildcard golden.json),compare,write) golden.json

# give COUNT broken inputs to everything that reads a file
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --count $(COUNT)

# build the site of the documentation, in site/
docs: $(SITE_TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# execute the tutorials, and write their notebooks, without the time of each cell
notebooks: $(SITE_TOOLS)
	for source in docs/start/*.py; do OMP_NUM_THREADS=1 $(BIN)/jupytext --to ipynb --execute $$source || exit 1; done
	$(BIN)/jupyter-nbconvert --to notebook --inplace --ClearMetadataPreprocessor.enabled=True \
	    --ClearMetadataPreprocessor.clear_notebook_metadata=False docs/start/*.ipynb

# check style and types
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

# remove the environment and the site
clean:
	rm -rf $(VENV) site
