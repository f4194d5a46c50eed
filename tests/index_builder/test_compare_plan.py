"""Plans of comparisons, and inputs that `compare` rejects before it trains or writes anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest

from recollect.index_builder.compare.plan import SHARED_FLAGS, plan_runs
from recollect.index_builder.compare.training import run_recollect
from recollect.index_builder.errors import ContestantError
from recollect.index_builder.settings import METHODS, CompareSettings
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import write_topics
from tests.index_builder.comparisons import run


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_topics(tmp_path / "topics")


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.index_builder.compare.training.run_recollect", pytest.fail)


def rejection(dataset: Path, *flags: object, out: Path | None = None) -> str:
    """Run `recollect compare`, which must fail with one line on stderr and write nothing; return the line."""
    out = out or dataset.parent / "out"
    before = sorted(dataset.parent.rglob("*"))
    output = run(dataset, "--out", out, *flags)
    assert (output.status, output.out, len(output.err.splitlines())) == (2, "", 1), output.err
    assert sorted(dataset.parent.rglob("*")) == before
    return output.err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--methods", "rae,bayes"], f"--methods: expected one of {', '.join(METHODS)}; found 'bayes'"),
        (["--methods", "rae,dexml,rae"], "--methods: expected each value once; found"),
        (["--methods", ""], "--methods: expected at least one method, or a file with --variants, found neither"),
        (["--seeds", "1,1"], "--seeds: expected each value once; found"),
        (["--seeds", ""], "--seeds: expected"),
        (["--seeds", "0,-1"], "--seeds: expected greater than or equal to 0; found '-1'"),
        (["--epochs", "0"], "--epochs: expected greater than or equal to 1; found '0'"),
        (["--limit", "-1"], "--limit: expected"),
        (["--metric", "F1"], "--metric: expected"),
        (["--variants", "/none.toml"], "/none.toml: No such file or directory"),
    ],
)
def test_error_names_the_wrong_flag(dataset: Path, flags: list[str], expected: str) -> None:
    assert expected in rejection(dataset, *flags)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[near", "expected TOML with one table for each variant, found: "),
        ("bank = 0", "bank: expected one table for each variant, found a key outside any table"),
        (
            '[rae]\nmethod = "rae"',
            "[rae]: expected a name that no method has, found the name of a method; rename the variant, as in [rae-",
        ),
        ('[untrained]\nmethod = "rae"', "[untrained]: expected a name that no method has"),
        ('["../up"]\nmethod = "rae"', "[../up]: expected a name of letters, digits"),
        (
            '[rae-seed1]\nmethod = "rae"',
            "[rae-seed1]: expected a name of letters, digits, '.', '_' and '-' that does not end in -seed and a",
        ),
        ("[near]\npositives = 2", '[near]: expected the key "method", found none; add one, as in method = "rae"'),
        ('[near]\nmethod = "rae"\nbanks = 0', "[near] banks: expected a flag of `recollect train`, with underscores"),
        ('[near]\nmethod = "rae"\nmax_steps = 9', "[near] max_steps: expected a flag that may differ between variants"),
        ('[near]\nmethod = "rae"\nseed = 1', "[near] seed: expected a flag that may differ between variants"),
        (
            '[near]\nmethod = "rae"\npreset = "rae/lf-amazontitles-131k"',
            "[near] preset: expected a flag that may differ",
        ),
        ('[near]\nmethod = "bayes"', "[near] method: expected 'rae'"),
        ('[near]\nmethod = "rae"\npositives = "few"', "[near] positives: expected a valid integer"),
        ('[near]\nmethod = "rae"\npositives = {a = 1}', "[near] positives: expected a string, a number"),
        ('[near]\nmethod = "rae"\npositives = true', "[near]: argument --positives: expected one argument"),
        ('[near]\nmethod = "infonce"\nmine_top = 9', "[near]: --mine-top: expected hard negatives to mine"),
    ],
)
def test_error_in_a_variants_file_names_the_table_and_the_key(dataset: Path, written: str, expected: str) -> None:
    variants = dataset.parent / "variants.toml"
    variants.write_text(written)
    message = rejection(dataset, "--methods", "rae", "--variants", variants)
    assert str(variants) in message
    assert expected in message


def test_missing_dataset_or_test_split_is_rejected(dataset: Path) -> None:
    assert "expected a dataset folder, found nothing" in rejection(dataset.parent / "none")
    (dataset / "test.jsonl").unlink()
    assert "test.jsonl" in rejection(dataset)


def test_variant_that_needs_a_larger_dataset_is_rejected_before_training(dataset: Path) -> None:
    variants = dataset.parent / "variants.toml"
    variants.write_text('[large]\nmethod = "prime"\nbank = 1000\n')
    assert "[large]: --bank 1000: expected at most " in rejection(dataset, "--variants", variants)
    assert not (dataset.parent / "out").exists()


def test_output_folder_with_other_content_is_rejected(dataset: Path) -> None:
    out = dataset.parent / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("")
    assert "expected an absent folder, an empty folder or a comparison, found thesis.tex in it" in rejection(dataset)
    (out / "comparison.json").write_text('{"format_version": 99}')
    assert "expected a comparison with format_version 1, found: " in rejection(dataset)
    (out / "comparison.json").write_text('{"format_version": 1, "dataset_sha256": "", "runs": {"rae": 3}}')
    assert "expected a comparison with format_version 1, found: " in rejection(dataset)
    shutil.rmtree(out)
    out.write_text("")
    assert str(out) in rejection(dataset)
    assert str(out) in rejection(dataset, out=out / "below")


def test_variant_has_its_own_flags_and_the_shared_flags(dataset: Path) -> None:
    variants = dataset.parent / "variants.toml"
    variants.write_text(
        '[slow]\nmethod = "dexml"\nlearning_rate = 1e-5\n[text]\nmethod = "rae"\nlabel_inputs = "text"\n'
    )
    settings = CompareSettings(
        dataset=dataset,
        out=dataset.parent / "out",
        methods=["rae"],
        variants=variants,
        seeds=[0, 3],
        learning_rate=0.01,
    )
    runs = plan_runs(settings)
    assert [run.name for run in runs] == [
        *("untrained", "rae", "rae-seed3", "slow", "slow-seed3", "text", "text-seed3"),
    ]
    flags = {run.name: run.contestant.flags for run in runs}
    assert flags["untrained"] == ("--epochs=0",)
    assert flags["rae"] == flags["rae-seed3"] == ("--learning-rate=0.01", "--method=rae")
    assert flags["slow"] == ("--method=dexml", "--learning-rate=1e-05")
    assert flags["text"] == ("--learning-rate=0.01", "--method=rae", "--label-inputs=text")


@pytest.mark.parametrize("name", [name for name in SHARED_FLAGS if name in TrainSettings.model_fields])
def test_shared_flags_have_the_same_type_and_default_as_in_recollect_train(name: str) -> None:
    ours, theirs = CompareSettings.model_fields[name], TrainSettings.model_fields[name]
    assert (ours.annotation, ours.default) == (theirs.annotation, theirs.default)


def test_every_method_is_compared_by_default() -> None:
    assert get_args(TrainSettings.model_fields["method"].annotation) == METHODS
    assert CompareSettings.model_fields["methods"].default == list(METHODS)


def test_error_after_a_killed_training_process_names_the_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Zwölf >&2\nkill -KILL $$\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ContestantError, match="^rae: `recollect train` was killed by SIGKILL; memory may have run out"):
        run_recollect("rae", "train")


def test_error_after_a_failed_training_process_contains_its_last_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf 'a\\rb\\nrecollect train: zwölf\\n\\n' >&2\nexit 2\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ContestantError, match=r"^rae: zwölf \(finished steps are kept") as failed:
        run_recollect("rae", "train")
    assert failed.value.exit_status == 1
    assert capsys.readouterr().err == "a\rb\nrecollect train: zwölf\n\n"
