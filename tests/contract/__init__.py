"""The contract: what a user of Recollect relies on, stated through HTTP, the command line and the Python API.

A redesign must pass these tests, and must not rewrite them. They import `recollect` and nothing of its packages, and
they drive real processes. They do not know how a store, a run or a log is laid out on disk.

- `test_http.py`: each route, with status, headers and body. The requests are in `data/requests.json`.
- `test_verbs.py`: each verb: arguments, exit status, output that a script reads, and the message for usual mistakes.
- `test_python_api.py`: `import recollect`, and `recollect.sklearn`.
- `test_golden.py`: the answers of a small committed store, to 1e-6. `make_store.py` makes the store again.
- `test_quality.py`: least quality on the built-in sample.
- `test_faults.py`: processes that are killed, a full disk, Redis and Milvus away, damage, two writers.

`pytest -n 2 tests/contract` is meant to take less than three minutes on two cores.
"""
