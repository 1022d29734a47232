# make main: set up what training needs, and train on the shipped data. make test: set up all that
# the tests need, and run them. make site: the documentation as a site in build/site.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python -m
# Two processes with neighbouring tests each: what a module of tests prepares is mostly made once.
SHARED = --numprocesses 2 --dist worksteal
# Modules are compiled when they are first imported: most that are installed never are.
INSTALL = $(RUN) pip install --quiet --no-compile --constraint constraints.txt --editable

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(VENV)/installed: $(VENV)/core
	$(INSTALL) ".[dev]"
	touch $@

$(VENV)/docs: $(VENV)/core
	$(INSTALL) ".[docs]"
	touch $@

# The three in one go, which is quicker.
$(VENV)/all: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) ".[dev,docs]"
	touch $(VENV)/core $(VENV)/installed $(VENV)/docs $@

.PHONY: main test long lint site oldest newest
main: $(VENV)/core
	$(RUN) experiments quickstart

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) pytest $(SHARED)

long: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) pytest $(SHARED) -m long

# The tests with the lowest and with the newest versions that pyproject.toml allows.
oldest:
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/pip install --quiet uv
	build/oldest/bin/uv pip install --quiet --python build/oldest/bin/python \
		--resolution lowest-direct --editable ".[dev]"
	OMP_NUM_THREADS=1 build/oldest/bin/python -m pytest $(SHARED)

newest:
	$(PYTHON) -m venv build/newest
	build/newest/bin/pip install --quiet --editable ".[dev]"
	OMP_NUM_THREADS=1 build/newest/bin/python -m pytest $(SHARED)

lint: $(VENV)/installed
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

# BUILDER=dummy: pages are read and links are followed, and nothing is written.
BUILDER ?= html

site: $(VENV)/docs
	OMP_NUM_THREADS=1 $(RUN) sphinx --builder $(BUILDER) --fail-on-warning --keep-going --quiet --jobs 2 --conf-dir docs \
		--doctree-dir build/doctrees . build/site
