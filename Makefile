# make demo | make test | make check: each sets up what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install demo test check docs format lint types clean

help:
	@echo "make demo   train and compare four methods on handwritten digits (4 minutes)"
	@echo "make test   run the tests"
	@echo "make check  format, lint, types, tests"
	@echo "make docs   fill in the documents' tables from results/"

# Runs again only where pyproject.toml changed.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "metavib needs Python 3.11 or later; name one with: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/metavib demo
	@echo "To call metavib by its name: . $(BIN)/activate"

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

docs: $(INSTALLED)
	$(BIN)/python docs/tables.py

check: format lint types test

format: $(INSTALLED)
	$(BIN)/ruff format src tests docs experiments

lint: $(INSTALLED)
	$(BIN)/ruff check --fix src tests docs experiments

types: $(INSTALLED)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
