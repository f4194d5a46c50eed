"""Runs and bundles whose vectors come from a server, at every door, and with all that can be wrong with a server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import recollect
from recollect.core.errors import BundleError, EncoderDownError, SettingsError
from recollect.index_builder.errors import BuildError
from recollect.trainer.errors import EncoderError, TrainingError
from tests.conftest import TOPICS, write_topics
from tests.extras.encoder_server.vector_server import MODEL, POISON, TOKEN, VectorServer, running_server, vector_of
from tests.formula import label_scores
from tests.processes import call, is_problem, metric, run, serving, until, write_lines

QUERIES = ["Who must pay tax on the sale of a house", "How doctors treat high blood pressure", "x"]
LAMBDA, TAU, TOP_B = 0.4, 0.05, 12
OPTIONS: dict[str, Any] = {"lambda": LAMBDA, "temperature": TAU, "top_b": TOP_B, "top_k": 9}


class Made(NamedTuple):
    folder: Path
    server: VectorServer

    @property
    def store(self) -> Path:
        return self.folder / "store"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A run without training and one with an adapter; a store with a bundle of each, the adapter's is current."""
    folder = tmp_path_factory.mktemp("served")
    write_topics(folder / "dataset")
    with running_server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECOLLECT_ENCODER_TOKEN", TOKEN)
        prompts = ("--query-prompt", "find: ", "--label-prompt", "named ")
        server.fail("busy", times=2)  # a busy server is asked again
        call(
            "train", folder / "dataset", "--out", folder / "zero", "--encoder", server.encoder, "--epochs", 0, *prompts
        )
        assert server.times <= 0
        asked = len(server.texts)
        flags = ("--vectors", folder / "zero", "--max-steps", 20, "--seed", 1, *prompts)
        call("train", folder / "dataset", "--out", folder / "adapted", "--encoder", server.encoder, *flags)
        assert len(server.texts) == asked + 1  # the probe: all other vectors are reused
        patch.setenv("RECOLLECT_ENCODER_URL", server.url)
        for name in ("zero", "adapted"):
            call(
                "build", folder / name, "--store", folder / "store", "--lexical", "off", "--index", "flat", "--activate"
            )
        yield Made(folder, server)


@pytest.fixture(autouse=True)
def settings(made: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings of the connection, and afterwards a server that works."""
    monkeypatch.setenv("RECOLLECT_ENCODER_TOKEN", TOKEN)
    monkeypatch.setenv("RECOLLECT_ENCODER_URL", made.server.url)
    monkeypatch.setenv("RECOLLECT_ENCODER_SECONDS", "2")
    yield
    made.server.mode, made.server.seed = "", ""


def versions(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "bundles").iterdir())


def unit(texts: list[str], prompt: str) -> np.ndarray:
    vectors = np.array([vector_of(prompt + text) for text in texts])
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_answers_are_those_of_the_vectors_of_the_server(made: Made) -> None:
    rows = [json.loads(line) for line in (made.folder / "dataset" / "train.jsonl").read_text().splitlines()]
    labels = list(TOPICS)
    y = np.array([[uid in row["labels"] for uid in labels] for row in rows], dtype=float)
    instances, keys = unit([row["text"] for row in rows], "find: "), unit(labels, "named ")
    expected = label_scores(unit(QUERIES, "find: "), instances, keys, y, LAMBDA, TAU, TOP_B)
    model = recollect.open(made.store, version=versions(made.store)[0])
    answers = model.predict(QUERIES, lambda_=LAMBDA, temperature=TAU, top_b=TOP_B, top_k=9)
    found = [{label.uid: label.score for label in answer} for answer in answers]
    scores = np.array([[each.get(uid, 0.0) for uid in labels] for each in found])
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-5)


def test_adapter_is_applied_to_the_vectors_at_every_door(made: Made, tmp_path: Path) -> None:
    variables = {"RECOLLECT_ENCODER_URL": made.server.url, "RECOLLECT_ENCODER_TOKEN": TOKEN}
    with serving(made.store, **variables) as server:
        answer = server.client.post("/predict/batch", json={"queries": QUERIES, **OPTIONS}).raise_for_status().json()
        described = server.client.get("/version").json()["encoder"]
        assert TOKEN not in server.log()
    assert (described["kind"], described["name"]) == ("server", MODEL)
    assert made.server.url not in json.dumps(described)
    write_lines(tmp_path / "in.jsonl", [{"text": query} for query in QUERIES])
    flags = ["--lambda", LAMBDA, "--temperature", TAU, "--top-b", TOP_B, "--top-k", 9, "--workers", 1]
    call("predict", "--store", made.store, "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", *flags)
    bulk = [json.loads(line)["labels"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    model = recollect.open(made.store)
    python = model.predict(QUERIES, lambda_=LAMBDA, temperature=TAU, top_b=TOP_B, top_k=9)
    for http, row, labels in zip(answer["results"], bulk, python, strict=True):
        assert [label["uid"] for label in http["labels"]] == [label["uid"] for label in row]
        assert [label["uid"] for label in http["labels"]] == [label.uid for label in labels]
        np.testing.assert_allclose(
            [each["score"] for each in http["labels"]], [each.score for each in labels], rtol=1e-5
        )
    zero = recollect.open(made.store, version=versions(made.store)[0])
    moved = np.abs(model.predictor.encode(QUERIES) - zero.predictor.encode(QUERIES)).max()
    assert moved > 1e-3  # the adapter was trained


def test_run_and_bundle_record_the_server_and_never_the_token(made: Made) -> None:
    bundle = made.store / "bundles" / versions(made.store)[0]
    recorded = json.loads((bundle / "encoder_server.json").read_text())
    assert (recorded["url"], recorded["model"], recorded["dim"]) == (made.server.url, MODEL, 48)
    np.testing.assert_allclose(recorded["vector"], vector_of(recorded["probe"]), rtol=1e-5)
    assert not (bundle / "tokenizer.json").exists()
    files = [path for path in made.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert made.server.tokens == {f"Bearer {TOKEN}"}


def test_live_entries_and_a_compaction_use_the_server(made: Made, tmp_path: Path) -> None:
    store = shutil.copytree(made.store, tmp_path / "store")
    new = [{"uid": "Garden", "text": "Garden"}, {"uid": "g", "text": "garlic grows here", "labels": ["Garden"]}]
    call("extend", store, "--add", write_lines(tmp_path / "new.jsonl", new))
    before = recollect.open(store).predict("garlic grows", top_k=3)
    assert before[0].uid == "Garden"
    call("compact", store, "--index", "flat", "--activate")
    after = recollect.open(store, live="off").predict("garlic grows", top_k=3)
    assert [label.uid for label in after] == [label.uid for label in before]


def test_service_survives_a_server_that_fails(made: Made) -> None:
    vectors, variables = made.server, {"RECOLLECT_ENCODER_TOKEN": TOKEN}
    flags = ("--encoder-url", vectors.url, "--encoder-seconds", 2, "--cache-mb", 0)  # "slow" needs 3 seconds
    with serving(made.store, *flags, **variables) as server:
        good = server.uids(QUERIES[0])

        def ready() -> bool:
            return server.client.get("/health/ready").status_code == 200

        for mode in ("failing", "busy"):
            vectors.fail(mode, times=2)
            assert server.uids(QUERIES[0]) == good
            assert vectors.times <= 0
        vectors.fail("busy")
        # A busy machine can pass the time limit before the last repetition gets its answer.
        until(lambda: "found status 429; try" in is_problem(server.ask(QUERIES[0]), 503, "encoder_down")["detail"])
        assert ready()  # a server with too much to do is not down
        for mode, reason in (
            ("slow", "no answer in time"),
            ("failing", "found status 500; try again shortly"),
            ("dimension", "expected vectors of 48 dimensions, found 24; serve the model"),
            ("garbage", "expected the response of OpenAI's route /embeddings, found another one"),
            ("nan", "expected finite vectors"),
            ("redirect", "found status 307; check the address and the model (redirects are not followed)"),
        ):
            vectors.fail(mode)
            assert reason in is_problem(server.ask(QUERIES[0]), 503, "encoder_down")["detail"], mode
            until(lambda: not ready())
            assert reason in is_problem(server.client.get("/health/ready"), 503, "encoder_down")["detail"], mode
            assert server.client.get("/health/live").status_code == 200
            vectors.mode = ""
            until(ready)
            assert server.uids(QUERIES[0]) == good
        until(lambda: metric(server.client, "recollect_encoder_up") == 1)
        vectors.stop()
        is_problem(server.ask(QUERIES[0]), 503, "encoder_down")
        until(lambda: not ready())
        assert (
            "found: no connection; check"
            in is_problem(server.client.get("/health/ready"), 503, "encoder_down")["detail"]
        )
        assert server.client.post("/predict", json={"vector": [1.0] * 48}).status_code == 200  # needs no encoder
        until(lambda: metric(server.client, "recollect_encoder_up") == 0)
        vectors.seed = "another model"
        vectors.start()
        until(lambda: "expected the vectors of the model words" in server.client.get("/health/ready").text)
        is_problem(server.ask(QUERIES[0]), 503, "encoder_down")
        vectors.seed = ""
        until(ready)
        assert server.uids(QUERIES[0]) == good
        is_problem(server.ask("much " * 1000), 422, "invalid_request")
        assert ready()
        assert TOKEN not in server.log()
        assert "broken" not in server.log()  # what the server wrote, which may be a query
        assert len(server.events("encoder_down")) == len(server.events("encoder_up")) == 7


def test_text_at_which_the_server_fails_harms_no_other_request(made: Made) -> None:
    flags = ("--encoder-url", made.server.url, "--encoder-seconds", 2, "--cache-mb", 0)
    with (
        serving(made.store, *flags, RECOLLECT_ENCODER_TOKEN=TOKEN) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        wrong = [pool.submit(server.ask, f"{POISON} secret {number}") for number in range(2)]
        while not all(each.done() for each in wrong):
            assert server.uids(QUERIES[0])
            assert server.client.get("/health/ready").status_code == 200
        for each in wrong:
            detail = is_problem(each.result(), 503, "encoder_down")["detail"]
            assert "found status 500" in detail
            assert not [text for text in ("secret", "cannot read", made.server.url) if text in detail]
        assert "secret" not in server.log()
        assert not server.events("encoder_down")


def test_refused_texts_have_one_time_limit_together(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_ENCODER_SECONDS", "1")
    model = recollect.open(made.store)
    made.server.fail("refusing")
    asked = len(made.server.calls)
    with pytest.raises(EncoderDownError, match="no answer in time"):
        model.predict([f"text {number}" for number in range(16)])
    assert len(made.server.calls) - asked <= 4  # of the 31 calls for all parts, and one of the probe


def test_bulk_marks_a_text_that_the_server_refuses(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["house tax", "A long text. " + "word " * 500, "health care"]
    source, target = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts]), tmp_path / "out.jsonl"
    flags = ("predict", "--store", made.store, "--input", source, "--output", target, "--workers", 1, "--top-k", 1)
    assert recollect.main([*map(str, flags)]) == 2
    assert "in.jsonl: line 2: the server of vectors refuses the text 'find: A long" in capsys.readouterr().err
    call(*flags, "--bad-rows", "mark")
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [len(row["labels"]) for row in rows] == [1, 0, 1]
    assert "refuses the text 'find: A long" in rows[1]["error"]


def test_version_does_not_open_with_another_model_or_without_a_server(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.server.seed = "another model"
    with pytest.raises(BundleError, match="expected the vectors of the model words, with which the version was built"):
        recollect.open(made.store)
    made.server.seed = ""
    made.server.fail("dimension")
    with pytest.raises(BundleError, match="expected vectors of 48 dimensions, found 24; serve the model words"):
        recollect.open(made.store)
    made.server.mode = ""
    monkeypatch.setenv("RECOLLECT_ENCODER_TOKEN", "another-token-0123456789")
    with pytest.raises(
        EncoderDownError, match=r"accept the token, found status 401; set .*\(wrong key Bearer \.\.\.\)"
    ) as error:
        recollect.open(made.store)
    assert "another-token" not in str(error.value)
    monkeypatch.setenv("RECOLLECT_ENCODER_TOKEN", TOKEN)
    monkeypatch.setenv("RECOLLECT_ENCODER_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(EncoderDownError, match="127.0.0.1:9/v1: expected the server of vectors to answer.*refused"):
        recollect.open(made.store)
    monkeypatch.delenv("RECOLLECT_ENCODER_URL")
    calls = len(made.server.calls)
    with pytest.raises(
        SettingsError, match=r"--encoder-url: required for version .* \(http.*#words when it was trained"
    ):
        recollect.open(made.store)
    assert len(made.server.calls) == calls  # the address in the bundle is not called
    done = run("predict", "--store", made.store, "x", status=2)
    assert "--encoder-url: required" in done.stderr
    flags = ("--encoder-url", made.server.url, "--encoder-seconds", 60, "--hang-seconds", 60)
    done = run("serve", "--store", made.store, "--port", 0, *flags, status=2)
    assert "--hang-seconds: must be greater than --encoder-seconds (60)" in done.stderr


def test_settings_may_name_another_model_and_are_checked(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_ENCODER_SECONDS", "soon")
    with pytest.raises(SettingsError, match="RECOLLECT_ENCODER_SECONDS: Input should be a valid number"):
        recollect.open(made.store)
    monkeypatch.setenv("RECOLLECT_ENCODER_SECONDS", "2")
    monkeypatch.setenv("RECOLLECT_ENCODER_URL", f"{made.server.url}/embeddings#other")
    with pytest.raises(EncoderDownError, match="the model other, found status 404; .*no model other"):
        recollect.open(made.store)


@pytest.mark.parametrize(
    ("url", "flags", "message"),
    [
        ("{url}", {}, r"--encoder http://.*/v1: expected #MODEL after the URL, found none"),
        ("http://me:secret@localhost/v1#m", {}, "expected a URL without a password and without a query, found one"),
        ("http://localhost/v1?key=secret#m", {}, "expected a URL without a password and without a query, found one"),
        ("http://localhost:port/v1#m", {}, "--encoder: expected http://HOST:PORT/v1#MODEL"),
        ("http://127.0.0.1:9/v1#m", {}, "http://127.0.0.1:9/v1: expected the server of vectors to answer, found: "),
        ("{url}#none", {}, "the model none, found status 404; .*no model none"),
        (
            "{encoder}",
            {"train": "full"},
            "expected --train adapter, --train head or --epochs 0, because nothing trains",
        ),
        ("{encoder}", {"max_length": 64}, "--max-length: expected no server of vectors, which decides this itself"),
        ("{encoder}", {"best": True}, "--best: expected an encoder with its own weights, because --best distils it"),
        (
            "{encoder}",
            {"epochs": 0, "query_encoder": "static"},
            "expected an encoder with its own weights, which are dis",
        ),
        (
            "static",
            {"static_from": "{encoder}"},
            "--static-from: expected an encoder with its own weights, found a server",
        ),
    ],
)
def test_training_that_a_server_cannot_do_is_refused(
    made: Made, tmp_path: Path, url: str, flags: dict[str, Any], message: str
) -> None:
    def filled(text: Any) -> Any:
        return text.format(url=made.server.url, encoder=made.server.encoder) if isinstance(text, str) else text

    given = {name: filled(value) for name, value in flags.items()}
    with pytest.raises(recollect.ERRORS, match=message) as error:
        recollect.train(made.folder / "dataset", out=tmp_path / "run", encoder=filled(url), **given)
    assert "secret" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_build_refuses_a_changed_model_and_a_precision(made: Made, tmp_path: Path) -> None:
    with pytest.raises(
        BuildError, match="--precision int8: expected no such flag for a run whose vectors come from a s"
    ):
        recollect.build(made.folder / "zero", store=tmp_path / "store", precision="int8")
    made.server.seed = "another model"
    with pytest.raises(EncoderError, match="expected the vectors of the model words, with which the version was built"):
        recollect.build(made.folder / "zero", store=tmp_path / "store")


def test_text_that_the_server_refuses_is_named(made: Made, tmp_path: Path) -> None:
    write_topics(tmp_path / "dataset")
    with (tmp_path / "dataset" / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"uid": "long", "text": "A long text. " + "word " * 500, "labels": ["Law"]}) + "\n")
    with pytest.raises(
        EncoderError, match=r"refuses the text 'A long text\. .*status 413: too much.*send a shorter text"
    ):
        recollect.train(tmp_path / "dataset", out=tmp_path / "run", encoder=made.server.encoder, epochs=0)


def test_training_continues_from_a_checkpoint_at_the_address_of_the_settings(made: Made, tmp_path: Path) -> None:
    checkpoint = made.folder / "adapted" / "checkpoint"
    recollect.train(made.folder / "dataset", out=tmp_path / "run", encoder=str(checkpoint), max_steps=2)
    with pytest.raises(TrainingError, match="expected --train adapter, --train head or --epochs 0"):
        recollect.train(made.folder / "dataset", out=tmp_path / "full", encoder=str(checkpoint), train="full")
