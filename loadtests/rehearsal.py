"""`python -m loadtests.rehearsal --store STORE --seconds 10`: every stage against a whole deployment, faults included.

Brings up Redis, replicas and nginx on free ports, serving a copy of the store in two versions; has locust drive all
stages of `locustfile.py`; hurts what a stage says, and mends it. Further flags go to `recollect serve`. The last
line printed is JSON; the exit status is 1 after any unexpected error.
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
from loadtests.replica import ReplicaError, two_versions
from loadtests.stages import NAMES, chosen
from service.errors import ServiceError

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.rehearsal", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store; its current version is served")
    parser.add_argument("--seconds", type=float, default=10, help="how long each stage lasts; 10 unless told")
    parser.add_argument("--stages", default=",".join(NAMES), help="which, in their order; all unless told")
    parser.add_argument("--rate", type=float, default=0, help="requests a second; 40%% of saturation unless told")
    parser.add_argument("--connections", type=int, default=64, help="requests at once; 64 unless told")
    given, serve_flags = parser.parse_known_args(arguments)
    try:
        chosen(given.stages.split(","))
        with (
            two_versions(given.store) as (store, _),
            tempfile.TemporaryDirectory() as folder,
            deployed(store.root, Path(folder), serve_flags) as deployment,
        ):
            return _rehearse(deployment, store.root, given)
    except (ServiceError, ReplicaError, MissingProgramError, ValueError) as error:
        parser.error(str(error))


def _rehearse(deployment: Deployment, store: Path, given: argparse.Namespace) -> int:
    """Run locust and bring about what each stage announces; the exit status of both."""
    command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--headless", "--only-summary"]
    command += ["--host", f"http://{deployment.address.host}:{deployment.address.port}", "--store", str(store)]
    for option in ("seconds", "stages", "rate", "connections"):
        command += [f"--{option}", str(getattr(given, option))]
    environment = os.environ | {"RECOLLECT_REDIS_URL": deployment.redis_url, "LOCUST_LOGLEVEL": "WARNING"}
    faults = Faults(deployment, given.seconds / 3)
    said: dict[str, Any] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as locust:
        assert locust.stdout is not None
        for line in locust.stdout:
            said = json.loads(line)
            if "stage" not in said:
                break
            faults.bring_about(said["stage"])
    found = faults.end()
    for fault in found:
        print(f"rehearsal: {fault}", file=sys.stderr)
    print(json.dumps(said | {"failed": said.get("failed", True) or bool(found), "faults": found}))
    return locust.returncode or int(bool(found))


class Faults:
    """Hurts what a stage says after a third of it, and mends that after two; one after the other.

    Args:
        deployment: What is hurt.
        third_seconds: A third of a stage.
    """

    def __init__(self, deployment: Deployment, third_seconds: float) -> None:
        replica, redis = deployment.replicas[0], deployment.redis
        self._hurts: dict[str, tuple[Callable[[], int | None], Callable[[], None]]] = {
            "redis_killed": (redis.kill, redis.start),
            "redis_stalled": (redis.stall, redis.resume),
            "replica_killed": (replica.kill, replica.start),
            "drain": (replica.stop, replica.start),
        }
        self._third_seconds = third_seconds
        self._found: list[str] = []
        self._one = ThreadPoolExecutor(1)

    def bring_about(self, stage: str) -> None:
        if stage in self._hurts:
            self._one.submit(self._hurt, stage)

    def end(self) -> list[str]:
        """Wait until all is mended; what went otherwise than it should."""
        self._one.shutdown()
        return self._found

    def _hurt(self, stage: str) -> None:
        hurt, mend = self._hurts[stage]
        time.sleep(self._third_seconds)
        try:
            if status := hurt():
                self._found.append(f"{stage}: expected exit status 0, found {status}")
            time.sleep(self._third_seconds)
            mend()
        except (ReplicaError, MissingProgramError) as error:
            self._found.append(f"{stage}: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
