# `make demo` and `make test` each work in a fresh clone: they make .venv and install what they need into it.

PYTHON ?= python3
# The CPU build where pip is told of one; any release that pyproject.toml admits will do: make TORCH=torch demo
TORCH ?= torch==2.13.0
# Test files that run side by side; each has a core of its own, as threads that wait for one another's cores only spin.
JOBS ?= 2
BIN := .venv/bin

.PHONY: demo test lint docs clean

demo: .venv/demo.stamp
	$(BIN)/recollect demo

test: .venv/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(JOBS) --dist loadfile

lint: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/docs.stamp
	$(BIN)/mkdocs build --strict

.venv/pip.stamp:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

.venv/demo.stamp: .venv/pip.stamp pyproject.toml
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet "$(TORCH)" --editable ".[build,serve]"
	touch $@

.venv/dev.stamp: .venv/pip.stamp pyproject.toml
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet "$(TORCH)" --editable ".[dev]"
	touch $@

.venv/docs.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/pip install --quiet --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv demo site
