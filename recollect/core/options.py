"""Answer options: the options that a caller chooses, their bounds, and the bundle's defaults for all others."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
from jaxtyping import Bool
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)

from recollect.core.bundle.label_fields import MAX_TERM, Language, Value, pair_of, term, to_json
from recollect.core.bundle.manifest import MOST_KEYS, Defaults, Manifest, Order
from recollect.core.errors import QueryError
from recollect.core.texts import UidText, integer_as_uid, require_words

# Maximum number of labels in `allow` and in `deny`.
MAX_FILTER_LABELS = 100_000
# Units of the cost of a request: a query with at most so many bytes costs 1. So many retrieved keys, so many returned
# labels, or so many labels in a filter cost 1 more.
BYTES_PER_UNIT, _KEYS_PER_UNIT, _ANSWERS_PER_UNIT, _LABELS_PER_UNIT = 1_024, 1_000, 250, 1_000
# So many values in `where` cost 1 more.
_VALUES_PER_UNIT = 100
# So many bytes of an answer cost 1 more. Only explanations and large fields of labels have so many.
_ANSWER_BYTES_PER_UNIT = 65_536
# Further cost of each query with a filter, which is searched alone and perhaps several times. On a store of 30,000
# instances, a query with a filter takes up to 5.6 times as long as a query without one.
_FILTER_COST = 5
# Further cost of each query that a cross-encoder reads with its candidates: several times the tokens of a query, in a
# second transformer.
_RERANK_COST = 10
MAX_TOP_K = 1_000
# Maximum number of keys to explain in one request, over all its queries. The explanation of one key may contain several
# labels with their texts.
_MAX_EXPLAINED_KEYS = 2_000
# Maximum number of labels that an assignment considers. The others have probabilities near 0.
MOST_ASSIGNED = 100

# The part of this check that JSON Schema can express: at least one character is neither white space nor a control
# character.
_WORDS = {"minLength": 1, "pattern": r"[^\s\x00-\x1f\x7f-\xa0]"}

Query = Annotated[
    str, AfterValidator(require_words), Field(examples=["turn an object into a JSON string"], json_schema_extra=_WORDS)
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


Share = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(ge=1e-4, le=100)]
TopB = Annotated[int, Field(ge=1, le=MOST_KEYS)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]


def _integers_as_uids(values: object) -> object:
    """The uids that the integers of a list mean. One call for the list: calls for 100,000 texts take long."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        return values
    if not isinstance(values, Collection):
        values = itertools.islice(values, MAX_FILTER_LABELS + 1)  # an iterator may have no end
    return [value if isinstance(value, str) else integer_as_uid(value) for value in values]


# Validation stops at the first wrong uid: a list of a megabyte could otherwise give 500,000 errors and take seconds.
_MANY = Field(max_length=MAX_FILTER_LABELS, fail_fast=True, strict=False)
Uids = Annotated[
    tuple[str, ...],
    _MANY,
    BeforeValidator(_integers_as_uids, json_schema_input_type=Annotated[tuple[str | int, ...], _MANY]),
]


# Maximum number of fields in `where`, of all their values, and of names in `fields`.
_MOST_FIELDS, _MOST_VALUES = 32, 1_000
# Numbers in `where` are smaller. Python does not write integers of thousands of digits.
_LARGEST_NUMBER = 1e300


def _as_where(given: object) -> object:
    """The canonical JSON of a filter by fields, from an object, from its JSON, or from FIELD=VALUE,VALUE.

    None is no filter, as is an object without fields.
    """
    if given is None:
        return None
    if isinstance(given, str):
        name, equals, listed = given.partition("=")
        if given.lstrip().startswith("{"):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"the JSON of an object ({error})") from None
        elif equals:
            given = {name: listed.split(",")}
    if not isinstance(given, Mapping):
        raise ValueError('an object of fields and values, such as {"groups": ["wine"]}')
    where = {name: [*value] if isinstance(value, list | tuple) else [value] for name, value in given.items()}
    if len(where) > _MOST_FIELDS or sum(map(len, where.values())) > _MOST_VALUES:
        raise ValueError(f"at most {_MOST_FIELDS} fields and {_MOST_VALUES:,} values")
    for name, values in where.items():
        if not isinstance(name, str) or not values:
            raise ValueError("at least one value for each field")
        if not all(_is_value(name, value) for value in values):
            raise ValueError(f"texts, finite numbers or booleans of at most {MAX_TERM:,} characters as values")
    pairs = {name: sorted({term(name, value) for value in values}) for name, values in sorted(where.items())}
    return to_json({name: [pair_of(each)[1] for each in found] for name, found in pairs.items()}) or None


def _is_value(name: str, value: object) -> bool:
    """Whether a label can have a value in a field."""
    if isinstance(value, int | float) and not abs(value) < _LARGEST_NUMBER:  # not a number, too
        return False
    return isinstance(value, Value) and len(term(name, value)) <= MAX_TERM


Where = Annotated[str | None, BeforeValidator(_as_where, json_schema_input_type=dict[str, Value | list[Value]] | None)]
FieldNames = Annotated[tuple[str, ...], Field(max_length=_MOST_FIELDS, strict=False)]


class Voting(NamedTuple):
    """How the keys that the searches found vote.

    Attributes:
        lambda_: Weight of instances against labels.
        temperature: Tau of the softmax.
        top_b: Number of keys that vote by their vectors.
        word_weight: The sum of the weights of the keys by words, for a query that has some of them.
        separate: Whether instances and labels have a softmax each, over b keys each, instead of one together.
    """

    lambda_: float
    temperature: float
    top_b: int
    word_weight: float = 0.0
    separate: bool = False


# Whether each row of a ranking stays: a function of the value of an option, the ranking (`ScoredLabels`, best first),
# and the `Labels` of the memory.
Drop = Callable[[Any, Any, Any], Bool[np.ndarray, " row"]]


def _option(
    help_: str,
    default: Any = dataclasses.MISSING,
    may_be_none: bool = True,
    changes_votes: bool = False,
    filters: bool = False,
    drops: Drop | None = None,
) -> Any:
    """Declare an option.

    Args:
        help_: Description in the OpenAPI document and in the help of the command line.
        default: The value of an option that nobody chose, if the defaults of the bundle have no such option.
        may_be_none: Whether a caller may choose None, which means the default.
        changes_votes: Whether the option changes the votes. Probabilities hold only for the bundle's votes.
        filters: Whether the option restricts the labels that may be returned.
        drops: Whether each row of a ranking stays, for an option that drops labels. Other labels take their places.
    """
    if drops is not None and may_be_none and default is not None:
        raise TypeError("an option that drops labels needs the default None, or may_be_none=False")
    metadata = {"help": help_, "may_be_none": may_be_none, "changes_votes": changes_votes, "filters": filters}
    metadata["drops"] = drops
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class AnswerOptions:
    """All options that decide how a query is answered.

    A new option is one more field here, and its effect in `rank.py`. All else derives from the fields: request
    schema, OpenAPI document, keywords of the Python API, flags of `recollect predict`, tasks of bulk answers, and the
    keys of cached answers and of equal requests.
    """

    lambda_: Share = _option(
        "Weight of instances against labels, from 0 to 1; 1 uses instances only", changes_votes=True
    )
    temperature: Temperature = _option("Temperature of the softmax over the retrieved keys", changes_votes=True)
    top_b: TopB = _option("Number of keys to retrieve", changes_votes=True)
    top_k: TopK = _option("Maximum number of labels to return")
    word_weight: Share = _option(
        "Share of words in a score; no effect without a lexical index in the bundle", 0.0, changes_votes=True
    )
    threshold: Share = _option("Minimum score of a returned label", 0.0, may_be_none=False)
    allow: Uids | None = _option("Uids of the only labels to return", None, filters=True)
    deny: Uids = _option("Uids of labels not to return", (), filters=True)
    where: Where = _option(
        "Fields that a returned label has, with the values of which it has at least one; FIELD=VALUE,VALUE or JSON",
        None,
    )
    under: UidText | None = _option("Uid of a label: return only this label and the labels below it", None)
    fields: FieldNames = _option("Names of fields of the labels to return", ())
    language: Language | None = _option("Language of the names of the labels, such as de", None)
    explain: bool = _option("List the terms of each score", False, may_be_none=False)
    order: Order = _option(
        "Order of the labels: score, probability, or macro, which moves labels with few training texts up", "score"
    )
    tail_weight: Share | None = _option(
        "With the order macro: how far labels with few training texts move up, from 0 (probability) to 1", None
    )
    min_probability: Share = _option("Minimum probability of a returned label", 0.0)
    assign: bool = _option(
        "Return the first labels, as many as give the highest expected F1, instead of top_k labels",
        False,
        may_be_none=False,
    )

    rerank: bool = _option(
        "Let a cross-encoder read the query together with its best labels; needs a version with one", False
    )

    @property
    def voting(self) -> Voting:
        return Voting(self.lambda_, self.temperature, self.top_b, self.word_weight)

    @functools.cached_property
    def drops(self) -> list[Callable[[Any, Any], Bool[np.ndarray, " row"]]]:
        """The effects of the chosen options that drop labels: which rows of a ranking, best first, stay."""
        chosen = {name: value for name in _DROPS if (value := getattr(self, name)) != _NOT_CHOSEN[name]}
        return [functools.partial(_DROPS[name], value) for name, value in chosen.items()]

    @property
    def ranked_labels(self) -> int:
        """Number of labels to rank: the probability of the first one depends on the second.

        An assignment and the order macro choose among more.
        """
        return max(self.top_k + 1, MOST_ASSIGNED if self.assign or self.order == "macro" else 0)

    @property
    def by_probability(self) -> bool:
        """Whether probabilities order the labels, so that a ranker computes their log-odds if the bundle has one."""
        return self.order != "score"

    @functools.cached_property
    def filter_labels(self) -> int:
        """The number of labels in all filters."""
        return sum(len(getattr(self, name) or ()) for name in _FILTERS)

    @functools.cached_property
    def filtered(self) -> bool:
        return self.allow is not None or self.filter_labels > 0 or self.by_fields or bool(self.drops)

    @property
    def by_fields(self) -> bool:
        """Whether the fields of labels decide which labels may be returned. Such a filter can take long at first."""
        return self.where is not None or self.under is not None

    @functools.cached_property
    def filter_values(self) -> int:
        """The number of values in `where`."""
        return sum(map(len, json.loads(self.where).values())) if self.where else 0

    @property
    def needs_probabilities(self) -> str | None:
        """The name of an option that needs probabilities; None if there is none."""
        if self.assign:
            return "assign"
        if self.min_probability:
            return "min_probability"
        return "order" if self.by_probability else None

    def uses_votes_of(self, defaults: Defaults) -> bool:
        """Whether the scores are those of a bundle's defaults, for which its probabilities were measured."""
        return all(getattr(self, name) == getattr(defaults, name) for name in _VOTES)


_OPTIONS = dataclasses.fields(AnswerOptions)
_FILTERS = [option.name for option in _OPTIONS if option.metadata["filters"]]
_DROPS: dict[str, Drop] = {option.name: drop for option in _OPTIONS if (drop := option.metadata["drops"])}
_VOTES = [option.name for option in _OPTIONS if option.metadata["changes_votes"]]
_FROM_BUNDLE = [option.name for option in _OPTIONS if option.name in Defaults.model_fields]
_NOT_CHOSEN = {option.name: None if option.metadata["may_be_none"] else option.default for option in _OPTIONS}

_Model = TypeVar("_Model", bound=BaseModel)


def with_options(model: type[_Model]) -> type[_Model]:
    """Add the options that a caller can choose to the fields of a model. Their alias is their name in JSON.

    None stands for an option that the caller did not choose.
    """
    types, fields = get_type_hints(AnswerOptions, include_extras=True), dict[str, Any]()
    for option in _OPTIONS:
        name, usual, description = option.name, _NOT_CHOSEN[option.name], option.metadata["help"]
        if name in _FROM_BUNDLE:
            description += " (default: from the bundle)"
        type_ = types[name] | None if usual is None else types[name]
        fields[name] = (type_, Field(usual, alias=name.rstrip("_"), description=description))
    # A copy of the class with more fields; its name, module and documentation stay.
    return create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields)


@with_options
class ChosenOptions(BaseModel):
    """The options that a caller of the HTTP interface or of the Python API chose."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def schemas_of_defaults() -> dict[str, dict[str, Any]]:
    """For each option with a default in the bundle, by its name in JSON: its JSON Schema.

    `changes_votes` tells whether the option changes the votes.
    """
    types = get_type_hints(AnswerOptions, include_extras=True)
    return {
        option.name.rstrip("_"): {
            **TypeAdapter(types[option.name]).json_schema(),
            "description": option.metadata["help"],
            "changes_votes": option.metadata["changes_votes"],
        }
        for option in _OPTIONS
        if option.name in _FROM_BUNDLE
    }


def chosen_options(model: BaseModel) -> dict[str, Any]:
    """The options that a model with `with_options` contains, by name, without the options that were not chosen."""
    given = ((name, getattr(model, name)) for name in _NOT_CHOSEN if name in model.model_fields_set)
    return {name: value for name, value in given if value != _NOT_CHOSEN[name]}


def resolve_options(defaults: Defaults, **chosen: Any) -> AnswerOptions:
    """Complete the options that a caller chose with the defaults of the bundle; None means "not chosen"."""
    given = {name: value for name, value in chosen.items() if value is not None}
    usual = {name: getattr(defaults, name) for name in _FROM_BUNDLE}
    if given.get("assign"):
        usual["top_k"] = MOST_ASSIGNED
    options = AnswerOptions(**usual | given)
    if "order" not in given:
        by_probability = options.by_probability or given.get("rerank", False)
        usual_order = "probability" if defaults.order == "score" else defaults.order
        order = usual_order if by_probability and options.uses_votes_of(defaults) else "score"
        options = dataclasses.replace(options, order=order)
    if options.order == "score" and "rerank" not in given:  # the order by score has no place for a cross-encoder
        options = dataclasses.replace(options, rerank=False)
    return options


def checked_options(manifest: Manifest, **chosen: Any) -> AnswerOptions:
    """Complete the options that a caller chose, and refuse those that need probabilities that the version lacks."""
    defaults = manifest.defaults
    options = resolve_options(defaults, **chosen)
    if options.rerank and not manifest.has_cross_encoder:
        raise QueryError(
            f"rerank: version {manifest.version} has no cross-encoder; leave out rerank, or build a version after "
            "`recollect rank --cross-encoder`"
        )
    if options.rerank and options.order == "score":
        if chosen.get("order") == "score":
            raise QueryError("rerank: needs the order probability or macro, found score; leave out rerank or order")
        _require_usual_votes("rerank", options, defaults)
    name = options.needs_probabilities
    if chosen.get("tail_weight") is not None and options.order != "macro":
        raise QueryError(f"tail_weight: needs the order macro, found {options.order}; choose macro, or leave it out")
    if name is None or (name == "order" and chosen.get("order") is None):  # a ranker orders without probabilities, too
        return options
    if manifest.probabilities is None:
        raise QueryError(
            f"{name}: version {manifest.version} gives no probabilities; leave out {name}, or build a version from a "
            "run with held-out texts"
        )
    _require_usual_votes(name, options, defaults)
    if manifest.has_ranker and not options.by_probability:  # the probabilities are those of the ranker
        if chosen.get("order") is not None:
            raise QueryError(f"{name}: needs the order probability, found score; leave out order or {name}")
        rerank = resolve_options(defaults, **{**chosen, "order": "probability"}).rerank
        return dataclasses.replace(options, order="probability", rerank=rerank)
    if options.order == "macro" and options.tail_weight is None:
        raise QueryError(
            f"order: version {manifest.version} has no tail_weight, because no held-out texts chose one; give "
            "tail_weight from 0 to 1, or build a version again"
        )
    return options


def _require_usual_votes(name: str, options: AnswerOptions, defaults: Defaults) -> None:
    """Refuse an option that needs probabilities, with votes for which the bundle has none."""
    for other in _VOTES:
        found, usual = getattr(options, other), getattr(defaults, other)
        if found != usual:
            other = other.rstrip("_")
            raise QueryError(
                f"{name}: probabilities hold only for the bundle's {other} {usual:g}, found {found:g}; leave out "
                f"{name} or {other}"
            )


def require_explainable(options: AnswerOptions, queries: int) -> None:
    """Refuse to explain too many keys in one request."""
    if options.explain and queries * options.top_b > _MAX_EXPLAINED_KEYS:
        raise QueryError(
            f"explain: expected at most {_MAX_EXPLAINED_KEYS:,} keys to explain, found {queries:,} x top_b "
            f"{options.top_b:,}; reduce top_b or the number of queries"
        )


def request_cost(sizes: Sequence[int], options: AnswerOptions) -> int:
    """The cost of a request, in units of one normal query.

    Each query costs 1 for every 1,024 bytes (UTF-8) or part of them, plus 1 for every 1,000 keys of `top_b`, plus 1 for
    every 250 labels of `top_k`, plus 5 with a filter, plus 10 with a cross-encoder. An explanation doubles the keys.
    The request costs 1 more for every 1,000 labels in its filters, and for every 100 values in `where`.
    """
    texts = sum(-(-size // BYTES_PER_UNIT) for size in sizes)
    keys = options.top_b * (2 if options.explain else 1)
    per_query = keys // _KEYS_PER_UNIT + options.top_k // _ANSWERS_PER_UNIT + (_FILTER_COST if options.filtered else 0)
    per_query += _RERANK_COST if options.rerank else 0
    filters = options.filter_labels // _LABELS_PER_UNIT + options.filter_values // _VALUES_PER_UNIT
    return texts + len(sizes) * per_query + filters


def answer_cost(size_bytes: int) -> int:
    """The further cost of a request whose answers have a number of bytes."""
    return size_bytes // _ANSWER_BYTES_PER_UNIT


def max_request_cost(max_batch: int, max_query_bytes: int) -> int:
    """The cost of the most expensive request that the limits allow."""
    keys, answers = 2 * MOST_KEYS // _KEYS_PER_UNIT, MAX_TOP_K // _ANSWERS_PER_UNIT
    per_query = math.ceil(max_query_bytes / BYTES_PER_UNIT) + keys + answers + _FILTER_COST + _RERANK_COST
    filters = 2 * MAX_FILTER_LABELS // _LABELS_PER_UNIT + _MOST_VALUES // _VALUES_PER_UNIT
    return max_batch * per_query + filters


def group_by_options(
    requests: Sequence[tuple[Sequence[object], AnswerOptions]],
) -> Iterator[tuple[AnswerOptions, list[int]]]:
    """Group the rows of queries with equal options; a group has only texts or only vectors, as a request has.

    Requests with filters are not grouped: filters are long to compare.
    """
    groups: dict[object, tuple[AnswerOptions, list[int]]] = {}
    row = 0
    for number, (queries, options) in enumerate(requests):
        key = number if options.filtered else (type(queries[0]) if queries else None, options)
        _, rows = groups.setdefault(key, (options, []))
        rows += range(row, row + len(queries))
        row += len(queries)
    yield from groups.values()
