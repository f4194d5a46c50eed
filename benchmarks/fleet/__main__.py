"""`python -m benchmarks.fleet ...` measures the constants of the capacity model, tests the model, and prints its page.

`table` prints docs/scaling.md from the recorded figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.arguments import positive_int
from recollect.service.threads import ThreadBudget


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description="Capacity of a fleet of replicas.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def needs_store(added: argparse.ArgumentParser, seconds: float | None = None) -> None:
        added.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is measured")
        if seconds:
            text = f"duration of each measurement; default: {seconds:g}"
            added.add_argument("--seconds", type=float, default=seconds, help=text)

    compute = command("compute", _compute, "Measure a predictor on one thread, and record it.")
    needs_store(compute, 60)
    compute.add_argument("--name", required=True, choices=["minilm", "static"], help="name of the record")
    needs_store(command("drift", _drift, "Measure how the speed of the idle machine changes, and record it."), 120)
    needs_store(command("http", _http, "Measure the costs of requests, and record them."), 10)
    service = command("service", _service, "Measure the real service at several loads, and record its figures.")
    needs_store(service, 20)
    service.add_argument("--replicas", type=int, required=True, choices=[1, 2], help="number of replicas")
    service.add_argument(
        "--repetitions", type=positive_int, default=5, help="number of measurements of each load; default: 5"
    )
    indexes = command("indexes", _indexes, "Measure kinds of indexes, and record them.")
    needs_store(indexes)
    indexes.add_argument("--keys", type=positive_int, default=60_000, help="number of synthetic keys; default: 60000")
    swap = command("swap", _swap, "Measure swaps to other versions, and record them.")
    needs_store(swap)
    swap.add_argument("--repetitions", type=positive_int, default=5, help="number of swaps; default: 5")
    changes = command("changes", _changes, "Measure live writes and a compaction, and record them.")
    needs_store(changes)
    changes.add_argument("--writes", type=positive_int, default=300, help="number of live writes; default: 300")
    command("predict", _predict, "Predict the figures of the real service, and record both.")
    command("scenarios", _scenarios, "Simulate failures and overload of 100 replicas, and record their figures.")
    command("table", _table, "Print docs/scaling.md.")
    given = parser.parse_args(arguments)
    ThreadBudget.of(1, 1).apply()  # before the libraries load
    from loadtests.client import LostRequestError
    from loadtests.deployment import MissingProgramError
    from loadtests.replica import ReplicaError
    from recollect.service.errors import ServiceError

    try:
        given.run(given)
    except (ServiceError, ReplicaError, MissingProgramError, LostRequestError, OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _compute(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.compute import measure_compute
    from benchmarks.fleet.records import record

    record(lambda: measure_compute(given.store, given.seconds), f"compute-{given.name}")


def _drift(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.drift import measure_drift
    from benchmarks.fleet.records import record

    record(lambda: measure_drift(given.store, given.seconds), "drift")


def _http(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.http import measure_http
    from benchmarks.fleet.records import record

    record(lambda: measure_http(given.store, given.seconds), "http")


def _service(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.service import measure_service
    from benchmarks.fleet.records import record

    record(
        lambda: measure_service(given.store, given.replicas, given.seconds, given.repetitions),
        f"service-{given.replicas}",
    )


def _indexes(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.indexes import measure_indexes
    from benchmarks.fleet.records import record

    record(lambda: measure_indexes(given.store, given.keys), "indexes")


def _swap(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.swap import measure_swap
    from benchmarks.fleet.records import record

    record(lambda: measure_swap(given.store, given.repetitions), "swap")


def _changes(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.changes import measure_changes
    from benchmarks.fleet.records import record

    record(lambda: measure_changes(given.store, given.writes), "changes")


def _predict(given: argparse.Namespace) -> None:
    from benchmarks.fleet.measurements.service import ServiceFigures
    from benchmarks.fleet.records import read, write
    from benchmarks.fleet.simulation.fleet import Constants
    from benchmarks.fleet.validation import validate

    measured = [read(ServiceFigures, f"service-{replicas}") for replicas in (1, 2)]
    write(validate(measured, Constants.recorded()), "validation")


def _scenarios(given: argparse.Namespace) -> None:
    from benchmarks.fleet.records import write
    from benchmarks.fleet.simulation.fleet import Constants
    from benchmarks.fleet.simulation.scenarios import simulate_all

    write(simulate_all(Constants.recorded()), "scenarios")


def _table(given: argparse.Namespace) -> None:
    from benchmarks.fleet.report import page

    print(page(), end="")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
