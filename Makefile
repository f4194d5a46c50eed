# `make demo` and `make test` work in a fresh clone: they create .venv and install the packages they need.

PYTHON ?= python3
# pip installs the CPU build if it can find one. Any release that pyproject.toml allows works: make TORCH=torch demo
TORCH ?= torch==2.13.0
# Number of test files that run at the same time. Each needs its own core; otherwise its threads wait for each other.
JOBS ?= 2
BIN := .venv/bin

.PHONY: demo test test-slow test-all lint docs rules schema lock clean

demo: .venv/demo.stamp
	$(BIN)/recollect demo

PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(JOBS)

test: .venv/dev.stamp
	$(PYTEST) --dist worksteal -m "not slow"

# Few slow tests share fixtures, so pytest distributes single tests instead of whole files.
test-slow: .venv/dev.stamp
	$(PYTEST) --dist worksteal -m slow

test-all: test test-slow

lint: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/docs.stamp
	$(BIN)/mkdocs build --strict

# Write the alerts of deploy/prometheus/ as a Kubernetes manifest.
rules: .venv/dev.stamp
	$(BIN)/python deploy/prometheus/write_manifest.py

# Write the JSON Schema of a bundle's manifest.
PRINT_SCHEMA = import json; from service.bundle.manifest import Manifest; print(json.dumps(Manifest.model_json_schema(), indent=2))
schema: .venv/dev.stamp
	$(BIN)/python -c "$(PRINT_SCHEMA)" > docs/manifest.schema.json

# Renew the locked dependencies of the images. `--upgrade` takes the newest releases that pyproject.toml allows.
LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header
lock: .venv/lock.stamp
	$(LOCK) --extra serve --extra s3 pyproject.toml --output-file deploy/requirements/cpu.lock
	$(LOCK) --extra serve-gpu --extra s3 pyproject.toml --output-file deploy/requirements/cuda.lock
	$(LOCK) deploy/requirements/build.in --output-file deploy/requirements/build.lock

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

.venv/lock.stamp: .venv/pip.stamp
	$(BIN)/pip install --quiet uv
	touch $@

.venv/docs.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/pip install --quiet --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv demo site
