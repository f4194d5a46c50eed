"""The service's verbs, through the door; and how the server says that it cannot start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import recollect
from tests.service.http_helpers import add_version, answers_with, copy_store, flip_bit, rehash, relabel, serving

QUERY = "How doctors treat high blood pressure"


@pytest.fixture(scope="module")
def two_versions(road: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions v1 and v2, which answers with 2 labels; v1 is current."""
    store = copy_store(road.store, tmp_path_factory.mktemp("cli") / "store")
    for version, top_k in (("v1", 10), ("v2", 2)):
        add_version(store, road.version, version, answers_with(top_k))
    shutil.rmtree(store / "bundles" / road.version)
    for name in ("CURRENT", "HISTORY"):
        (store / name).write_text("v1\n")
    return store


@pytest.fixture
def store(two_versions: Path, tmp_path: Path) -> Path:
    return copy_store(two_versions, tmp_path / "store")


class Ran:
    """A verb's exit status and what it wrote."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
        self.status = recollect.main(list(map(str, arguments)))
        self.out, self.err = capsys.readouterr()

    def refused(self, *told: str) -> None:
        assert (self.status, self.out) == (2, "")
        assert len(self.err.splitlines()) == 1, self.err
        assert all(part in self.err for part in told), self.err


def test_predict_prints_scores_and_labels(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "predict", QUERY, "--store", two_versions, "--top-k", 3)
    assert (ran.status, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == 3
    assert "Medicine" in ran.out.splitlines()[0]


def test_predict_explains_on_demand(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = Ran(capsys, "predict", QUERY, "--store", two_versions, "--top-k", 1).out
    explained = Ran(capsys, "predict", QUERY, "--store", two_versions, "--top-k", 1, "--explain").out
    assert explained.startswith(plain.rstrip("\n"))
    assert "The drug lowers blood pressure without side effects" in explained


def test_predict_json_holds_what_http_answers(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--lambda", 0.3, "--temperature", 0.1, "--top-b", 20, "--top-k", 4, "--explain", "--json"]
    printed = json.loads(Ran(capsys, "predict", QUERY, "--store", two_versions, *flags).out)
    body = {"query": QUERY, "lambda": 0.3, "temperature": 0.1, "top_b": 20, "top_k": 4, "explain": True}
    with serving(two_versions) as server:
        answered = httpx.post(f"{server.url}/predict", json=body).json()
    assert list(printed) == list(answered)
    assert printed["version"] == answered["version"]
    for found, expected in zip(printed["labels"], answered["labels"], strict=True):
        assert found["score"] == pytest.approx(expected["score"], abs=1e-6)
        assert {**found, "score": 0, "because": 0} == {**expected, "score": 0, "because": 0}
        for reason, told in zip(found["because"], expected["because"], strict=True):
            assert reason == told | {"share": pytest.approx(told["share"], abs=1e-6)}


def test_predict_asks_the_version_it_is_told_to(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(Ran(capsys, "predict", QUERY, "--store", two_versions, "--version", "v2", "--json").out)
    assert (answer["version"], len(answer["labels"])) == ("v2", 2)


@pytest.mark.parametrize("text", ["", " \t", "\u200b", "\udcff"])
def test_predict_refuses_an_empty_query(two_versions: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    Ran(capsys, "predict", text, "--store", two_versions).refused("recollect predict: the query")


@pytest.mark.parametrize(
    "flags",
    [["--lambda", "1.5"], ["--temperature", "0"], ["--top-k", "0"], ["--top-b", "2.5"], ["--temperature", "nan"]],
)
def test_predict_refuses_an_option_by_name(
    two_versions: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    Ran(capsys, "predict", QUERY, "--store", two_versions, *flags).refused(flags[0], "expected", "found")


def test_versions_marks_the_current_one(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Ran(capsys, "versions", "--store", store).out.splitlines()
    assert first.startswith("* v1  28 instances  8 labels  flat  fp32  ")
    assert second.startswith("  v2  ")
    told = json.loads(Ran(capsys, "versions", "--store", store, "--json").out)
    assert told["current"] == "v1"
    assert [(row["version"], row["current"]) for row in told["versions"]] == [("v1", True), ("v2", False)]
    assert told["versions"][0]["labels"] == 8


@pytest.mark.parametrize("damage", ["no manifest", "no JSON", "another's"])
def test_versions_shows_a_broken_bundle_beside_the_good_ones(
    store: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    bundle = store / "bundles" / "v2"
    match damage:
        case "no manifest":
            (bundle / "manifest.json").unlink()
        case "no JSON":
            (bundle / "manifest.json").write_text("{")
        case "another's":
            bundle.rename(bundle.with_name("v3"))
    ran = Ran(capsys, "versions", "--store", store)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[0].startswith("* v1  28 instances")
    assert "broken: " in ran.out.splitlines()[-1]
    broken = json.loads(Ran(capsys, "versions", "--store", store, "--json").out)["versions"][-1]
    assert set(broken) == {"version", "current", "problem"}


def test_activate_and_rollback_move_what_is_current(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Ran(capsys, "activate", "v2", "--store", store).out == "v2\n"
    assert (store / "CURRENT").read_text() == "v2\n"
    assert Ran(capsys, "rollback", "--store", store).out == "v1\n"
    assert (store / "CURRENT").read_text() == "v1\n"
    Ran(capsys, "rollback", "--store", store).refused("no version was current before")
    Ran(capsys, "activate", "v3", "--store", store).refused("v3", "v1, v2")
    Ran(capsys, "activate", "../v2", "--store", store).refused("../v2")


def test_verify_says_what_it_checked(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "v1: 19 files as published, and it answers 100.0% of its golden labels\n"
    assert Ran(capsys, "verify", "v1", "--store", two_versions).out == told


def test_verify_fails_where_the_golden_queries_are_answered_otherwise(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def turn_round(folder: Path, manifest: dict[str, Any]) -> None:
        votes = np.load(folder / "value_indices.npy")
        np.save(folder / "value_indices.npy", votes[::-1])
        rehash(folder, manifest)

    add_version(store, "v1", "v3", turn_round)
    ran = Ran(capsys, "verify", "v3", "--store", store)
    assert (ran.status, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    where = f"recollect verify: {store / 'bundles' / 'v3' / 'golden.json'}: "
    assert ran.err.startswith(f"{where}expected at least 95.0% of its labels among the answers, found ")


def test_verify_refuses_golden_queries_that_are_none(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def forge(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / "golden.json").write_text('[{"query": "x"}]')
        rehash(folder, manifest)

    add_version(store, "v1", "v3", forge)
    Ran(capsys, "verify", "v3", "--store", store).refused("v3/golden.json: expected queries with their labels, found: ")


@pytest.mark.parametrize("name", ["label_keys.faiss", "tokenizer.json", "value_indptr.npy"])
def test_verify_names_the_altered_file(store: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    flip_bit(store / "bundles" / "v1" / name)
    Ran(capsys, "verify", "v1", "--store", store).refused(name, "SHA-256")


@pytest.mark.parametrize("name", ["encoder.onnx", "tokenizer.json", "instance_keys.faiss", "label_keys.faiss"])
def test_verify_names_the_file_that_does_not_open_although_its_checksum_is_right(
    store: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def forge(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / name).write_bytes(b"neither a graph nor a tokenizer nor an index")
        rehash(folder, manifest)

    add_version(store, "v1", "v3", forge)
    Ran(capsys, "verify", "v3", "--store", store).refused(f"v3/{name}: expected a file that opens, found: ")


@pytest.mark.parametrize("verb", [("predict", "x"), ("rollback",), ("verify", "v1"), ("activate", "v1"), ("versions",)])
def test_missing_store_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    Ran(capsys, *verb, "--store", tmp_path / "nowhere").refused("nowhere")


def refused_to_serve(store: Path, *flags: str) -> str:
    """What the server's one line says."""
    command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("recollect serve: ")
    return done.stderr


def test_serve_says_that_the_port_is_taken(two_versions: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused_to_serve(two_versions, "--port", port)
    assert f"127.0.0.1:{port}: expected an address to listen on, found: Address already in use; choose" in line


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7", "a..b", "x" * 80, ""])
def test_serve_says_that_it_cannot_listen_there(two_versions: Path, host: str) -> None:
    assert "expected an address" in refused_to_serve(two_versions, "--port", "0", "--host", host)


def test_serve_says_what_is_wrong_with_the_store(store: Path, tmp_path: Path) -> None:
    assert "run `recollect build`" in refused_to_serve(tmp_path / "nowhere", "--port", "0")
    flip_bit(store / "bundles" / "v1" / "label_keys.faiss")
    assert "label_keys.faiss: expected SHA-256" in refused_to_serve(store, "--port", "0")
    (store / "CURRENT").write_text("../v1\n")
    assert "CURRENT" in refused_to_serve(store, "--port", "0")
    (store / "CURRENT").unlink()
    assert "no version is current" in refused_to_serve(store, "--port", "0")


def test_versions_lists_what_to_activate_when_current_names_none(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "CURRENT").write_text("../x\n")
    ran = Ran(capsys, "versions", "--store", store)
    assert ran.status == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["v1", "v2"]
    assert "CURRENT: expected a version's name" in ran.err


def test_verify_checks_the_current_version_by_that_name(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Ran(capsys, "verify", "current", "--store", store).out.startswith("v1: ")


def test_predict_shows_control_characters_instead_of_obeying_them(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_version(store, "v1", "v3", relabel([f"evil \x1b[2J{row}\nline" for row in range(8)]))
    ran = Ran(capsys, "predict", QUERY, "--store", store, "--version", "v3", "--top-k", 1)
    assert "evil \\x1b[2J1\\nline" in ran.out
    assert len(ran.out.splitlines()) == 1


def test_predict_says_when_the_query_was_cut(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "predict", QUERY * 100, "--store", two_versions)
    assert ran.err == "the query is longer than the 128 tokens that the encoder reads\n"
    assert '"truncated":true' in Ran(capsys, "predict", QUERY * 100, "--store", two_versions, "--json").out
