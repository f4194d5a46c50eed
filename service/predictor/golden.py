"""Golden queries: what a bundle must answer, kept inside it.

Each names the labels that exact search over the trained encoder's own vectors gives, whatever precision and index the
bundle serves with. So they hold the whole road at once: tokens, encoder, index, values, scoring.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.errors import BundleError, WrongAnswersError
from service.options import resolve_options
from service.predictor.predictor import Predictor
from service.versions.throttle import rest

GOLDEN = "golden.json"
# The check in a manifest that says what share of them the bundle must answer.
GOLDEN_CHECK = "golden labels answered"


class GoldenQuery(BaseModel):
    """A query and the uids of its best labels, the best first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    labels: list[str] = Field(min_length=1)


_QUERIES = TypeAdapter(list[GoldenQuery])


def write_golden(folder: Path, queries: list[GoldenQuery]) -> None:
    (folder / GOLDEN).write_bytes(_QUERIES.dump_json(queries, indent=1) + b"\n")


def read_golden(folder: Path) -> list[GoldenQuery]:
    """Read a bundle's golden queries.

    Raises:
        BundleError: If the file holds anything else.
    """
    try:
        return _QUERIES.validate_json((folder / GOLDEN).read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        found = problem["msg"] + (" at " + ".".join(map(str, problem["loc"])) if problem["loc"] else "")
        raise BundleError(
            f"{folder / GOLDEN}: expected queries with their labels, found: {found}; build the bundle again"
        ) from None


def check_golden(predictor: Predictor) -> float:
    """The share of a bundle's golden labels that it answers with.

    Raises:
        BundleError: If the golden queries cannot be read.
        WrongAnswersError: If the share is less than was asked for when the bundle was built.
    """
    folder, checks = predictor.bundle.folder, predictor.manifest.checks
    share = agreement(predictor, read_golden(folder))
    least = {each.name: each.least for each in checks}.get(GOLDEN_CHECK) or 0.0
    if share < least:
        raise WrongAnswersError(
            f"{folder / GOLDEN}: expected at least {least:.1%} of its labels among the answers, found {share:.1%}; "
            "build the bundle again"
        )
    return share


def agreement(predictor: Predictor, golden: list[GoldenQuery]) -> float:
    """Share of the golden labels that the bundle answers with, over all golden queries; all of none is 1."""
    kept = 0
    for each in golden:
        (answer,) = predictor.predict([each.query], resolve_options(predictor.defaults, top_k=len(each.labels))).answers
        kept += len({*each.labels} & {label.uid for label in answer.labels})
        rest()
    return kept / sum(len(each.labels) for each in golden) if golden else 1.0
