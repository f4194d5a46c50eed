"""The commands of the service, and the errors that `serve` reports at startup."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from tests import forked
from tests.processes import copy_store
from tests.service.stores import add_version, answers_with, make_first, rehash, relabel

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


@pytest.mark.parametrize("damage", ["no JSON", "other version"])
def test_versions_lists_broken_bundles_with_their_problem(
    store: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    bundle = store / "bundles" / "v2"
    match damage:
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


@pytest.mark.parametrize("name", ["encoder.onnx", "tokenizer.json", "instance_keys.faiss", "label_keys.faiss"])
def test_verify_error_names_a_file_that_has_a_correct_checksum_but_cannot_be_opened(
    store: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def forge(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / name).write_bytes(b"neither a graph nor a tokenizer nor an index")
        rehash(folder, manifest)

    add_version(store, "v1", "v3", forge)
    Ran(capsys, "verify", "v3", "--store", store).failed_with(f"v3/{name}: expected a file that opens, found: ")


def serve_error(store: Path, *flags: str) -> str:
    """Start a server that must fail; return its error message."""
    command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), *flags]
    done = forked.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("recollect serve: ")
    return done.stderr


def test_serve_reports_that_the_port_is_taken(two_versions: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = serve_error(two_versions, "--port", port)
    assert f"127.0.0.1:{port}: expected an address to listen on, found: Address already in use; choose" in line


def test_versions_are_listed_even_if_the_activation_record_is_damaged(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "activations" / "00000001.json").write_text("{")
    ran = Ran(capsys, "versions", "--store", store)
    assert ran.status == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["v1", "v2"]
    assert "00000001.json: expected an activation record" in ran.err


def test_predict_escapes_control_characters_in_its_output(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_version(store, "v1", "v3", relabel([f"evil \x1b[2J{row}\nline" for row in range(8)]))
    ran = Ran(capsys, "predict", QUERY, "--store", store, "--version", "v3", "--top-k", 1)
    assert "evil \\x1b[2J1\\nline" in ran.out
    assert len(ran.out.splitlines()) == 1


@pytest.mark.parametrize("bulk", [False, True])
def test_predict_reports_filters_with_unknown_uids(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, bulk: bool
) -> None:
    (tmp_path / "in.txt").write_text("tax\n")
    query = ("--input", str(tmp_path / "in.txt"), "--workers", "1") if bulk else ("tax",)
    ran = Ran(capsys, "predict", *query, "--store", store, "--allow", "Law,Lwa", "--deny", "x")
    assert ran.err.splitlines() == [
        "--allow: 1 of 2 uids are no labels of this version, such as 'Lwa'",
        "--deny: 1 of 1 uids are no labels of this version, such as 'x'",
    ]


def test_predict_warns_if_the_query_is_longer_than_the_encoder_reads(
    two_versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(capsys, "predict", QUERY * 100, "--store", two_versions)
    assert ran.err == "the query is longer than the 128 tokens that the encoder reads\n"
    assert '"truncated":true' in Ran(capsys, "predict", QUERY * 100, "--store", two_versions, "--json").out
