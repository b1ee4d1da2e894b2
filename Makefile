# Two commands for a newcomer: `make demo` and `make test`. The rest is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-fast lint format bench docs clean

demo: $(VENV)/cli,report,train.stamp
	$(BIN)/eigenbatch demo

# Two processes of one thread each: several threads a process wait for each other on few cores.
PYTEST_ARGS ?= -n 2 --dist loadfile
test: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

# The daily loop: without tests marked slow.
test-fast: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow"

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks $(BENCH)

# The site, and on it the page of the demo as an example; its runs are kept.
docs: $(VENV)/docs.stamp $(VENV)/cli,report,train.stamp
	$(BIN)/mkdocs build --strict
	$(BIN)/eigenbatch demo --out runs/demo
	$(BIN)/eigenbatch report runs/demo --out site/demo.html

clean:
	rm -rf $(VENV) site build dist runs

# A stamp per set of extras: a second call reinstalls only when a requirement changed.
$(VENV)/%.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[$*]'
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("eigenbatch needs Python 3.11 or newer: try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
