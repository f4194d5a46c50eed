"""`recollect compare` trains, tunes and measures methods, and continues after an interruption."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import recollect
from recollect.index_builder.compare import contestants, run_recollect
from recollect.index_builder.evaluation.measured import report
from recollect.index_builder.run_quality import LabelledQueries, measure
from recollect.index_builder.settings import CompareSettings
from recollect.trainer.data.dataset import Dataset, open_dataset
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.run_folder import RunFolder
from tests import forked
from tests.conftest import made_once, write_topics
from tests.tiny_runs import write_tiny_encoder

# Filtered pairs of query and label. The first pair filters label 0 (Taxation), the true label of query 0.
FILTER = "0 0\n0 1\n3 2\n6 4\n"
# Flags for 14 training steps: there are 28 instances, and six of them are held out.
SMALL_TRAINING = ["--max-length", 64, "--epochs", 2, "--batch-size", 4]
RUN_RECOLLECT = "recollect.index_builder.compare.run_recollect"
VARIANT = (
    '[near]\nmethod = "infonce"\nlabel_inputs = "text"\nbatch_size = 7\nlearning_rate = {}\nvalidation_fraction = 0\n'
)


class Output(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def trained(self) -> list[str]:
        """Names of the runs that this command trained."""
        return [Path(line.partition("/memory: ")[0]).name for line in self.err.splitlines() if "written now" in line]


def run(*arguments: object) -> Output:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = recollect.main(["compare", *map(str, arguments)])
    return Output(status, out.getvalue(), err.getvalue())


def run_in_this_process(verb: str, *arguments: str) -> None:
    """Run a verb in the process of the test. `recollect compare` would run it in a separate process."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert recollect.main([verb, *arguments]) == 0


class Compared(NamedTuple):
    """A comparison of the untrained encoder, rae and a variant, and its output. Tests must not change it."""

    dataset: Path
    encoder: Path
    variants: Path
    out: Path
    failed: Output
    done: Output

    def again(self, out: Path, *more: object, methods: str = "rae") -> Output:
        """Run the same command with more flags. A flag that is given twice has its last value."""
        usual = [self.dataset, "--out", out, "--encoder", self.encoder, "--methods", methods, *SMALL_TRAINING]
        return run(*usual, *more)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "report.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = made_once(tmp_path_factory, "compared", compare_twice)
    outputs = (Output(*json.loads((folder / f"{each}.json").read_text())) for each in ("failed", "done"))
    return Compared(*(folder / name for name in ("topics", "tiny", "ablation.toml", "out")), *outputs)


def compare_twice(folder: Path) -> None:
    """Run the comparison twice. The first time, the variant's learning rate is so high that its training diverges.

    Its folder is removed then, because the second training has other flags.

    Only the variant is trained in separate processes, which are forked, because a new one takes time to import torch.
    """

    def call(name: str, verb: str, *arguments: str) -> None:
        run_recollect(name, verb, *arguments) if name == "near" else run_in_this_process(verb, *arguments)

    dataset, encoder = write_topics(folder / "topics"), write_tiny_encoder(folder / "tiny", "bert")
    (dataset / "filter_labels_test.txt").write_text(FILTER)
    variants, out = folder / "ablation.toml", folder / "out"
    command = [dataset, "--out", out, "--encoder", encoder, "--methods", "rae", "--variants", variants, *SMALL_TRAINING]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUN_RECOLLECT, call)
        patch.setattr("subprocess.Popen", forked.Popen)
        for name, learning_rate in (("failed", 1e30), ("done", 1e-3)):
            variants.write_text(VARIANT.format(learning_rate))
            (folder / f"{name}.json").write_text(json.dumps(run(*command)))
            assert (out / "report.md").exists() == (name == "done")
            if name == "failed":
                shutil.rmtree(out / "runs" / "near")


@pytest.fixture
def out(compared: Compared, tmp_path: Path) -> Path:
    """A copy of the comparison that a test may change."""
    return shutil.copytree(compared.out, tmp_path / "out")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Train and tune in the process of the test, which needs no new import of torch. The list has the called verbs."""
    called = []

    def call(name: str, verb: str, *arguments: str) -> None:
        called.append(f"{verb} {name}")
        run_in_this_process(verb, *arguments)

    monkeypatch.setattr(RUN_RECOLLECT, call)
    return called


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RUN_RECOLLECT, pytest.fail)


def queries(dataset: Dataset) -> LabelledQueries:
    return LabelledQueries(dataset.read_split("test"), len(dataset.labels), (0.55, 1.5), frozen=True)


def by_hand(memory: Memory, checkpoint: Path, dataset: Dataset, plain: bool = False) -> dict[str, float | None]:
    """Compute every metric of a memory in float64, from the similarities of the queries to all keys."""
    test, defaults = dataset.read_split("test"), memory.defaults
    encoder, lambda_ = load_checkpoint(checkpoint, "cpu"), 0.0 if plain else defaults["lambda"]
    vectors = encoder.encode(test.entries.texts.to_pylist(), 64).astype(np.float64)
    labels = memory.label_keys(0.0 if plain else None)[:]
    keys = np.concatenate([memory.instance_keys, labels]).astype(np.float64)
    relevance, labels_only = memory.label_sets.to_csr(len(labels)).toarray(), np.eye(len(labels))
    values = np.concatenate([lambda_ * relevance, (1 - lambda_) * labels_only])
    similarities = vectors @ keys.T
    votes = np.repeat([lambda_ > 0, lambda_ < 1], [len(relevance), len(labels)])
    similarities[:, ~votes] = -np.inf
    top_b = 1_000 if plain else int(defaults["top_b"])
    np.put_along_axis(similarities, np.argsort(-similarities, axis=1)[:, top_b:], -np.inf, axis=1)
    weights = np.exp(similarities / defaults["temperature"])
    scores = (weights / weights.sum(axis=1, keepdims=True)) @ values
    scores[tuple(test.filtered_pairs.T)] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    predictions = np.where(np.take_along_axis(scores, order, axis=1) > 0, order, -1)
    counts = relevance.sum(axis=0).astype(np.int64)
    return report(predictions, test.labels.to_csr(len(labels)), counts, len(relevance))


def test_failed_training_stops_the_comparison_with_a_message_of_one_line(compared: Compared) -> None:
    assert (compared.failed.status, compared.failed.out) == (1, "")
    last = compared.failed.err.splitlines()[-1]
    assert last.startswith("recollect compare: near: step ")
    assert "expected a finite loss, gradient and vectors" in last
    assert last.endswith("(finished runs are kept; fix the cause and run the command again)")
    assert "Traceback" not in compared.failed.err
    assert compared.failed.trained == ["untrained", "rae"]


def test_same_command_continues_after_a_failure_and_trains_nothing_twice(compared: Compared) -> None:
    assert compared.done.status == 0
    assert compared.done.trained == ["near"]


def test_contestant_without_held_out_instances_is_not_tuned(compared: Compared) -> None:
    assert "compare: near is not tuned, because its training held out no instances" in compared.done.err
    assert {path.parent.parent.name for path in compared.out.rglob("tuning.json")} == {"untrained", "rae"}


def test_repeated_finished_comparison_only_prints_its_table(compared: Compared, out: Path, no_training: None) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = compared.again(out, "--variants", compared.variants)
    assert (again.status, again.out) == (0, compared.done.out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_contestant_gets_the_shared_flags_that_it_reads(tmp_path: Path) -> None:
    settings = CompareSettings(
        dataset=tmp_path, out=tmp_path, methods=["rae", "prime"], propensity=(0.6, 2.6), max_length=16, epochs=2
    )
    assert {each.name: each.flags for each in contestants(settings)} == {
        "untrained": {"max_length": 16, "epochs": 0},
        "rae": {"max_length": 16, "epochs": 2, "method": "rae"},
        "prime": {"max_length": 16, "epochs": 2, "method": "prime", "propensity": (0.6, 2.6)},
    }


@pytest.mark.parametrize("name", ["untrained", "runs/rae", "runs/near"])
def test_figures_of_each_run_equal_scores_computed_in_float64(compared: Compared, name: str) -> None:
    dataset = open_dataset(compared.dataset)
    path = compared.out / name
    memory = open_memory(path / "memory")
    runs = {each["name"]: each["runs"][0] for each in compared.report()["contestants"]}
    found = runs[path.name]
    assert found["tuned"] == pytest.approx(by_hand(memory, path / "checkpoint", dataset))
    assert found["plain"] == pytest.approx(by_hand(memory, path / "checkpoint", dataset, plain=True))


def test_mean_over_the_scores_of_single_queries_equals_the_metric(compared: Compared) -> None:
    found = measure(compared.out / "runs" / "rae", queries(open_dataset(compared.dataset)), "cpu")
    assert list(found.scores) == ["P@1", "P@3", "P@5", "nDCG@5"]
    for metric, scores in found.scores.items():
        assert np.mean(scores) == pytest.approx(found.tuned[metric])


def test_report_has_the_intervals_of_the_differences_between_the_best_two(compared: Compared) -> None:
    report = compared.report()
    tuned = {each["name"]: each["runs"][0]["tuned"] for each in report["contestants"]}
    first, second = report["significance"]["best"]
    assert tuned[first]["nDCG@5"] >= tuned[second]["nDCG@5"]
    assert [test["metric"] for test in report["significance"]["tests"]] == ["P@1", "P@3", "P@5", "nDCG@5"]
    for test in report["significance"]["tests"]:
        low, high = test["interval"]
        assert test["difference"] == pytest.approx(tuned[first][test["metric"]] - tuned[second][test["metric"]])
        assert low <= test["difference"] <= high
        line = f"{test['metric']} | {test['difference']:+.2f} | {low:+.2f} to {high:+.2f}"
        assert line in " ".join((compared.out / "report.md").read_text(encoding="utf-8").split())


def test_new_seeds_are_trained_and_averaged_with_existing_runs(
    compared: Compared, out: Path, in_this_process: list[str]
) -> None:
    output = compared.again(out, "--seeds", "0,1", "--json")
    assert output.status == 0
    assert in_this_process == ["train rae-seed1", "tune rae-seed1"]
    found = json.loads(output.out)
    assert found == json.loads((out / "report.json").read_text(encoding="utf-8"))
    untrained, rae = found["contestants"]
    assert ([run["seed"] for run in untrained["runs"]], [run["seed"] for run in rae["runs"]]) == ([0], [0, 1])
    scores = [run["tuned"]["nDCG@5"] for run in rae["runs"]]
    row = next(line for line in (out / "report.md").read_text().splitlines() if line.startswith("| rae"))
    assert f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}" in row.replace("*", "")


def test_another_tuning_metric_repeats_the_tuning_but_not_the_training(
    compared: Compared, out: Path, in_this_process: list[str]
) -> None:
    output = compared.again(out, "--metric", "P@1")
    assert (output.status, output.trained) == (0, [])
    assert {"tune untrained", "tune rae"} <= set(in_this_process)
    assert "best two by P@1" in (out / "report.md").read_text(encoding="utf-8")


def test_same_folder_with_other_flags_for_a_trained_contestant_is_rejected(
    compared: Compared, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training itself refuses, and names the flag."""
    monkeypatch.setattr("subprocess.Popen", forked.Popen)
    output = compared.again(out, "--epochs", "3")
    assert (output.status, output.out) == (1, "")
    assert "rae: " in output.err.splitlines()[-1]
    assert "differs in" in output.err.splitlines()[-1]


@pytest.mark.parametrize(("method", "views"), [("unidec", ["dual encoder", "classifier"]), ("rae", [])])
def test_labels_are_ranked_by_each_view_of_their_keys(method: str, views: list[str], tmp_path: Path) -> None:
    data, encoder = write_topics(tmp_path / "topics"), write_tiny_encoder(tmp_path / "tiny", "bert")
    trained = recollect.train(data, out=tmp_path / "run", encoder=encoder, method=method, max_steps=3, tune="no")
    tests = queries(open_dataset(data))
    quality, memory = measure(trained, tests, "cpu"), open_memory(trained / "memory")
    assert list(quality.views) == views
    vectors, keys = tests.vectors(RunFolder(trained), "cpu"), memory.label_keys(0.0).filled()
    counts = np.bincount(memory.value_indices, minlength=memory.plan.labels)
    half = keys.shape[1] // 2
    for name, part in zip(views, (slice(0, half), slice(half, None)), strict=False):
        ranked = np.argsort(-(vectors[:, part] @ keys[:, part].T), axis=1, kind="stable")
        by_hand = report(ranked, tests.truth, counts, memory.plan.instances, (0.55, 1.5))
        assert quality.views[name] == by_hand["nDCG@5"]


# ---- Refused before anything is trained or written ----


def rejection(dataset: Path, *flags: object, out: Path | None = None) -> str:
    """Run `recollect compare`, which must fail with one line on stderr and write nothing; return the line."""
    out = out or dataset.parent / "out"
    before = sorted(dataset.parent.rglob("*"))
    output = run(dataset, "--out", out, *flags)
    assert (output.status, output.out, len(output.err.splitlines())) == (2, "", 1), output.err
    assert sorted(dataset.parent.rglob("*")) == before
    return output.err


@pytest.fixture
def dataset(tmp_path: Path, no_training: None) -> Path:
    return write_topics(tmp_path / "topics")


def test_output_folder_with_files_of_something_else_is_refused(dataset: Path) -> None:
    out = dataset.parent / "notes"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert "expected an absent folder, an empty folder or a comparison, found notes.txt in it" in rejection(
        dataset, "--methods", "rae", out=out
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--methods", "rae,bayes"], "--methods: expected 'rae', 'dexml'"),
        (["--methods", ""], "--methods: expected at least one method, or a file with --variants, found neither"),
        (["--seeds", "1,1"], "--seeds: expected each value once; found"),
        (["--seeds", "0,-1"], "--seeds: expected greater than or equal to 0; found '-1'"),
        (["--variants", "/none.toml"], "/none.toml: No such file or directory"),
    ],
)
def test_error_names_the_wrong_flag(dataset: Path, flags: list[str], expected: str) -> None:
    assert expected in rejection(dataset, *flags)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[near", "expected TOML with one table for each variant, found: "),
        ('[rae]\nmethod = "rae"', "[rae]: expected a name"),
        ('["../up"]\nmethod = "rae"', "[../up]: expected a name of letters, digits"),
        ('[near]\nmethod = "rae"\nbanks = 0', "[near] banks: expected a flag of `recollect train`"),
        ('[near]\nmethod = "rae"\nmax_steps = 9', "[near] max_steps: expected a flag that may differ between variants"),
        ('[near]\nmethod = "infonce"\nmine_top = 9', "[near]: --mine-top: expected hard negatives to mine"),
    ],
)
def test_error_in_a_variants_file_names_the_table_and_the_key(dataset: Path, written: str, expected: str) -> None:
    variants = dataset.parent / "variants.toml"
    variants.write_text(written)
    message = rejection(dataset, "--methods", "rae", "--variants", variants)
    assert str(variants) in message
    assert expected in message
