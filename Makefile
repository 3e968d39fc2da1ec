# Python 3.11 with pip, make and a C compiler are all that must be there before.
# Everything else goes into .venv, by way of the package index.
PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
VENV := .venv
FUZZ_SECONDS ?= 60
# also the marker "matrix", and all examples of property tests
WHOLE := -m "not fuzz" --hypothesis-profile=full
BIN := $(VENV)/bin
# pip from outside: a venv made without pip works where ensurepip was left out (Debian)
INSTALL := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check install -q

.PHONY: help demo screenshot test test-all check bench bench-scale accuracy agents metrics bless snapshot coverage fuzz fuzz-native mutants docs \
	site lowest installs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.package ## what is wrong in a bundled training on 8 GPUs: in the terminal, and as demo.html
	$(BIN)/traceanalyzer diagnose fixtures/nccl_8ranks fixtures/memory/leak.pickle
	$(BIN)/traceanalyzer report fixtures/nccl_8ranks fixtures/memory/leak.pickle --force -o demo.html
	@echo "Open demo.html in a browser: $(CURDIR)/demo.html"

test: $(VENV)/.developer ## what a change must pass: samples of large matrices, a sixth of the examples
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(VENV)/.developer ## the whole suite: every case of every matrix, all examples
	$(BIN)/python -m pytest -n auto --dist worksteal $(WHOLE)

check: $(VENV)/.developer ## lint, formatting, language, size of the package, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m benchmarks.language
	$(BIN)/python -m benchmarks.metrics --check
	$(BIN)/mypy

bench: $(VENV)/.developer ## time and memory beside other tools, into benchmarks/RESULTS.md and docs/performance.md
	$(BIN)/python -m benchmarks.run

bench-scale: $(VENV)/.developer ## many ranks and large files, into docs/performance.md (SCALE=--large: 10 GB, 100 x 200 MB)
	$(BIN)/python -m benchmarks.scale --write $(SCALE)

accuracy: $(VENV)/.developer ## how often is the first finding of diagnose the root cause?
	$(BIN)/python -m benchmarks.accuracy $(ACCURACY)

agents: $(VENV)/.developer ## ten questions with known answers, through the tools for language models
	$(BIN)/python -m benchmarks.agents

metrics: $(VENV)/.developer ## size and structure of the package, beside their limits; METRICS=--check fails above one
	$(BIN)/python -m benchmarks.metrics $(METRICS)

bless: $(VENV)/.developer ## accept what the golden tests print now
	$(BIN)/python -m pytest -n auto $(WHOLE) --bless

snapshot: $(VENV)/.developer ## does every command print for every file what is recorded?
	$(BIN)/python tests/snapshot.py

coverage: $(VENV)/.developer ## the whole suite, and which lines and branches it runs
	$(BIN)/python -m pytest -n auto $(WHOLE) --cov

fuzz: $(VENV)/.developer ## damaged files and odd traces for FUZZ_SECONDS (60)
	$(INSTALL) --editable '.[fuzz]'
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -n 1 -m fuzz
	$(BIN)/python tests/byte_fuzzer.py .fuzz $$(($(FUZZ_SECONDS) / 5))

# The C extensions with checks of every access, in a copy; Python itself has none, so they come first.
fuzz-native: $(VENV)/.developer ## the same, with the C extensions under ASAN and UBSAN
	rm -rf .native && mkdir .native
	cp -r traceanalyzer tests fixtures setup.py pyproject.toml README.md LICENSE .native
	find .native -name '*.so' -delete
	cd .native && CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -g" \
	  ../$(BIN)/python setup.py -q build_ext --inplace
	cd .native && LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) \
	  $$($(CC) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	  FUZZ_SECONDS=$(FUZZ_SECONDS) ../$(BIN)/python -m pytest -m fuzz tests/parsers/test_fuzz_formats.py \
	  tests/analyzers/test_follow.py

mutants: $(VENV)/.developer ## do the tests notice when a formula is wrong?
	$(BIN)/python -m benchmarks.mutants

docs: $(VENV)/.package ## the pages, stubs and pictures derived from the code
	$(BIN)/python docs/make_schema.py
	$(BIN)/python docs/make_commands.py
	$(BIN)/python docs/make_man.py
	$(BIN)/python docs/make_rules.py
	$(BIN)/python docs/make_python.py
	$(BIN)/python docs/make_stubs.py
	$(BIN)/python docs/make_glossary.py
	$(BIN)/traceanalyzer comm-outliers fixtures/nccl_8ranks -q --force -o /dev/null \
	  --plot docs/images/comm_outliers.png
	$(BIN)/traceanalyzer flamegraph fixtures/py_spy/subprocesses.raw.txt -q --force \
	  -o docs/images/flamegraph.svg

screenshot: $(VENV)/.package ## the pictures of the README and of docs/gallery.md; needs chromium
	$(BIN)/python docs/make_screenshot.py

site: $(VENV)/.developer ## the documentation as a site, into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lowest: ## the suite with the lowest versions that pyproject.toml allows; PYTHON=python3.11
	$(PYTHON) -m venv --without-pip .lowest
	$(PYTHON) tests/lowest.py > .lowest/constraints.txt
	$(PYTHON) -m pip --python .lowest/bin/python --disable-pip-version-check install -q \
	  --constraint .lowest/constraints.txt --editable '.[dev]'
	# warnings of old releases about new ones of theirs are nobody's fault here; types are checked
	# against today's numpy and polars, and pictures in notebooks are some pixels higher today
	.lowest/bin/python -m pytest -n auto -W ignore::DeprecationWarning \
	  -W ignore::PendingDeprecationWarning --ignore=tests/test_types.py \
	  --ignore=tests/test_notebooks.py

installs: $(VENV)/.developer ## wheel and source archive into an empty environment of each Python
	$(BIN)/python tests/installs.py $(PYTHONS)

clean: ## everything that make can make again
	rm -rf $(VENV) .lowest build dist site *.egg-info .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* .fuzz .native
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.package: pyproject.toml setup.py $(wildcard traceanalyzer/*/*/*.c traceanalyzer/*/*/*.h)
	$(PYTHON) -m venv --without-pip $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.developer: $(VENV)/.package
	$(INSTALL) --editable '.[dev]'
	@touch $@
