"""How a version comes into service: room for it, its files checked, its answers checked, and its pages warm."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from service.options import resolve_options
from service.predictor.golden import check_golden
from service.predictor.predictor import Predictor
from service.settings import Device
from service.store.store import Store
from service.versions.memory_check import require_headroom
from service.versions.throttle import leisurely, rest

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Opener:
    """A store whose versions are opened alike.

    Attributes:
        store: Holds the versions.
        threads: Of each predictor's encoder and indexes.
        device: Where to encode and search.
        workers: Processes that open it, all at once when they swap.
    """

    store: Store
    threads: int
    device: Device = "cpu"
    workers: int = 1

    def open(self, version: str, recorded: Sequence[str] = ()) -> Predictor:
        """Open a version that may be served.

        Args:
            version: Its name.
            recorded: Queries that were asked of late, to answer before users ask.

        Raises:
            StoreError: If the store has no such version.
            HeadroomError: If too little memory is free.
            BundleError: If it is broken, or not signed as the store wants it.
            WrongAnswersError: If it answers otherwise than it was built to.
        """
        require_headroom(self.store.manifest(version), self.workers if leisurely() else 1)
        predictor = Predictor.open(self.store.open(version), self.threads, self.device)
        check_golden(predictor)
        for query in recorded:
            with contextlib.suppress(Exception):  # who asks it again is told; here it only warms
                predictor.predict([query], resolve_options(predictor.defaults))
            rest()
        for why in predictor.on_cpu if self.device == "cuda" else []:
            log.warning("on_cpu", version=version, why=why)
        return predictor
