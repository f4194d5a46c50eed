"""What a stage came to: rates, latencies, statuses, versions, and errors, expected or not."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.arrivals import Exchange, milliseconds
from loadtests.stages import Stage

# A request sent later than this was kept waiting by a lack of connections, not by the clock.
_LATE_SECONDS = 0.05
_NEVER_SENT = "never sent"


@dataclass(frozen=True)
class Summary:
    """One stage's figures; latencies are of answers with status 200, from when they were due.

    Attributes:
        stage: Its name.
        asked_qps: Requests that were due a second.
        answered_qps: Answers with status 200 a second.
        late: Requests that were sent late, as all connections were at work.
        statuses: Answers by status.
        versions: Answers by the version that they name.
        errors: By kind, those that the stage allows.
        unexpected: By kind, all others.
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
    """Sum a stage up.

    Args:
        stage: Which.
        exchanges: All that was sent.
        unsent: How many never were; an error wherever the load was one that can be served.
        faults: What went wrong beside the requests.
        rate: Requests that were due a second.
        seconds: How long.
    """
    errors = Counter([*(exchange.error for exchange in exchanges if exchange.error), *faults])
    allowed = stage.allowed | ({_NEVER_SENT} if stage.overloads else set())
    errors += Counter({_NEVER_SENT: unsent})
    answered = [exchange for exchange in exchanges if exchange.status]
    # Under overload the last answers come long after the last request was due.
    lasted = max([seconds, *(exchange.nth / rate + exchange.seconds for exchange in answered)])
    p50, p95, p99, p999 = milliseconds(exchanges, 50, 95, 99, 99.9)
    return Summary(
        stage=stage.name,
        asked_qps=round(rate, 1),
        answered_qps=round(sum(exchange.status == 200 for exchange in exchanges) / lasted, 1),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        p999_ms=p999,
        late=sum(exchange.late_seconds > _LATE_SECONDS for exchange in exchanges),
        statuses=_counted(str(exchange.status) for exchange in answered),
        versions=_counted(exchange.version for exchange in answered if exchange.status == 200),
        errors={kind: count for kind, count in errors.items() if kind in allowed},
        unexpected={kind: count for kind, count in errors.items() if kind not in allowed},
    )


def failed(summaries: Sequence[Summary]) -> bool:
    """Whether anything happened that no stage allows; nothing asked proves nothing, so it fails too."""
    return not summaries or any(summary.unexpected or not summary.statuses for summary in summaries)


def as_json(summaries: Sequence[Summary]) -> str:
    stages = [dataclasses.asdict(summary) for summary in summaries]
    return json.dumps({"failed": failed(summaries), "stages": stages})


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


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
