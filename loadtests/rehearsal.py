"""`python -m loadtests.rehearsal --store STORE --seconds 10`: all stages of a load test, on a deployment with faults.

The rehearsal starts Redis, two replicas and nginx on free ports. They serve two copies of the store's current version.
Locust runs the stages of `locustfile.py`. The rehearsal causes the fault of each stage and then repairs it. Flags that
the rehearsal does not know are passed to `recollect serve`. The last line of the output is JSON. The exit status is 1
after any unexpected error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtests.deployment import Deployment, MissingProgramError, deployed
from loadtests.replica import ReplicaError
from loadtests.stages import STAGE_NAMES, stages_by_name
from loadtests.swaps import copied_versions
from recollect.service.errors import ServiceError

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.rehearsal", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is served")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each stage; default: 10")
    parser.add_argument("--stages", default=",".join(STAGE_NAMES), help="stages to run, in this order; default: all")
    parser.add_argument("--rate", type=float, default=0, help="requests per second; default: 40%% of saturation")
    parser.add_argument("--connections", type=int, default=64, help="concurrent requests; default: 64")
    options, serve_flags = parser.parse_known_args(arguments)
    try:
        stages_by_name(options.stages.split(","))
        with (
            copied_versions(options.store, 2) as (store, _),
            tempfile.TemporaryDirectory() as folder,
            deployed(store.root, Path(folder), serve_flags) as deployment,
        ):
            return _rehearse(deployment, store.root, options)
    except (ServiceError, ReplicaError, MissingProgramError, ValueError) as error:
        parser.error(str(error))


def _rehearse(deployment: Deployment, store: Path, options: argparse.Namespace) -> int:
    """Run locust, cause the fault of each stage when the stage begins, and return the exit status."""
    command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--headless", "--only-summary"]
    command += ["--host", f"http://{deployment.address.host}:{deployment.address.port}", "--store", str(store)]
    for option in ("seconds", "stages", "rate", "connections"):
        command += [f"--{option}", str(getattr(options, option))]
    environment = os.environ | {
        "RECOLLECT_REDIS_URL": deployment.redis_url,
        "RECOLLECT_REDIS_SECRET": deployment.redis_secret,
        "LOCUST_LOGLEVEL": "WARNING",
    }
    faults = Faults(deployment, options.seconds / 3)
    printed: dict[str, Any] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as locust:
        assert locust.stdout is not None
        for line in locust.stdout:
            printed = json.loads(line)
            if "stage" not in printed:
                break
            faults.cause(printed["stage"])
    problems = faults.wait()
    for fault in problems:
        print(f"rehearsal: {fault}", file=sys.stderr)
    print(json.dumps(printed | {"failed": printed.get("failed", True) or bool(problems), "faults": problems}))
    return locust.returncode or int(bool(problems))


class Faults:
    """Causes the fault of a stage after a third of the stage's duration, and repairs it after two thirds.

    Args:
        deployment: The deployment.
        third_seconds: A third of the duration of a stage.
    """

    def __init__(self, deployment: Deployment, third_seconds: float) -> None:
        replica, redis = deployment.replicas[0], deployment.redis
        self._actions: dict[str, tuple[Callable[[], int | None], Callable[[], None]]] = {
            "redis_killed": (redis.kill, redis.start),
            "redis_stalled": (redis.stall, redis.resume),
            "replica_killed": (replica.kill, replica.start),
            "drain": (replica.stop, replica.start),
        }
        self._third_seconds = third_seconds
        self._problems: list[str] = []
        self._worker = ThreadPoolExecutor(1)

    def cause(self, stage: str) -> None:
        if stage in self._actions:
            self._worker.submit(self._cause_and_repair, stage)

    def wait(self) -> list[str]:
        """Wait until all faults are repaired, and return the errors of causing and repairing them."""
        self._worker.shutdown()
        return self._problems

    def _cause_and_repair(self, stage: str) -> None:
        cause, repair = self._actions[stage]
        time.sleep(self._third_seconds)
        try:
            if status := cause():
                self._problems.append(f"{stage}: expected exit status 0, found {status}")
            time.sleep(self._third_seconds)
            repair()
        except (ReplicaError, MissingProgramError) as error:
            self._problems.append(f"{stage}: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
