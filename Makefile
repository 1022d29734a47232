# make main: set up and train on the shipped data. make test: set up and run the tests.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python -m

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

.PHONY: main test long lint
main: $(VENV)/installed
	$(RUN) experiments quickstart

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) pytest --numprocesses 2

long: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) pytest --numprocesses 2 -m long

lint: $(VENV)/installed
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
