"""The end of the TLS certificate that a process uses: a metric, and warnings in the last 14 days."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import structlog
from cryptography import x509

from recollect.core.system.background import BackgroundThread
from recollect.service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

_WARNING_DAYS = 14
_CHECK_SECONDS = 3_600.0


@contextlib.contextmanager
def watching_certificate(path: Path, metrics: Metrics) -> Iterator[None]:
    """Set the metric, and warn at once and once a day from 14 days before the first end in the certificate's chain.

    The file is read once, because the service reads it only at the start.
    """
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
        end = min(certificate.not_valid_after_utc for certificate in certificates)
    except (OSError, ValueError) as error:  # OpenSSL has accepted the file
        log.warning("certificate_end_unknown", path=str(path), why=str(error))
        yield
        return
    metrics.certificate_end.set(end.timestamp())
    warned: set[int] = set()

    def check() -> None:
        days = (end - datetime.now(UTC)).days
        if days < _WARNING_DAYS and days not in warned:
            warned.add(days)
            log.warning(
                "certificate_ends",
                path=str(path),
                end=end.isoformat(),
                days=days,
                advice="renew it, and restart the replicas one after the other",
            )

    thread = BackgroundThread("certificate", check, _CHECK_SECONDS, "certificate_not_checked")
    thread.start()
    try:
        yield
    finally:
        thread.stop()
