# Python 3.11 with pip, make and a C compiler are all that must be there before.
# Everything else goes into .venv, by way of the package index.
PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
VENV := .venv
BIN := $(VENV)/bin
# pip from outside: a venv made without pip works where ensurepip was left out (Debian)
INSTALL := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check install -q

.PHONY: help demo test check bench bless coverage fuzz docs site lowest installs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.package ## what was wrong in a training on 8 GPUs? in the terminal, and as a page
	$(BIN)/traceanalyzer diagnose fixtures/nccl_8ranks fixtures/memory/leak.pickle
	$(BIN)/traceanalyzer report fixtures/nccl_8ranks fixtures/memory/leak.pickle --force -o demo.html
	@echo "Open demo.html in a browser: $(CURDIR)/demo.html"

test: $(VENV)/.developer ## the whole suite
	$(BIN)/python -m pytest -n auto

check: $(VENV)/.developer ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.developer ## how fast, how much memory, against orjson and HTA
	$(BIN)/python -m benchmarks.run

bless: $(VENV)/.developer ## accept what the golden tests print now
	$(BIN)/python -m pytest -n auto --bless

coverage: $(VENV)/.developer ## the whole suite, and which lines and branches it runs
	$(BIN)/python -m pytest -n auto --cov

fuzz: $(VENV)/.developer ## many more mutated traces than the suite tries
	$(BIN)/python -m pytest -n auto -m fuzz

docs: $(VENV)/.package ## the pages and the picture derived from the code
	$(BIN)/python docs/make_schema.py
	$(BIN)/python docs/make_commands.py
	$(BIN)/python docs/make_rules.py
	$(BIN)/python docs/make_python.py
	$(BIN)/traceanalyzer comm-outliers fixtures/nccl_8ranks -q --force -o /dev/null \
	  --plot docs/images/comm_outliers.png
	$(BIN)/traceanalyzer flamegraph fixtures/py_spy/subprocesses.raw.txt -q --force \
	  -o docs/images/flamegraph.svg

site: $(VENV)/.developer ## the documentation as a site, into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lowest: ## the suite with the lowest versions that pyproject.toml allows; PYTHON=python3.11
	$(PYTHON) -m venv --without-pip .lowest
	$(PYTHON) tests/lowest.py > .lowest/constraints.txt
	$(PYTHON) -m pip --python .lowest/bin/python --disable-pip-version-check install -q \
	  --constraint .lowest/constraints.txt --editable '.[dev]'
	# warnings of old releases about new ones of theirs are nobody's fault here
	.lowest/bin/python -m pytest -n auto -W ignore::DeprecationWarning \
	  -W ignore::PendingDeprecationWarning

installs: $(VENV)/.developer ## wheel and source archive into an empty environment of each Python
	$(BIN)/python tests/installs.py $(PYTHONS)

clean: ## everything that make can make again
	rm -rf $(VENV) .lowest build dist site *.egg-info .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.package: pyproject.toml setup.py $(wildcard traceanalyzer/parsers/*/*.c traceanalyzer/parsers/*/*.h)
	$(PYTHON) -m venv --without-pip $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.developer: $(VENV)/.package
	$(INSTALL) --editable '.[dev]'
	@touch $@
