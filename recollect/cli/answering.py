"""The verbs that answer queries. A verb imports its libraries when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from recollect.bulk.settings import PredictSettings
from recollect.core.bundle.label_fields import to_json
from recollect.core.errors import SettingsError
from recollect.core.options import chosen_options
from recollect.core.system.console import print_status
from recollect.service.settings import ServeSettings

if TYPE_CHECKING:
    from recollect.core.answers import Answer

# Number of votes for a label, and of terms of its log-odds, that `predict --explain` prints without `--all-votes`.
_VOTES, _TERMS = 12, 5


def serve(settings: ServeSettings) -> int:
    from recollect.service.process.server import serve as serve_http

    return serve_http(settings)


def predict(settings: PredictSettings) -> list[str] | None:
    if settings.text == "-" or settings.input is not None:
        from recollect.bulk.job import predict_file

        predict_file(settings)
        return None
    return _predict_one(settings)


def _predict_one(settings: PredictSettings) -> list[str]:
    from pydantic_core import to_json

    from recollect.core.search.filters import describe_unknown
    from recollect.model import open_model

    if settings.text is None:
        raise SettingsError("expected a text, or --input; see `recollect predict --help`")
    if settings.vector_column is not None:
        raise SettingsError("--vector-column: expected --input with vectors, found one query")
    if settings.output is not None:
        raise SettingsError("--output: expected --input, or - for the lines of standard input, found one query")
    model = open_model(settings.store, settings.version, settings.verify_key, settings.bundle_cache, live=settings.live)
    options = chosen_options(settings)
    (answer,) = model.answer([settings.text], **options)
    for message in describe_unknown(model.resolve(**options), model.predictor.memory.labels):
        print_status(message)
    if settings.json_:
        return [to_json({"version": model.version, "sequence": model.sequence, **answer.to_dict()}).decode()]
    if answer.truncated:
        print_status(f"the query is longer than the {model.manifest.encoder.max_length} tokens that the encoder reads")
    return [*_lines(answer, settings.all_votes)]


def _lines(answer: Answer, all_votes: bool) -> Iterator[str]:
    for label in answer.labels:
        probability = "" if label.probability is None else f"{label.probability:6.1%}  "
        name = f"  {label.name}" if label.name != label.uid else ""
        fields = f"  {to_json(label.fields)}" if label.fields else ""
        yield f"{probability}{label.score:.4f}  {label.uid}{name}{fields}"
        reasons = label.because or []  # the greatest votes first, and corrections last
        hidden = [] if all_votes else [reason for reason in reasons[_VOTES:] if reason.kind != "correction"]
        for reason in [*reasons[:_VOTES], *reasons[_VOTES + len(hidden) :]]:
            kind = f"{reason.kind} by {reason.by}" if reason.by else reason.kind
            yield f"    {reason.share:.4f}  {kind}  {reason.uid}  {reason.text}"
        if hidden:
            share = sum(reason.share for reason in hidden)
            yield f"    {share:.4f}  {len(hidden):,} more votes; --all-votes prints them"
        terms = label.ranked_by or []  # the greatest first
        for term in terms if all_votes else terms[:_TERMS]:
            value = "" if term.value is None else f"  {term.value:g}"
            yield f"    {term.log_odds:+.4f}  log-odds by {term.feature}{value}"
        if len(terms) > _TERMS and not all_votes:
            more = sum(term.log_odds for term in terms[_TERMS:])
            yield f"    {more:+.4f}  log-odds by {len(terms) - _TERMS} more features; --all-votes prints them"
