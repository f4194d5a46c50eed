# `make demo` and `make test` work in a fresh clone: they create .venv and install the packages they need.

PYTHON ?= python3
# Any release that pyproject.toml allows works: make TORCH=torch demo
TORCH ?= torch==2.13.0
# pip prefers this index's CPU build of PyTorch if the index is in PIP_EXTRA_INDEX_URL.
CPU_INDEX := https://download.pytorch.org/whl/cpu
# Number of processes that run tests at the same time. Tests often wait, for example for a server, so four keep two cores
# busy.
JOBS ?= 4
BIN := .venv/bin

.PHONY: demo test random lint docs rules schema lock clean

demo: .venv/demo.stamp
	$(BIN)/recollect demo

# Images often set PYTHONDONTWRITEBYTECODE. Then each process would compile the tests again, which takes six seconds.
#
# Tests write and remove thousands of small files. In memory, one file of training tests took a quarter less time than on
# a disk. The variable is empty if the folder is missing or has less than 8 GB.
MEMORY_FOLDER := /dev/shm
FREE_MB = $$(df --output=avail --block-size=1M $(MEMORY_FOLDER) 2> /dev/null | tail -1)
IN_MEMORY = $(shell [ "$(FREE_MB)" -gt 8000 ] 2> /dev/null && echo PYTEST_DEBUG_TEMPROOT=$(MEMORY_FOLDER))

test: .venv/dev.stamp
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(IN_MEMORY) $(BIN)/pytest --numprocesses $(JOBS) --dist worksteal

# Random checks with new seeds, for a quarter of an hour each. A failure prints its seed.
random: .venv/dev.stamp
	RECOLLECT_RANDOM_SEED=$${RECOLLECT_RANDOM_SEED:-$$(date +%s)} RECOLLECT_RANDOM_SECONDS=$${RECOLLECT_RANDOM_SECONDS:-900} \
		$(BIN)/pytest -q tests/contract/test_random.py

lint: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/docs.stamp
	$(BIN)/properdocs build --strict

# Write the alerts of deploy/prometheus/ as a Kubernetes manifest.
rules: .venv/dev.stamp
	$(BIN)/python deploy/prometheus/write_manifest.py

# Write the JSON Schema of a bundle's manifest.
PRINT_SCHEMA = import json; from recollect.core.bundle.manifest import Manifest; print(json.dumps(Manifest.model_json_schema(), indent=2))
schema: .venv/dev.stamp
	$(BIN)/python -c "$(PRINT_SCHEMA)" > docs/manifest.schema.json

# Renew the locked dependencies of the images. `--upgrade` takes the newest releases that pyproject.toml allows.
LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header
lock: .venv/lock.stamp
	$(LOCK) --extra serve --extra cpu --extra s3 pyproject.toml --output-file deploy/requirements/cpu.lock
	$(LOCK) --extra serve --extra gpu --extra s3 pyproject.toml --output-file deploy/requirements/cuda.lock
	$(LOCK) deploy/requirements/build.in --output-file deploy/requirements/build.lock

.venv/pip.stamp:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

# Before the download: on Linux with x86-64, PyPI has only the CUDA build of PyTorch.
define SAY_SIZE
if [ "$$(uname -sm)" = "Linux x86_64" ] && [ -z "$$PIP_EXTRA_INDEX_URL$$PIP_INDEX_URL" ]; then \
	echo "pip may download the CUDA build of PyTorch (about 4 GB). The CPU build (about 200 MB) is enough here:"; \
	echo "stop with Ctrl-C, then run: PIP_EXTRA_INDEX_URL=$(CPU_INDEX) make $(MAKECMDGOALS)"; \
fi
endef

.venv/demo.stamp: .venv/pip.stamp pyproject.toml
	@$(SAY_SIZE)
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet "$(TORCH)" --editable ".[build,serve,cpu]"
	touch $@

.venv/dev.stamp: .venv/pip.stamp pyproject.toml
	@$(SAY_SIZE)
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
