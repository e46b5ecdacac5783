# make demo | make test | make check: each sets up what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
QUICKLY := --quiet --quiet -o Acquire::Retries=0 -o Acquire::http::Timeout=20

.PHONY: help install demo test browser check chaos attacks fuzz fuzz-long constraints upgrade docs format lint types clean

help:
	@echo "make demo   train and compare four methods on handwritten digits (4 minutes)"
	@echo "make test   run the tests"
	@echo "make check  format, lint, types, tests"
	@echo "make browser install chromium for the tests that open pages (make test does it for root)"
	@echo "make fuzz   bad input by the thousand (10 minutes); counts go to results/fuzz.json"
	@echo "make fuzz-long  the same until there are 100,000 cases"
	@echo "make chaos  100 kills, full disks, clocks that jump: what docs/reliability.md tells of (15 minutes)"
	@echo "make attacks hostile clients against a server on loopback (12 minutes); make chaos does it too"
	@echo "make docs   fill in the documents' tables from results/"

# Runs again only where pyproject.toml or constraints.txt changed.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "metavib needs Python 3.11 or later; name one with: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/metavib demo
	@echo "To call metavib by its name: . $(BIN)/activate"

test: $(INSTALLED)
	@$(MAKE) --no-print-directory browser || echo "Without chromium, the tests in a browser are skipped."
	$(BIN)/python -m pytest -n 2

# The browser that opens the report in the tests: Debian's, where there is none yet and we may install one.
browser:
	@for name in chromium chromium-browser google-chrome; do \
	  if command -v $$name >/dev/null; then exit 0; fi; done; \
	if test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null; then \
	  echo "To install it, as root: apt-get install chromium"; exit 1; fi; \
	echo "Installing chromium, for the tests in a browser."; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get $(QUICKLY) update && apt-get $(QUICKLY) install --yes --no-install-recommends chromium >/dev/null

fuzz: $(INSTALLED)
	$(BIN)/python experiments/fuzz.py --seconds 540 --seed 0 --record results/fuzz.json

# The versions that the tests passed with: those of this environment, without what belongs to one platform.
# To move to newer ones: make upgrade, make check, make constraints.
constraints: $(INSTALLED)
	$(BIN)/python experiments/constraints.py > constraints.new && mv constraints.new constraints.txt
	@touch $(INSTALLED)

upgrade: $(INSTALLED)
	$(BIN)/python -m pip install --upgrade --upgrade-strategy eager --editable '.[dev]'

docs: $(INSTALLED)
	PYTHONPATH=docs $(BIN)/python -m record_tables

# Seed after seed until there are 100,000 cases: an hour or two on a quiet machine, and no more than six.
fuzz-long: $(INSTALLED)
	$(BIN)/python experiments/fuzz.py --cases 100000 --seconds 21600 --seed 0 --record results/fuzz-long.json

chaos: $(INSTALLED)
	$(BIN)/python experiments/chaos.py --out results/chaos.json
	@$(MAKE) --no-print-directory attacks

attacks: $(INSTALLED)
	$(BIN)/python experiments/attack.py --out results/attacks.json

check: format lint types test

format: $(INSTALLED)
	$(BIN)/ruff format src tests docs experiments

lint: $(INSTALLED)
	$(BIN)/ruff check --fix src tests docs experiments

types: $(INSTALLED)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
