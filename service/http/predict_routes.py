"""The routes `/predict` and `/predict/batch`."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from recollect.core.options import chosen_options
from recollect.service.http.json_route import JsonRoute, header
from recollect.service.http.problems import ProblemError, documented
from recollect.service.http.schemas import (
    AnswerBody,
    PredictBatchRequest,
    PredictBatchResponse,
    PredictRequest,
    PredictResponse,
)
from recollect.service.serving.answering import Answering, Caller
from recollect.service.serving.batcher import Computed

# Names the version that answers, and in a response the version that has answered.
VERSION_HEADER = b"x-index-version"
_VERSION_PARAMETER = {
    "name": "X-Index-Version",
    "in": "header",
    "description": "open version that answers: the current version, the candidate or the standby; default: the current "
    "version",
    "schema": {"type": "string"},
}


@dataclass(frozen=True)
class PredictRoutes:
    """The handlers of the paths `/predict` and `/predict/batch`."""

    answering: Answering
    max_batch: int
    assign_threshold: float

    def register(self, router: APIRouter) -> None:
        for path, handler, response_model in (
            ("/predict", self.predict, PredictResponse),
            ("/predict/batch", self.predict_batch, PredictBatchResponse),
        ):
            router.add_api_route(
                path,
                handler,
                methods=["POST"],
                response_model=response_model,
                responses=documented(401, 409, 413, 415, 422, 429, 503, 504),
                route_class_override=JsonRoute,
                openapi_extra={"parameters": [_VERSION_PARAMETER]},
            )

    async def predict(self, body: PredictRequest, request: Request) -> Response:
        """Return the labels that fit a query, or a vector, best."""
        queries, vectors = ([], [body.vector]) if body.vector else ([body.query], [])
        return await self._respond(queries, vectors, body, request, batch=False)

    async def predict_batch(self, body: PredictBatchRequest, request: Request) -> Response:
        """Return the labels that fit each of several queries, or vectors, best."""
        if (found := len(body.queries or body.vectors)) > self.max_batch:
            name = "queries" if body.queries else "vectors"
            detail = f"{name}: expected at most {self.max_batch}, found {found:,}; send smaller batches"
            raise ProblemError(413, detail, "batch_too_large")
        return await self._respond(body.queries, body.vectors, body, request, batch=True)

    async def _respond(
        self, queries: list[str], vectors: list[list[float]], body: AnswerBody, request: Request, batch: bool
    ) -> Response:
        chosen = chosen_options(body)
        if "assign" in chosen:
            chosen.setdefault("min_probability", self.assign_threshold)
        version = header(request.scope, VERSION_HEADER) or None
        name, computed = await self.answering.answer(
            queries, chosen, Caller.of(request), version, body.timeout_ms, body.min_sequence, vectors=vectors
        )
        stages = ", ".join([f"{stage};dur={spent:.3f}" for stage, spent in computed.milliseconds.items()])
        headers = {"x-index-version": name, "server-timing": stages}
        return Response(_response_json(name, computed, batch), media_type="application/json", headers=headers)


def _response_json(version: str, computed: Computed, batch: bool) -> bytes:
    """Build the body of a response: version and sequence, then the fields of the only answer, or the list of answers.

    The answers are non-empty JSON objects as bytes, the format of the answer cache. They are joined as bytes, because
    parsing and serialising a cached answer again takes 11 microseconds.
    """
    head = b'{"version":%b,"sequence":%d' % (to_json(version), computed.sequence)
    if batch:
        return b'%b,"results":[%b]}' % (head, b",".join(computed.json))
    (answer,) = computed.json
    return head + b"," + answer.removeprefix(b"{")
