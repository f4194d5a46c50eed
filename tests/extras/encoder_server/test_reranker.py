"""A reranker on a server: `recollect rank --reranker`, and answers with and without its scores."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import recollect
from recollect.core.errors import EncoderDownError, SettingsError
from recollect.core.settings import ConnectionSettings
from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError
from recollect.index_builder.settings import BuildSettings
from recollect.model import Model, open_model
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings
from tests.processes import serving, until
from tests.tiny_runs import write_tiny_encoder

LETTERS = "abcdefghijkl"
TOKEN = "token-of-the-reranker"


class Reranker(ThreadingHTTPServer):
    """A server that knows which letter is in a text, with both routes. It refuses queries of 30 characters and more.

    Attributes:
        mode: `right`, `slow`, `busy`, `other` (another model) or `wrong` (another response).
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode, self.calls, self.tokens = "right", 0, set[str | None]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/rerank"


class _Handler(BaseHTTPRequestHandler):
    server: Reranker
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body, server = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.server
        server.calls += 1
        server.tokens.add(self.headers["Authorization"])
        if server.mode == "slow":
            time.sleep(3)
        texts = body["documents"] if "model" in body else body["texts"]
        shift = 3.0 if server.mode == "other" else 0.0
        rows = [(row, float(text.lower() in body["query"]) + len(text) / 100 + shift) for row, text in enumerate(texts)]
        rows.sort(key=lambda row: -row[1])
        answer: Any = [{"index": row, "score": score} for row, score in rows]
        if "model" in body:
            answer = {"results": [{"index": row, "relevance_score": score} for row, score in rows]}
        if server.mode == "wrong":
            answer = answer[1:]
        content = json.dumps(answer).encode()
        self.send_response(503 if server.mode == "busy" else 413 if len(body["query"]) >= 30 else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Made(NamedTuple):
    server: Reranker
    run: Path
    store: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder, server = tmp_path_factory.mktemp("reranked"), Reranker()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run, encoder = folder / "run", write_tiny_encoder(folder / "encoder", "bert")
    write_letters(folder / "dataset")
    write_run(TrainSettings(epochs=0, dataset=folder / "dataset", out=run, encoder=str(encoder), max_length=64))
    report = recollect.rank(run, threads=1, reranker=server.url, reranker_token=TOKEN, cross_encoder_candidates=12)
    assert report["cross_encoder"]["kept"]
    build(BuildSettings(run=run, store=folder / "store", index="flat", activate=True))
    yield Made(server, run, folder / "store")
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def right(made: Made) -> None:
    made.server.mode = "right"


def write_letters(folder: Path) -> None:
    """Write a dataset: a text is a number that contains the letter of its label."""
    folder.mkdir()
    rng, rows = np.random.default_rng(0), []
    for number in range(900):
        letter, digits = str(rng.choice([*LETTERS])), "".join(map(str, rng.integers(10, size=4)))
        text = f"{digits[:2]}{letter}{digits[2:]}"
        rows.append({"uid": f"i{number}", "text": text, "labels": [letter.upper()]})
    labels = [{"uid": letter.upper(), "text": letter.upper()} for letter in LETTERS]
    for name, content in {"train": rows[:870], "test": rows[870:], "labels": labels}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")


def open_with(made: Made, url: str | None, **settings: Any) -> Model:
    return open_model(made.store, connections=ConnectionSettings(reranker=url, **{"reranker_ms": 20_000} | settings))


def ask(model: Model, count: int = 1) -> list[tuple[str, str | None]]:
    """The first label of some texts, and why the reranker is left out."""
    queries = [f"99{letter}77" for letter in LETTERS[:count]]
    return [(answer.labels[0].uid, answer.left_out) for answer in model.answer(queries, rerank=True)]


@pytest.mark.parametrize("model", ["", "#bge-reranker"])
def test_scores_of_both_routes_order_the_labels(made: Made, model: str) -> None:
    answers = ask(open_with(made, made.server.url + model), len(LETTERS))
    assert answers == [(letter.upper(), None) for letter in LETTERS]


def test_the_token_is_sent_and_never_recorded(made: Made) -> None:
    assert f"Bearer {TOKEN}" in made.server.tokens
    for path in [*made.run.rglob("*"), *made.store.rglob("*")]:
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


@pytest.mark.parametrize("mode", ["busy", "wrong", "slow", "other"])
def test_a_version_answers_without_a_server_that_fails(made: Made, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.extras.encoder_server.reranker._REST_SECONDS", 2.5)
    model = open_with(made, made.server.url)
    plain = model.answer(["99a77"])[0].labels
    made.server.mode = mode
    opened = open_with(made, made.server.url, reranker_ms=1_000)  # it has not seen the right model
    (answer,) = opened.answer(["99a77"], rerank=True)
    assert (answer.reranked, answer.left_out) == (False, "server")
    assert answer.labels == plain
    calls = made.server.calls
    assert ask(opened, 4)[0][1] == "server"  # without a call, because the server has just failed
    assert made.server.calls == calls
    made.server.mode = "right"
    until(lambda: ask(opened)[0][1] is None)


def test_a_query_that_the_server_refuses_changes_no_other_answer(made: Made) -> None:
    model = open_with(made, made.server.url, reranker_ms=20_000)
    for long, short in (("99a77" + "0" * 30, "99b77"), ("99c77" + "0" * 30, "99d77")):
        left_out = [model.answer([query], rerank=True)[0].left_out for query in (short, long, short)]
        assert left_out == [None, "server", None]


def test_evaluate_refuses_answers_without_scores(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_RERANKER", made.server.url)
    monkeypatch.setenv("RECOLLECT_RERANKER_MS", "20000")
    version = build(BuildSettings(run=made.run, store=tmp_path, index="flat", rerank=True))
    judged = functools.partial(recollect.evaluate, made.run.parent / "dataset", store=tmp_path, version=version)
    assert judged()
    made.server.mode = "busy"
    with pytest.raises(BuildError, match="RECOLLECT_RERANKER: expected the scores of 30 texts, found none for 30"):
        judged()


def test_a_version_answers_without_an_address_and_without_a_server(made: Made) -> None:
    assert ask(open_with(made, None))[0][1] == "server"
    assert ask(open_with(made, "http://127.0.0.1:9/rerank"))[0][1] == "server"


def test_the_service_calls_the_address_of_its_settings(made: Made) -> None:
    with serving(made.store, "--reranker", made.server.url, "--reranker-ms", "20000") as server:
        read = server.ask("99a77", rerank=True).json()
        assert (read["reranked"], read["labels"][0]["uid"]) == (True, "A")
        made.server.mode = "slow"
        late = server.ask("99b77", rerank=True, timeout_ms=3_600).json()
        assert (late["reranked"], late["left_out"]) == (False, "deadline")
        made.server.mode = "busy"
        failed = server.ask("99c77", rerank=True).json()
        assert (failed["reranked"], failed["left_out"]) == (False, "server")
        metrics = server.client.get("/metrics").text
        for outcome in ("read", "deadline", "server"):
            assert f'recollect_reranked_total{{outcome="{outcome}"}} 1.0' in metrics


def test_rank_needs_a_server_that_answers(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match="--reranker: expected http://HOST:PORT/rerank#MODEL"):
        recollect.rank(made.run, reranker="ftp://host")
    with pytest.raises(EncoderDownError, match="expected an answer, found none"):
        recollect.rank(made.run, threads=1, reranker="http://127.0.0.1:9/rerank")
    assert "fit:" not in capsys.readouterr().err  # nothing was fitted in vain
    with pytest.raises(SettingsError, match="--reranker: expected no --cross-encoder, found one"):
        recollect.rank(made.run, reranker=made.server.url, cross_encoder=True)
    made.server.mode = "wrong"
    with pytest.raises(EncoderDownError, match="expected a score for each text, found another response"):
        recollect.rank(made.run, threads=1, reranker=made.server.url)
    assert (made.run / "memory" / "ranker" / "cross_ranker.json").is_file()
