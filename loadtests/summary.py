"""Summary of a stage: rates, latencies, statuses, versions, and expected and unexpected errors."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.load import Exchange, latency_percentiles
from loadtests.stages import Stage

# A request counts as late if it was sent more than this long after it was due.
_LATE_SECONDS = 0.05
_NEVER_SENT = "never sent"


@dataclass(frozen=True)
class Summary:
    """Figures of one stage. Only answers with status 200 have a latency. It counts from the time the request was due.

    Attributes:
        stage: Name of the stage.
        asked_qps: Requests per second that were due.
        answered_qps: Answers with status 200 per second.
        late: Requests that were sent late because all connections were busy.
        statuses: Number of answers for each status.
        versions: Number of answers for each version.
        errors: Number of errors of each kind that this stage allows.
        unexpected: Number of errors of each kind that this stage does not allow.
    """

    stage: str
    asked_qps: float
    answered_qps: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    late: int
    statuses: dict[str, int]
    versions: dict[str, int]
    errors: dict[str, int]
    unexpected: dict[str, int]


def summarise(
    stage: Stage, exchanges: list[Exchange], unsent: int, faults: list[str], rate: float, seconds: float
) -> Summary:
    """Summarise a stage.

    Args:
        stage: The stage.
        exchanges: All exchanges of the stage.
        unsent: Number of requests that were never sent. They are an error unless the stage overloads the service.
        faults: Errors that do not come from a request, such as a failed activation.
        rate: Requests per second that were due.
        seconds: Duration of the load.
    """
    errors = Counter([*(exchange.error for exchange in exchanges if exchange.error), *faults])
    allowed = stage.allowed | ({_NEVER_SENT} if stage.overloads else set())
    errors += Counter({_NEVER_SENT: unsent})
    answered = [exchange for exchange in exchanges if exchange.status]
    # Under overload, the last answers arrive long after the last request was due.
    duration = max([seconds, *(exchange.number / rate + exchange.seconds for exchange in answered)])
    p50, p95, p99, p999 = latency_percentiles(exchanges, 50, 95, 99, 99.9)
    return Summary(
        stage=stage.name,
        asked_qps=round(rate, 1),
        answered_qps=round(sum(exchange.status == 200 for exchange in exchanges) / duration, 1),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        p999_ms=p999,
        late=sum(exchange.late_seconds > _LATE_SECONDS for exchange in exchanges),
        statuses=_count(str(exchange.status) for exchange in answered),
        versions=_count(exchange.version for exchange in answered if exchange.status == 200),
        errors={kind: count for kind, count in errors.items() if kind in allowed},
        unexpected={kind: count for kind, count in errors.items() if kind not in allowed},
    )


def any_failed(summaries: Sequence[Summary]) -> bool:
    """Whether any stage has an unexpected error or no answer at all. A test without a stage fails too."""
    return not summaries or any(summary.unexpected or not summary.statuses for summary in summaries)


def as_json(summaries: Sequence[Summary]) -> str:
    stages = [dataclasses.asdict(summary) for summary in summaries]
    return json.dumps({"failed": any_failed(summaries), "stages": stages})


def as_table(summaries: Sequence[Summary]) -> str:
    lines = [f"{'stage':15}{'asked/s':>9}{'200/s':>9}{'p50':>9}{'p95':>9}{'p99':>9}{'p99.9 ms':>10}{'late':>7}  errors"]
    for each in summaries:
        figures = (each.asked_qps, each.answered_qps, each.p50_ms, each.p95_ms, each.p99_ms)
        errors = [f"{count} {kind} (expected)" for kind, count in each.errors.items()]
        errors += [f"{count} {kind} (UNEXPECTED)" for kind, count in each.unexpected.items()]
        columns = "".join(f"{figure:9.1f}" for figure in figures)
        versions = f"{len(each.versions)} versions"
        lines.append(f"{each.stage:15}{columns}{each.p999_ms:10.1f}{each.late:7}  {', '.join(errors) or versions}")
    return "\n".join(lines)


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
