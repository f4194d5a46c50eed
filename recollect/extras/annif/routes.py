"""Annif's REST API (version 1): Annif's backend `http` asks Recollect, and programs that index documents teach it.

There is one project, `recollect`. The uids of the labels are the URIs of the subjects. A suggestion's score is the
probability of the label if the bundle has probabilities, otherwise the label's score. A learned document becomes an
instance of the live memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote_plus

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field, RootModel, ValidationError

from recollect.core.answers import ScoredLabel
from recollect.core.bundle.label_fields import Language
from recollect.core.errors import ChangeError, QueryError
from recollect.core.options import MAX_TOP_K, check_query
from recollect.core.tables.entries import Entry
from recollect.core.tables.snapshot import Snapshot
from recollect.core.tables.tables import Labels
from recollect.core.words.terms import MAX_CHARACTERS
from recollect.edits import changes
from recollect.edits.changes import (
    MAX_INSTANCE_LABELS,
    Encode,
    NewInstance,
    NewLabel,
    Text,
    Uid,
)
from recollect.service.http.json_route import invalid, parse_body
from recollect.service.http.memory_routes import MAX_ROWS, MemoryRoutes
from recollect.service.http.problems import ProblemError
from recollect.service.serving.answering import Answering, Caller
from recollect.service.versions.open_versions import OpenVersions

PROJECT = "recollect"
# Maximum number of documents in a request, as in Annif.
_MAX_DOCUMENTS = 32
# Maximum number of fields in a form. Annif sends the text, options, and the metadata of a document.
_MAX_FIELDS = 1_000
# The most that is decoded of a field: each character of the longest text as four bytes, and each byte as %XX.
_MAX_ENCODED = 12 * MAX_CHARACTERS
_MAX_ENCODED_NAME = 100
# Number of labels whose names state the languages of the vocabulary.
_SAMPLE = 1_000


class SuggestOptions(BaseModel):
    """Options of a suggestion. A label without a name in `language` has the name that people see."""

    language: Annotated[Language | None, BeforeValidator(lambda text: text or None)] = None
    limit: Annotated[int, Field(ge=0)] = 10
    threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0


class SuggestForm(SuggestOptions):
    """The form of a request for one document."""

    text: str


class Document(BaseModel):
    text: str
    document_id: str | None = None


class Documents(BaseModel):
    """The body of a request for several documents."""

    documents: list[Document] = Field(max_length=_MAX_DOCUMENTS, fail_fast=True)


class Subject(BaseModel):
    """A subject of a document. If the memory has no label with its URI, it becomes a new label, named `label`."""

    uri: Uid
    label: Text | None = None


class IndexedDocument(BaseModel):
    """A document to learn. As in Annif, a document without a text or without subjects adds nothing."""

    text: str = ""
    subjects: list[Subject] = Field([], max_length=MAX_INSTANCE_LABELS)


class IndexedDocuments(RootModel[list[IndexedDocument]]):
    """The body of a request to learn documents."""

    root: list[IndexedDocument] = Field(max_length=MAX_ROWS, fail_fast=True)


@dataclass(frozen=True)
class AnnifRoutes:
    """The handlers of the paths below `/v1/projects`.

    Attributes:
        answering: Answers queries.
        versions: The open versions.
        memory: Changes the live memory.
        max_query_bytes: Maximum size of a text (UTF-8). The rest of a longer document is ignored, because the encoder
            reads only the beginning of a text.
    """

    answering: Answering
    versions: OpenVersions
    memory: MemoryRoutes
    max_query_bytes: int

    def register(self, router: APIRouter) -> None:
        for path, handler, method in (
            ("/v1/projects", self.projects, "GET"),
            ("/v1/projects/{project_id}", self.project, "GET"),
            ("/v1/projects/{project_id}/suggest", self.suggest, "POST"),
            ("/v1/projects/{project_id}/suggest-batch", self.suggest_batch, "POST"),
            ("/v1/projects/{project_id}/learn", self.learn, "POST"),
        ):
            router.add_api_route(path, handler, methods=[method], include_in_schema=False)

    async def projects(self) -> dict[str, Any]:
        """List the only project."""
        return {"projects": [await asyncio.to_thread(self._project)]}

    async def project(self, project_id: str) -> dict[str, Any]:
        """Describe the project."""
        _require_project(project_id)
        return await asyncio.to_thread(self._project)

    async def suggest(self, project_id: str, request: Request) -> dict[str, Any]:
        """Suggest subjects for the document in a form."""
        _require_project(project_id)
        form = _validate(SuggestForm, await asyncio.to_thread(_fields, await request.body()))
        (suggestions,) = await self._suggest([form.text], form, request)
        return {"results": suggestions}

    async def suggest_batch(self, project_id: str, request: Request) -> list[dict[str, Any]]:
        """Suggest subjects for each of several documents."""
        _require_project(project_id)
        options = _validate(SuggestOptions, dict(request.query_params))
        body = await parse_body(Documents, await request.body())
        found = await self._suggest([document.text for document in body.documents], options, request)
        return [
            {"results": results, "document_id": document.document_id}
            for results, document in zip(found, body.documents, strict=True)
        ]

    async def learn(self, project_id: str, request: Request) -> Response:
        """Make each document an instance of the memory. All of them are written, or none."""
        _require_project(project_id)
        self.memory.require_write(request)
        documents = (await parse_body(IndexedDocuments, await request.body())).root
        texts = {self._shorten(each.text): each.subjects for each in documents}  # of equal texts, the last one counts
        learned = {text: subjects for text, subjects in texts.items() if subjects and _has_words(text)}

        def make(memory: Snapshot, encode: Encode) -> list[Entry]:
            instances = [_instance(text, subjects) for text, subjects in learned.items()]
            return changes.put(memory, encode, instances, _new_labels(memory, itertools.chain(*learned.values())))

        if learned:
            await self.memory.apply(make, request, [*learned])
        return Response(status_code=204)

    async def _suggest(self, texts: list[str], options: SuggestOptions, request: Request) -> list[list[dict[str, Any]]]:
        """The suggestions for each text; none for a text without words."""
        queries = [self._shorten(text) for text in texts]
        asked = [row for row, query in enumerate(queries) if _has_words(query)]
        suggestions: list[list[dict[str, Any]]] = [[] for _ in queries]
        if not asked or options.limit == 0:
            return suggestions
        chosen = {"top_k": min(options.limit, MAX_TOP_K), "fields": ("notation",), "language": options.language}
        texts, caller = [queries[row] for row in asked], Caller.of(request)
        _, found = await self.answering.answer(texts, chosen, caller, use_cache=False)
        for row, answer in zip(asked, found.answers, strict=True):
            labels = [] if answer is None else map(_suggestion, answer.labels)
            suggestions[row] = [each for each in labels if each["score"] >= options.threshold]
        return suggestions

    def _shorten(self, text: str) -> str:
        text = text[:MAX_CHARACTERS]
        return text.encode(errors="replace")[: self.max_query_bytes].decode(errors="ignore")

    def _project(self) -> dict[str, Any]:
        current = self.versions.require_current()
        with self.versions.lease() as predictor:
            manifest, languages = predictor.manifest, _languages(predictor.memory.labels)
        return {
            "project_id": PROJECT,
            "name": f"Recollect {manifest.version}",
            "language": "und",
            "backend": {"backend_id": "recollect"},
            "vocab": {"vocab_id": PROJECT, "languages": languages, "size": manifest.counts.labels, "loaded": True},
            "is_trained": True,
            "modification_time": current.since.isoformat(),
        }


def _has_words(text: str) -> bool:
    try:
        check_query(text)
    except QueryError:
        return False
    return True


def _suggestion(label: ScoredLabel) -> dict[str, Any]:
    score = label.score if label.probability is None else label.probability
    return {"uri": label.uid, "label": label.name, "notation": label.fields.get("notation"), "score": score}


def _languages(labels: Labels) -> list[str]:
    """The languages of the names of labels, from evenly spaced labels; `und` if they have none."""
    positions = range(0, len(labels), max(1, len(labels) // _SAMPLE)) if labels.have_fields else ()
    found = {language for position in positions for language in labels.fields_of(position).get("names", {})}
    return sorted(found) or ["und"]


def _instance(text: str, subjects: list[Subject]) -> NewInstance:
    """The instance of a document. Its uid depends on the text, so that a repeated document replaces itself."""
    uid = f"annif-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return NewInstance(uid=uid, text=text, labels=[each.uri for each in subjects])


def _new_labels(memory: Snapshot, subjects: Iterable[Subject]) -> list[NewLabel]:
    """The subjects that are not in the memory, each with the last name that the documents give it.

    Raises:
        ChangeError: If one of them has no name.
    """
    unknown: dict[str, str | None] = {}
    for each in subjects:
        if memory.labels.position(each.uri) is None:
            unknown[each.uri] = each.label or unknown.get(each.uri)
    for uri, label in unknown.items():
        if label is None:
            raise ChangeError(
                f"subjects: {uri[:80]!r} is not in the memory; send a `label` with it, the name of a new label"
            )
    return [NewLabel(uid=uri, text=label) for uri, label in unknown.items() if label is not None]


def _require_project(project_id: str) -> None:
    if project_id != PROJECT:
        raise ProblemError(404, f"project {project_id[:80]!r}: expected {PROJECT!r}, the only project")


def _fields(body: bytes) -> dict[str, str]:
    """The fields of a form that a suggestion needs. Of a long field, only the beginning is decoded.

    Raises:
        ProblemError: If there are too many fields.
    """
    if body.count(b"&") >= _MAX_FIELDS:
        raise ProblemError(413, f"body: expected a form of at most {_MAX_FIELDS:,} fields, found more")
    pairs = (field.partition("=") for field in body.decode(errors="replace").split("&"))
    sent = {unquote_plus(name[:_MAX_ENCODED_NAME]): value for name, _, value in pairs}
    return {name: unquote_plus(sent[name][:_MAX_ENCODED]) for name in SuggestForm.model_fields if name in sent}


def _validate(model: type[Any], fields: dict[str, str]) -> Any:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid(error) from None
