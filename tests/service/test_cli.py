"""The commands of the service, and the errors that `serve` reports at startup."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import recollect
from tests.service.http_helpers import (
    add_version,
    answers_with,
    copy_store,
    flip_bit,
    make_first,
    rehash,
    relabel,
    serving,
)

QUERY = "How doctors treat high blood pressure"


@pytest.fixture(scope="module")
def two_versions(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with versions v1 and v2. v1 is current, and v2 answers with 2 labels."""
    store = copy_store(built.store, tmp_path_factory.mktemp("cli") / "store")
    for version, top_k in (("v1", 10), ("v2", 2)):
        add_version(store, built.version, version, answers_with(top_k))
    shutil.rmtree(store / "bundles" / built.version)
    make_first(store, "v1")
    return store


@pytest.fixture
def store(two_versions: Path, tmp_path: Path) -> Path:
    return copy_store(two_versions, tmp_path / "store")


class Ran:
    """Run a command; return its exit status and its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
        self.status = recollect.main(list(map(str, arguments)))
        self.out, self.err = capsys.readouterr()

    def failed_with(self, *parts: str) -> None:
        assert (self.status, self.out) == (2, "")
        assert len(self.err.splitlines()) == 1, self.err
        assert all(part in self.err for part in parts), self.err


def test_predict_prints_scores_and_labels(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "predict", QUERY, "--store", two_versions, "--top-k", 3)
    assert (ran.status, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == 3
    assert "Medicine" in ran.out.splitlines()[0]


def test_predict_with_explain_prints_the_terms_of_each_score(
    two_versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Ran(capsys, "predict", QUERY, "--store", two_versions, "--top-k", 1).out
    explained = Ran(capsys, "predict", QUERY, "--store", two_versions, "--top-k", 1, "--explain").out
    assert explained.startswith(plain.rstrip("\n"))
    assert "The drug lowers blood pressure without side effects" in explained


def test_predict_with_json_prints_the_same_answer_as_http(
    two_versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        for reason, other in zip(found["because"], expected["because"], strict=True):
            assert reason == other | {"share": pytest.approx(other["share"], abs=1e-6)}


def test_predict_with_version_uses_this_version(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(Ran(capsys, "predict", QUERY, "--store", two_versions, "--version", "v2", "--json").out)
    assert (answer["version"], len(answer["labels"])) == ("v2", 2)


@pytest.mark.parametrize("text", ["", " \t", "\u200b", "\udcff"])
def test_predict_refuses_an_empty_query(two_versions: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    Ran(capsys, "predict", text, "--store", two_versions).failed_with("recollect predict: the query")


@pytest.mark.parametrize(
    "flags",
    [["--lambda", "1.5"], ["--temperature", "0"], ["--top-k", "0"], ["--top-b", "2.5"], ["--temperature", "nan"]],
)
def test_predict_error_names_the_invalid_option(
    two_versions: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    Ran(capsys, "predict", QUERY, "--store", two_versions, *flags).failed_with(flags[0], "expected", "found")


def test_versions_marks_the_current_version(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Ran(capsys, "versions", "--store", store).out.splitlines()
    assert first.startswith("* v1  28 instances  8 labels  flat  fp32  ")
    assert second.startswith("  v2  ")
    listed = json.loads(Ran(capsys, "versions", "--store", store, "--json").out)
    assert (listed["current"], listed["generation"]) == ("v1", 1)
    assert [(row["version"], row["current"]) for row in listed["versions"]] == [("v1", True), ("v2", False)]
    assert listed["versions"][0]["labels"] == 8


@pytest.mark.parametrize("damage", ["no manifest", "no JSON", "other version"])
def test_versions_lists_broken_bundles_with_their_problem(
    store: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    bundle = store / "bundles" / "v2"
    match damage:
        case "no manifest":
            (bundle / "manifest.json").unlink()
        case "no JSON":
            (bundle / "manifest.json").write_text("{")
        case "other version":
            bundle.rename(bundle.with_name("v3"))
    ran = Ran(capsys, "versions", "--store", store)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[0].startswith("* v1  28 instances")
    assert "broken: " in ran.out.splitlines()[-1]
    broken = json.loads(Ran(capsys, "versions", "--store", store, "--json").out)["versions"][-1]
    assert set(broken) == {"version", "current", "candidate", "problem"}


def test_activate_and_rollback_change_the_current_version(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Ran(capsys, "activate", "v2", "--store", store).out == "v2\n"
    assert (store / "CURRENT").read_text() == "v2\n"
    assert Ran(capsys, "rollback", "--store", store).out == "v1\n"
    assert (store / "CURRENT").read_text() == "v1\n"
    Ran(capsys, "rollback", "--store", store).failed_with("no version was current before")
    Ran(capsys, "activate", "v3", "--store", store).failed_with("v3", "v1, v2")
    Ran(capsys, "activate", "../v2", "--store", store).failed_with("../v2")


def test_log_lists_who_changed_the_version_when_and_why(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ran(capsys, "activate", "v2", "--store", store, "--why", "new labels\x1b[2J", "--by", "ann@host")
    Ran(capsys, "rollback", "--store", store)
    first, second, third = Ran(capsys, "log", "--store", store).out.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  1  activate  v1  \S+@\S+", first)
    assert second[21:] == "2  activate  v1 -> v2  ann@host  new labels\\x1b[2J"
    assert "  3  rollback  v2 -> v1  " in third
    listed = json.loads(Ran(capsys, "log", "--store", store, "--json").out)["log"]
    assert [(entry["generation"], entry["from"], entry["to"]) for entry in listed] == [
        (1, None, "v1"),
        (2, "v1", "v2"),
        (3, "v2", "v1"),
    ]
    assert listed[1]["why"] == "new labels\x1b[2J"
    assert datetime.fromisoformat(listed[0]["at"]) <= datetime.fromisoformat(listed[1]["at"])


def test_log_of_a_store_without_logged_activations_is_empty(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ACTIVATION", "LOG"):
        (store / name).unlink()
    ran = Ran(capsys, "log", "--store", store)
    assert (ran.status, ran.out, ran.err) == (0, "", f"{store}: no activation is logged yet\n")
    assert json.loads(Ran(capsys, "log", "--store", store, "--json").out) == {"log": []}
    Ran(capsys, "log", "--store", store / "nowhere").failed_with("expected a bundle store, found none")


def test_verify_prints_the_results_of_its_checks(two_versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = "v1: 19 files as published; 100.0% of the golden labels are among the answers\n"
    assert Ran(capsys, "verify", "v1", "--store", two_versions).out == report


def test_verify_fails_if_the_golden_queries_get_wrong_answers(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def reverse_votes(folder: Path, manifest: dict[str, Any]) -> None:
        votes = np.load(folder / "value_indices.npy")
        np.save(folder / "value_indices.npy", votes[::-1])
        rehash(folder, manifest)

    add_version(store, "v1", "v3", reverse_votes)
    ran = Ran(capsys, "verify", "v3", "--store", store)
    assert (ran.status, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    where = f"recollect verify: {store / 'bundles' / 'v3' / 'golden.json'}: "
    assert ran.err.startswith(f"{where}expected at least 95.0% of its labels among the answers, found ")


def test_verify_refuses_malformed_golden_queries(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def forge(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / "golden.json").write_text('[{"query": "x"}]')
        rehash(folder, manifest)

    add_version(store, "v1", "v3", forge)
    Ran(capsys, "verify", "v3", "--store", store).failed_with(
        "v3/golden.json: expected golden queries with their labels, found: "
    )


@pytest.mark.parametrize("name", ["label_keys.faiss", "tokenizer.json", "value_indptr.npy"])
def test_verify_error_names_the_altered_file(store: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    flip_bit(store / "bundles" / "v1" / name)
    Ran(capsys, "verify", "v1", "--store", store).failed_with(name, "SHA-256")


@pytest.mark.parametrize("name", ["encoder.onnx", "tokenizer.json", "instance_keys.faiss", "label_keys.faiss"])
def test_verify_error_names_a_file_that_has_a_correct_checksum_but_cannot_be_opened(
    store: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def forge(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / name).write_bytes(b"neither a graph nor a tokenizer nor an index")
        rehash(folder, manifest)

    add_version(store, "v1", "v3", forge)
    Ran(capsys, "verify", "v3", "--store", store).failed_with(f"v3/{name}: expected a file that opens, found: ")


@pytest.mark.parametrize("verb", [("predict", "x"), ("rollback",), ("verify", "v1"), ("activate", "v1"), ("versions",)])
def test_error_for_a_missing_store_has_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    Ran(capsys, *verb, "--store", tmp_path / "nowhere").failed_with("nowhere")


def serve_error(store: Path, *flags: str) -> str:
    """Start a server that must fail; return its error message."""
    command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("recollect serve: ")
    return done.stderr


def test_serve_reports_that_the_port_is_taken(two_versions: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = serve_error(two_versions, "--port", port)
    assert f"127.0.0.1:{port}: expected an address to listen on, found: Address already in use; choose" in line


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7", "a..b", "x" * 80, ""])
def test_serve_reports_an_address_that_it_cannot_use(two_versions: Path, host: str) -> None:
    assert "expected an address" in serve_error(two_versions, "--port", "0", "--host", host)


def test_serve_reports_an_error_of_the_store(store: Path, tmp_path: Path) -> None:
    assert "run `recollect build`" in serve_error(tmp_path / "nowhere", "--port", "0")
    flip_bit(store / "bundles" / "v1" / "label_keys.faiss")
    assert "label_keys.faiss: expected SHA-256" in serve_error(store, "--port", "0")
    (store / "ACTIVATION").write_text("{}")
    assert "ACTIVATION: expected an activation record" in serve_error(store, "--port", "0")
    (store / "ACTIVATION").unlink()
    assert "no version is current" in serve_error(store, "--port", "0")


def test_versions_are_listed_even_if_the_activation_record_is_damaged(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "ACTIVATION").write_text("{")
    ran = Ran(capsys, "versions", "--store", store)
    assert ran.status == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["v1", "v2"]
    assert "ACTIVATION: expected an activation record" in ran.err


def test_verify_accepts_the_word_current_as_version(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Ran(capsys, "verify", "current", "--store", store).out.startswith("v1: ")


def test_predict_escapes_control_characters_in_its_output(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_version(store, "v1", "v3", relabel([f"evil \x1b[2J{row}\nline" for row in range(8)]))
    ran = Ran(capsys, "predict", QUERY, "--store", store, "--version", "v3", "--top-k", 1)
    assert "evil \\x1b[2J1\\nline" in ran.out
    assert len(ran.out.splitlines()) == 1


def test_predict_warns_if_the_query_is_longer_than_the_encoder_reads(
    two_versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(capsys, "predict", QUERY * 100, "--store", two_versions)
    assert ran.err == "the query is longer than the 128 tokens that the encoder reads\n"
    assert '"truncated":true' in Ran(capsys, "predict", QUERY * 100, "--store", two_versions, "--json").out
