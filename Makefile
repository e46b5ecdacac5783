# make demo | make test | make check: each sets up what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
INSTALLED := $(VENV)/.installed
QUICKLY := --quiet --quiet -o Acquire::Retries=0 -o Acquire::http::Timeout=20

.PHONY: help install demo bench test test-all test-gpu browser check chaos attacks fuzz fuzz-long constraints upgrade docs tutorials format lint types clean

help:
	@echo "make demo   train MetaVIB and plain training on handwritten digits (4 minutes); installs the core only"
	@echo "make test   the tests that take minutes; make test-all has the long ones"
	@echo "make test-gpu what needs a GPU, on a machine that has one and nothing but torch"
	@echo "make check  format, lint, types, tests"
	@echo "make browser install chromium for the tests that open pages (make test-all does it for root)"
	@echo "make fuzz   bad input by the thousand (10 minutes); counts go to results/fuzz.json"
	@echo "make fuzz-long  the same until there are 100,000 cases"
	@echo "make chaos  100 kills, full disks, clocks that jump: what docs/reliability.md tells of (15 minutes)"
	@echo "make attacks hostile clients against a server on loopback (12 minutes); make chaos does it too"
	@echo "make bench  how fast it is here, against a loop written by hand"
	@echo "make docs   fill in the documents' tables from results/, and build the site"
	@echo "make tutorials  run the notebooks of docs/tutorials, and keep what they show"

# Both run again only where pyproject.toml or constraints.txt changed.
$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "metavib needs Python 3.11 or later; name one with: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(INSTALLED): $(CORE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(INSTALLED)

# The demo needs no extras, and what the tests need takes longer to install than the rest.
demo: $(CORE)
	$(BIN)/metavib demo
	@echo "To call metavib by its name: . $(BIN)/activate"

# What takes long has a marker that says why (pyproject.toml); the slowest are printed.
LONG := processes or chaos or browser or load or stacks or kernels or whole
PYTEST := $(BIN)/python -m pytest -n 2 --durations=25 --durations-min=1

test: $(INSTALLED)
	$(PYTEST) -m "not ($(LONG))"

test-all: $(INSTALLED)
	@$(MAKE) --no-print-directory browser || echo "Without chromium, the tests in a browser are skipped; with CI=true they fail."
	$(PYTEST) -m "$(LONG)"

# With a GPU and torch alone: it needs none of the packages that tests on a CPU do.
test-gpu:
	PYTHONPATH=src:. $(PYTHON) -m unittest -v tests/gpu/test_on_a_gpu.py

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

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# Tables from the records, then the site; a warning is an error.
docs: $(INSTALLED)
	PYTHONPATH=docs $(BIN)/python -m record_tables
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d docs/_build/doctrees docs docs/_build/html
	@echo "The site is in docs/_build/html/index.html"

# Runs the notebooks, and keeps what they show in them: two minutes on a quiet machine.
tutorials: $(INSTALLED)
	$(BIN)/python experiments/tutorials.py
	$(BIN)/ruff format docs/tutorials

# Seed after seed until there are 100,000 cases: half an hour on a quiet machine, and no more than six hours.
fuzz-long: $(INSTALLED)
	$(BIN)/python experiments/fuzz.py --cases 100000 --jobs 2 --seconds 21600 --seed 0 --record results/fuzz.json

chaos: $(INSTALLED)
	$(BIN)/python experiments/chaos.py --out results/chaos.json
	@$(MAKE) --no-print-directory attacks

attacks: $(INSTALLED)
	$(BIN)/python experiments/attack.py --seconds 10 --out results/attacks.json

check: format lint types test test-all

format: $(INSTALLED)
	$(BIN)/ruff format src tests docs experiments benchmarks

READ := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples src

lint: $(INSTALLED)
	$(BIN)/ruff check --fix src tests docs experiments benchmarks
	$(BIN)/codespell $(READ)

types: $(INSTALLED)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
