"""Runs on the Hugging Face hub, against a hub on this machine: upload, download, errors, the model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import recollect
from recollect.extras.hub.runs import download
from recollect.index_builder.errors import BuildError
from recollect.trainer.memory.memory import open_memory, read_dataset_flags
from tests.extras.hub.hub_server import TOKEN, Hub, running_hub


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """An empty hub, an empty local cache, and the token in the environment."""
    server.repositories.clear()
    server.private.clear()
    server.tokens.clear()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub cache"))
    return server


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_run, tmp_path / "run")


def files_of(folder: Path) -> dict[str, bytes]:
    """The data files of a run."""
    names = (path for part in ("checkpoint", "memory") for path in (folder / part).rglob("*"))
    kept = (path for path in names if path.suffix not in (".py", ".pkl") and path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def same(first: Path, second: Path) -> bool:
    """Whether two runs have equal data files. The names of encoder and labels may have lost their folders."""
    named = {"checkpoint/recollect.json", "memory/memory.json", "memory/dataset.json"}
    ours, theirs = files_of(first), files_of(second)
    return ours.keys() == theirs.keys() and all(ours[name] == theirs[name] for name in ours.keys() - named)


def push(run: Path, capsys: pytest.CaptureFixture[str], *flags: str, to: str = "me/bills") -> str:
    assert recollect.main(["push", str(run), "--to", to, *flags]) == 0
    out, err = capsys.readouterr()
    assert TOKEN not in out + err
    return out.rstrip("\n")


def test_pushed_run_is_downloaded_unchanged_without_code_and_pickles(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoint" / "modeling.py").write_text("raise SystemExit")
    (run / "state").mkdir()
    (run / "state" / "optimizer.safetensors").write_bytes(b"0")
    address = push(run, capsys)
    uploaded = hub.repositories["me/bills"]["main"]
    assert {*files_of(run), "README.md"} <= set(uploaded)
    assert not any(name.endswith(".py") or name.startswith("state") for name in uploaded)
    assert hub.private == {"me/bills"}
    hub.commit("me/bills", {"memory/evil.pkl": b"0", "checkpoint/evil.py": b"0"})
    for name in (address, "hf://me/bills", "hf://me/bills@main"):
        found = download(Path(name))
        assert same(found, run)
        assert not [*found.rglob("evil*")]
    assert f"Bearer {TOKEN}" in hub.tokens


def test_pushed_files_do_not_contain_the_folders_of_the_author(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = open_memory(run / "memory").plan.encoder["name"]
    assert Path(encoder).is_absolute()
    push(run, capsys)
    uploaded = hub.repositories["me/bills"]["main"]
    assert not [name for name, content in uploaded.items() if str(Path(encoder).parent).encode() in content]
    assert open_memory(download(Path("hf://me/bills")) / "memory").plan.encoder["name"] == Path(encoder).name


def test_pushed_files_do_not_contain_the_address_of_a_server_and_the_path_of_the_labels(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = open_memory(run / "memory").plan.encoder["name"]
    for name in ("checkpoint/recollect.json", "memory/memory.json"):
        text = (run / name).read_text()
        assert encoder in text
        (run / name).write_text(text.replace(encoder, "http://gpu.internal:8000/v1#words"))
    flags = {"format": "table", "label_separator": "/", "labels": "/home/me/private/labels.csv"}
    (run / "memory" / "dataset.json").write_text(json.dumps({"format_version": 1, "flags": flags}))
    push(run, capsys)
    uploaded = hub.repositories["me/bills"]["main"]
    assert not [name for name, content in uploaded.items() if b"internal" in content or b"private" in content]
    assert "| encoder | `words`, of a server |" in uploaded["README.md"].decode()
    found = download(Path("hf://me/bills")) / "memory"
    assert read_dataset_flags(found) == flags | {"labels": "labels.csv"}
    assert open_memory(found).plan.encoder["name"] == "http://server/v1#words"


def test_texts_are_not_uploaded_to_a_public_repository_without_public(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repositories["me/bills"] = {}  # public
    assert recollect.main(["push", str(run), "--to", "me/bills"]) == 2
    assert "expected a private repository" in capsys.readouterr().err
    assert hub.repositories["me/bills"] == {}
    push(run, capsys, "--public")
    assert "main" in hub.repositories["me/bills"]


def test_revision_pins_the_commit(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, before = push(run, capsys), files_of(run)
    labels = run / "memory" / "labels.jsonl"
    labels.write_text(labels.read_text().replace("Taxation", "Taxes"))
    second = push(run, capsys)
    assert first != second
    assert download(Path(first)).joinpath("memory/labels.jsonl").read_bytes() == before["memory/labels.jsonl"]
    assert same(download(Path("hf://me/bills")), run)


def test_bundle_is_built_from_the_hub(hub: Hub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = push(run, capsys)
    recollect.build(address, store=tmp_path / "store", index="flat", lexical="off", activate=True, force=True)
    assert recollect.open(tmp_path / "store").predict("tax", top_k=1)


def test_downloaded_run_is_read_without_the_hub(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = push(run, capsys)
    download(Path(address))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same(download(Path(address)), run)
    with pytest.raises(BuildError, match=r"hf://me/other: expected an answer of .*, found none"):
        download(Path("hf://me/other"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://me", "hf://me: expected hf://user/name or hf://user/name@revision"),
        (
            "hf://me/absent",
            "hf://me/absent: the hub answered 404: there is no such repository, or HF_TOKEN may not use it",
        ),
        ("hf://me/there@v9", "hf://me/there@v9: the repository has no such revision"),
    ],
)
def test_wrong_address_is_refused(hub: Hub, capsys: pytest.CaptureFixture[str], address: str, message: str) -> None:
    hub.repositories["me/there"] = {}
    hub.commit("me/there", {})
    assert recollect.main(["build", address, "--store", "absent"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("absent").exists()


@pytest.mark.parametrize(
    ("token", "to", "message"),
    [
        ("wrong", "me/bills", r"--to me/bills: .*HF_TOKEN"),
        ("hf_s\u00e9cret", "me/bills", r"HF_TOKEN: expected printable ASCII characters, found others"),
        (TOKEN, "bills", "--to bills: expected user/name"),
    ],
)
def test_push_that_the_hub_refuses_names_the_next_step(
    hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, token: str, to: str, message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(BuildError, match=message) as refusal:
        recollect.push(run, to=to)
    assert "\n" not in str(refusal.value)
    assert "cret" not in str(refusal.value)
    assert hub.repositories == {}


def test_hub_that_does_not_answer_is_named(hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BuildError, match="--to me/bills: expected an answer of .*, found none; check the network"):
        recollect.push(run, to="me/bills")


def test_unfinished_run_is_not_pushed(hub: Hub, run: Path) -> None:
    (run / "training.json").write_text('{"format_version": 2, "recipe": {"seed": 0}, "done": false, "progress": null}')
    with pytest.raises(BuildError, match="expected a finished training; finish it with `recollect train --resume`"):
        recollect.push(run, to="me/bills")
    assert hub.repositories == {}


class TestModelCard:
    def card(self, run: Path, **flags: Any) -> str:
        return recollect.push(run, to="me/bills", dry_run=True, **flags)

    def test_card_has_the_facts_figures_and_data_sheet(self, hub: Hub, run: Path, tmp_path: Path) -> None:
        row = {"order": "score", "lambda": 0.5, "P@1": 61.25, "nDCG@5": 70.0, "R@100": None}
        (tmp_path / "evaluation.json").write_text(json.dumps({"version": "v", "queries": 7, "rows": [row]}))
        card = self.card(run, license="cc0-1.0", evaluation=tmp_path / "evaluation.json")
        assert "\nlibrary_name: recollect\n" in card.split("---")[1]
        for line in (
            "license: cc0-1.0",
            "# bills",
            "recollect build hf://me/bills --store store/ --activate",
            "| 7 test texts, order score, lambda 0.5 | P@1 61.2, nDCG@5 70.0 |",
            "| texts | 28 |",
            "| labels | 8 |",
            "| labels of a text | 1.1 on average, 2 at most |",
            "| labels without a text | 1 |",
        ):
            assert f"\n{line}\n" in card
        assert hub.repositories == {}

    def test_training_without_validation_has_no_figure_of_it(self, hub: Hub, run: Path) -> None:
        progress = {"step": 4, "best": None, "best_step": 4, "seconds": 12.4}
        training = {"format_version": 2, "recipe": {"seed": 0}, "done": True, "progress": progress}
        (run / "training.json").write_text(json.dumps(training))
        card = self.card(run)
        assert "| seconds of training | 12 |" in card
        assert "held-out" not in card

    def test_licence_is_one_word(self, hub: Hub, run: Path) -> None:
        with pytest.raises(recollect.UsageError, match="license: expected"):
            self.card(run, license="mit\nextra: 1")

    def test_wrong_evaluation_is_refused(self, hub: Hub, run: Path, tmp_path: Path) -> None:
        (tmp_path / "evaluation.json").write_text("{}")
        with pytest.raises(BuildError, match=r"evaluation\.json: expected the output of `recollect evaluate --json`"):
            self.card(run, evaluation=tmp_path / "evaluation.json")
