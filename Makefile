# make main: set up what training needs, and train on the shipped data. make test: set up all that
# the tests need, and run them.
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

.PHONY: main test long lint
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
