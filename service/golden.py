"""Golden queries: what a bundle must answer, kept inside it.

Each names the labels that exact search over the trained encoder's own vectors gives, whatever precision and index the
bundle serves with. So they hold the whole road at once: tokens, encoder, index, values, scoring.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.errors import BundleError
from service.predictor import Predictor

GOLDEN = "golden.json"


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
        raise BundleError(f"{folder / GOLDEN}: {problem['loc']}: {problem['msg']}; build the bundle again") from None


def agreement(predictor: Predictor, golden: list[GoldenQuery]) -> float:
    """Share of the golden labels that the bundle answers with, over all golden queries."""
    most = max(len(each.labels) for each in golden)
    answers = predictor.predict([each.query for each in golden], predictor.options(top_k=most)).answers
    kept = sum(
        len({*each.labels} & {label.uid for label in answer.labels[: len(each.labels)]})
        for each, answer in zip(golden, answers, strict=True)
    )
    return kept / sum(len(each.labels) for each in golden)
