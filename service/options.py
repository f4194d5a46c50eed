"""Answer options: the options that a caller chooses, their bounds, and the bundle's defaults for all others.

The HTTP service, the answer cache, the command line and the Python API share these options.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from recollect.service.bundle.manifest import MOST_KEYS, Defaults, Order
from recollect.service.errors import QueryError

# Maximum number of labels in `allow` and in `deny`.
MAX_FILTER_LABELS = 100_000
# Units of the cost of a request: a query with at most so many bytes costs 1. So many retrieved keys, so many returned
# labels, or so many labels in a filter cost 1 more.
_BYTES_PER_UNIT, _KEYS_PER_UNIT, _ANSWERS_PER_UNIT, _LABELS_PER_UNIT = 1_024, 1_000, 250, 1_000
# Further cost of each query with a filter, which is searched alone and perhaps several times. On a store of 30,000
# instances, a query with a filter takes up to 5.6 times as long as a query without one.
_FILTER_COST = 5
MAX_TOP_K = 1_000
# Maximum number of labels that an assignment considers. The others have probabilities near 0.
MOST_ASSIGNED = 100


# Characters that no uid may contain, as a regular expression: uids are parts of paths and of lines.
CONTROL_CHARACTERS = r"[\x00-\x1f\x7f]"
# Unicode categories of white space, control characters and format characters.
_BLANK = ("Cc", "Cf", "Zs", "Zl", "Zp")
# Number of characters that are checked together.
_PIECE = 1_000


def require_words(text: str, kind: str = "query") -> str:
    """Refuse a text that is not valid Unicode, or has only white space, control characters and format characters.

    Raises:
        ValueError: With the kind of the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {kind} contains half of a surrogate pair, which is not a character; remove it") from None
    rest = text.strip()  # fast: a query of a megabyte of spaces must not take long
    if rest[:1].isalnum():
        return text
    # Sets, because the rest can be a megabyte of format characters.
    pieces = (set(rest[start : start + _PIECE]) for start in range(0, len(rest), _PIECE))
    if all(unicodedata.category(character) in _BLANK for piece in pieces for character in piece):
        raise ValueError(f"the {kind} is empty; send some words")
    return text


def integer_as_uid(value: object) -> object:
    """The uid that an integer means: its decimal digits. Other values stay unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return value
    return str(int(value))


UidText = Annotated[str, BeforeValidator(integer_as_uid, json_schema_input_type=str | int)]


# The part of this check that JSON Schema can express: at least one character is neither white space nor a control
# character.
_WORDS = {"minLength": 1, "pattern": r"[^\s\x00-\x1f\x7f-\xa0]"}

Query = Annotated[
    str,
    AfterValidator(require_words),
    Field(examples=["turn an object into a JSON string"], json_schema_extra=_WORDS),
]
_QUERY = TypeAdapter(Query)


def check_query(query: object) -> str:
    """Check a query that does not come over HTTP.

    Raises:
        QueryError: If the query is not a text, or is empty.
    """
    if not isinstance(query, str):
        raise QueryError(f"the query must be a text, found {query!r:.40}")
    try:
        return _QUERY.validate_python(query, strict=True)
    except ValidationError as error:
        raise QueryError(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation error, without the words that pydantic adds."""
    return error.errors()[0]["msg"].removeprefix("Value error, ").removeprefix("Input should be ")


Lambda = Annotated[float, Field(ge=0, le=1, description="weight of instances against labels; 1 uses instances only")]
Temperature = Annotated[float, Field(ge=1e-4, le=100, description="tau of the softmax over the retrieved keys")]
TopB = Annotated[int, Field(ge=1, le=MOST_KEYS, description="number of keys to retrieve")]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K, description="maximum number of labels to return")]
WordWeight = Annotated[
    float, Field(ge=0, le=1, description="share of words in a score; no effect without a lexical index in the bundle")
]
Threshold = Annotated[float, Field(ge=0, le=1, description="minimum score of a returned label")]
MinProbability = Annotated[float, Field(ge=0, le=1, description="minimum probability of a returned label")]


@dataclass(frozen=True)
class AnswerOptions:
    """All options that decide how a query is answered.

    Attributes:
        lambda_: Weight of instances against labels, from 0 (labels only) to 1 (instances only).
        temperature: Tau of the softmax over the retrieved keys.
        top_b: Number of keys to retrieve.
        top_k: Maximum number of labels to return.
        word_weight: Share of the votes by words in a score.
        threshold: Minimum score of a returned label.
        allow: Uids of the only labels that may be returned; None allows all.
        deny: Uids of labels that are never returned.
        explain: Whether to list the terms of each score.
        order: Whether the labels are in order of score or of probability.
        min_probability: Minimum probability of a returned label.
        assign: Whether to return the set of labels with the highest expected F1.
    """

    lambda_: float
    temperature: float
    top_b: int
    top_k: int
    word_weight: float = 0.0
    threshold: float = 0.0
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    explain: bool = False
    order: Order = "score"
    min_probability: float = 0.0
    assign: bool = False

    @property
    def filtered(self) -> bool:
        return self.allow is not None or bool(self.deny)

    @property
    def needs_probabilities(self) -> str | None:
        """The name of an option that needs probabilities; None if there is none."""
        if self.assign:
            return "assign"
        if self.min_probability:
            return "min_probability"
        return "order" if self.order == "probability" else None

    def uses_votes_of(self, defaults: Defaults) -> bool:
        """Whether the scores are those of a bundle's defaults, for which its probabilities were measured."""
        votes = self.lambda_, self.temperature, self.top_b, self.word_weight
        return votes == (defaults.lambda_, defaults.temperature, defaults.top_b, defaults.word_weight)


def resolve_options(
    defaults: Defaults,
    *,
    lambda_: float | None = None,
    temperature: float | None = None,
    top_b: int | None = None,
    top_k: int | None = None,
    word_weight: float | None = None,
    threshold: float = 0.0,
    allow: Iterable[str] | None = None,
    deny: Iterable[str] | None = None,
    explain: bool = False,
    order: Order | None = None,
    min_probability: float | None = None,
    assign: bool = False,
) -> AnswerOptions:
    """Complete the options that a caller chose with the bundle's defaults; None means "not chosen"."""
    options = AnswerOptions(
        lambda_=defaults.lambda_ if lambda_ is None else lambda_,
        temperature=defaults.temperature if temperature is None else temperature,
        top_b=defaults.top_b if top_b is None else top_b,
        top_k=(MOST_ASSIGNED if assign else defaults.top_k) if top_k is None else top_k,
        word_weight=defaults.word_weight if word_weight is None else word_weight,
        threshold=threshold,
        allow=None if allow is None else tuple(allow),
        deny=() if deny is None else tuple(deny),
        explain=explain,
        order=order or "score",
        min_probability=min_probability or 0.0,
        assign=assign,
    )
    if order is None and defaults.order == "probability" and options.uses_votes_of(defaults):
        return dataclasses.replace(options, order="probability")
    return options


def require_probabilities(options: AnswerOptions, defaults: Defaults, version: str, available: bool) -> None:
    """Refuse options that need probabilities where there are none.

    Args:
        options: The options of a request.
        defaults: The defaults of the version that answers.
        version: The version, for error messages.
        available: Whether the version gives probabilities.

    Raises:
        QueryError: With the name of the option.
    """
    name = options.needs_probabilities
    if name is None:
        return
    if not available:
        raise QueryError(
            f"{name}: version {version} gives no probabilities; leave out {name}, or build a version from a run with "
            "held-out texts"
        )
    votes = {
        "lambda": (options.lambda_, defaults.lambda_),
        "temperature": (options.temperature, defaults.temperature),
        "top_b": (options.top_b, defaults.top_b),
        "word_weight": (options.word_weight, defaults.word_weight),
    }
    for other, (found, usual) in votes.items():
        if found != usual:
            raise QueryError(
                f"{name}: probabilities hold only for the bundle's {other} {usual:g}, found {found:g}; leave out "
                f"{name} or {other}"
            )
    if options.order != defaults.order == "probability":
        raise QueryError(f"{name}: needs the order probability, found score; leave out order or {name}")


def request_cost(queries: Sequence[str], options: AnswerOptions) -> int:
    """The cost of a request, in units of one normal query.

    Each query costs 1 for every 1,024 bytes or part of them, plus 1 for every 1,000 keys of `top_b`, plus 1 for every
    250 labels of `top_k`, plus 5 with a filter. An explanation doubles the keys. The request costs 1 more for every
    1,000 labels in its filters.
    """
    texts = sum(math.ceil(len(query.encode()) / _BYTES_PER_UNIT) for query in queries)
    keys = options.top_b * (2 if options.explain else 1)
    labels = len(options.allow or ()) + len(options.deny)
    per_query = keys // _KEYS_PER_UNIT + options.top_k // _ANSWERS_PER_UNIT + (_FILTER_COST if options.filtered else 0)
    return texts + len(queries) * per_query + labels // _LABELS_PER_UNIT


def max_request_cost(max_batch: int, max_query_bytes: int) -> int:
    """The cost of the most expensive request that the limits allow."""
    keys, answers = 2 * MOST_KEYS // _KEYS_PER_UNIT, MAX_TOP_K // _ANSWERS_PER_UNIT
    per_query = math.ceil(max_query_bytes / _BYTES_PER_UNIT) + keys + answers + _FILTER_COST
    return max_batch * per_query + 2 * MAX_FILTER_LABELS // _LABELS_PER_UNIT


def group_by_options(
    requests: Sequence[tuple[Sequence[str], AnswerOptions]],
) -> Iterator[tuple[AnswerOptions, list[int]]]:
    """Group the rows of queries with equal options.

    Requests with filters are not grouped: filters are long to compare.
    """
    groups: dict[object, tuple[AnswerOptions, list[int]]] = {}
    row = 0
    for number, (queries, options) in enumerate(requests):
        _, rows = groups.setdefault(number if options.filtered else options, (options, []))
        rows += range(row, row + len(queries))
        row += len(queries)
    yield from groups.values()
