# make main: set up what training needs, and train on the shipped data. make test: set up all that
# the tests need, and run them. make site: the documentation as a site in build/site.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python -m

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed: $(VENV)/core
	$(RUN) pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(VENV)/docs: $(VENV)/core
	$(RUN) pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

.PHONY: main test long lint site
main: $(VENV)/core
	$(RUN) experiments quickstart

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) pytest --numprocesses 2

long: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) pytest --numprocesses 2 -m long

lint: $(VENV)/installed
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

site: $(VENV)/docs
	OMP_NUM_THREADS=1 $(RUN) sphinx --fail-on-warning --keep-going --quiet --jobs 2 --conf-dir docs \
		--doctree-dir build/doctrees . build/site
