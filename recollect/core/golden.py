"""Golden queries: a bundle contains these queries with the labels that its answers must contain.

The labels of golden queries come from exact search with the trained encoder, without reduced precision and approximate
indexes. Golden queries therefore check the tokenizer, the encoder, the indexes, the votes and the scoring together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from recollect.core.errors import BundleError, WrongAnswersError
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor

GOLDEN = "golden.json"
# Name of a check in the manifest. Its lower bound is the minimum fraction of golden labels that the answers must
# contain.
GOLDEN_CHECK = "golden labels answered"


class GoldenQuery(BaseModel):
    """A golden query and the uids of its best labels, in order of falling score."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    labels: list[str] = Field(min_length=1)


_QUERIES = TypeAdapter(list[GoldenQuery])


def write_golden(folder: Path, queries: list[GoldenQuery]) -> None:
    (folder / GOLDEN).write_bytes(_QUERIES.dump_json(queries, indent=1) + b"\n")


def read_golden(path: Path) -> list[GoldenQuery]:
    try:
        return _QUERIES.validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        found = problem["msg"] + (" at " + ".".join(map(str, problem["loc"])) if problem["loc"] else "")
        raise BundleError(
            f"{path}: expected golden queries with their labels, found: {found}; build the bundle again"
        ) from None


def check_golden(predictor: Predictor, pause: Callable[[], None] | None = None) -> float:
    """Answer the golden queries of a bundle, and return the fraction of golden labels that the answers contain.

    Raises:
        BundleError: If the golden queries cannot be read.
        WrongAnswersError: If the fraction is less than the bound in the manifest.
    """
    bundle, checks = predictor.bundle, predictor.manifest.checks
    share = agreement(predictor, bundle.components.open(read_golden, GOLDEN), pause)
    minimum = {check.name: check.least for check in checks}.get(GOLDEN_CHECK) or 0.0
    if share < minimum:
        raise WrongAnswersError(
            f"{bundle.folder / GOLDEN}: expected at least {minimum:.1%} of its labels among the answers, "
            f"found {share:.1%}; build the bundle again"
        )
    return share


def agreement(predictor: Predictor, golden: list[GoldenQuery], pause: Callable[[], None] | None = None) -> float:
    """The fraction of all golden labels that the answers contain; 1 if the bundle has no golden queries.

    The memory of the bundle answers, because live entries may remove or change golden labels.
    """
    answered = 0
    for query in golden:
        options = resolve_options(predictor.defaults, top_k=len(query.labels))
        vector = predictor.encoder.encode_known(query.query)
        (answer,) = predictor.answer(vector, options, memory=predictor.bundle_memory)
        answered += len({*query.labels} & {label.uid for label in answer.labels})
        if pause is not None:
            pause()
    return answered / sum(len(query.labels) for query in golden) if golden else 1.0
