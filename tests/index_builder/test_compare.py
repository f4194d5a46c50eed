"""`recollect compare` trains, tunes and measures methods, and continues after an interruption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from recollect.index_builder.compare.quality import measure
from recollect.index_builder.compare.queries import Queries
from recollect.index_builder.compare.training import run_recollect
from recollect.trainer.data.dataset import Dataset, open_dataset
from recollect.trainer.data.split import Split
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.memory import Memory, open_memory, write_defaults
from recollect.trainer.metrics import report
from tests.conftest import write_topics
from tests.index_builder.comparisons import SMALL_TRAINING, Output, run, run_in_this_process
from tests.index_builder.conftest import write_tiny_encoder

# Filtered pairs of query and label. The first pair filters label 0 (Taxation), the true label of query 0.
FILTER = "0 0\n0 1\n3 2\n6 4\n"
VARIANT = '[near]\nmethod = "infonce"\nlabel_keys = "enriched"\nbatch_size = 7\nlearning_rate = {}\n'


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


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Run the comparison twice. The first time, the variant's learning rate is so high that its training diverges.

    Only the variant is trained in separate processes, because every new process takes time to import torch.
    """

    def call(name: str, verb: str, *arguments: str) -> None:
        run_recollect(name, verb, *arguments) if name == "near" else run_in_this_process(verb, *arguments)

    folder = tmp_path_factory.mktemp("compared")
    dataset, encoder = write_topics(folder / "topics"), write_tiny_encoder(folder / "tiny", "bert")
    (dataset / "filter_labels_test.txt").write_text(FILTER)
    variants, out = folder / "ablation.toml", folder / "out"
    command = [dataset, "--out", out, "--encoder", encoder, "--methods", "rae", "--variants", variants, *SMALL_TRAINING]
    outputs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.index_builder.compare.training.run_recollect", call)
        for learning_rate in (1e30, 1e-3):
            variants.write_text(VARIANT.format(learning_rate))
            outputs.append(run(*command))
            assert (out / "report.md").exists() == (len(outputs) == 2)
    return Compared(dataset, encoder, variants, out, *outputs)


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

    monkeypatch.setattr("recollect.index_builder.compare.training.run_recollect", call)
    return called


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.index_builder.compare.training.run_recollect", pytest.fail)


def queries(dataset: Dataset, split: Split | None = None, frozen: bool = True) -> Queries:
    return Queries(dataset.labels, split or dataset.read_split("test"), (0.55, 1.5), frozen)


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
    assert last.endswith("(finished steps are kept; fix the cause and run the command again)")
    assert "Traceback" not in compared.failed.err
    assert compared.failed.trained == ["untrained", "rae"]


def test_same_command_continues_after_a_failure_and_trains_nothing_twice(compared: Compared) -> None:
    assert compared.done.status == 0
    assert compared.done.trained == ["near"]


def test_repeated_finished_comparison_only_prints_its_table(
    compared: Compared, out: Path, no_training: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.index_builder.compare.queries.load_checkpoint", pytest.fail)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = compared.again(out, "--variants", compared.variants)
    assert (again.status, again.out) == (0, compared.done.out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["untrained", "runs/rae", "runs/near"])
def test_figures_of_each_run_equal_scores_computed_in_float64(compared: Compared, name: str) -> None:
    dataset = open_dataset(compared.dataset)
    path = compared.out / name
    memory = open_memory(path / "memory")
    contestants = {each["name"]: each["runs"][0] for each in compared.report()["contestants"]}
    found = contestants[path.name]
    assert found["tuned"] == pytest.approx(by_hand(memory, path / "checkpoint", dataset))
    assert found["plain"] == pytest.approx(by_hand(memory, path / "checkpoint", dataset, plain=True))
    tuned = next(point for point in found["curve"] if point["lambda"] == found["answering"]["lambda"])
    assert (tuned["P@1"], tuned["nDCG@5"]) == pytest.approx((found["tuned"]["P@1"], found["tuned"]["nDCG@5"]))
    assert {point["lambda"] for point in found["curve"]} >= {0, 0.1, 0.2, 0.5, 0.9, 1}


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_figures_are_measured_with_the_default_settings_of_the_memory(
    compared: Compared, out: Path, lambda_: float, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.index_builder.compare.quality._BLOCK_QUERIES", 3)
    path, dataset = out / "runs" / "rae", open_dataset(compared.dataset)
    memory = open_memory(path / "memory")
    changed = {"lambda": lambda_, "temperature": 0.2, "top_b": 5, "label_key_alpha": alpha}
    write_defaults(memory.folder, memory.plan, changed)
    memory = open_memory(path / "memory")
    found = measure(path, queries(dataset), "cpu")
    assert found.answering == changed
    assert found.tuned == pytest.approx(by_hand(memory, path / "checkpoint", dataset))
    for point in found.curve:
        write_defaults(memory.folder, memory.plan, changed | {"lambda": point["lambda"]})
        expected = by_hand(open_memory(path / "memory"), path / "checkpoint", dataset)
        assert (point["P@1"], point["nDCG@5"]) == pytest.approx((expected["P@1"], expected["nDCG@5"]))


def test_mean_over_the_scores_of_single_queries_equals_the_metric(compared: Compared) -> None:
    tests = queries(open_dataset(compared.dataset))
    found = measure(compared.out / "runs" / "rae", tests, "cpu")
    scores = found.scores(tests.sizes)
    assert list(scores) == ["P@1", "P@3", "P@5", "nDCG@5"]
    for metric, each in scores.items():
        assert 100 * each.mean() == pytest.approx(found.tuned[metric])


def test_cached_figures_are_not_used_for_other_queries(compared: Compared, out: Path) -> None:
    path, dataset = out / "runs" / "rae", open_dataset(compared.dataset)
    whole = measure(path, queries(dataset), "cpu")
    first = measure(path, queries(dataset, dataset.read_split("test").head(2)), "cpu")
    assert (len(whole.hits), len(first.hits)) == (7, 2)
    (path / "quality.json").write_text('{"digest": "')  # a truncated file, as after a full disk
    assert measure(path, queries(dataset), "cpu") == whole


def test_report_files_contain_no_path_of_the_machine(compared: Compared) -> None:
    for name in ("report.md", "report.html", "report.json"):
        written = (compared.out / name).read_text(encoding="utf-8")
        assert str(compared.dataset.parent) not in written
        assert "topics" in written
        assert "tiny" in written
        assert "ablation.toml" in written


def test_compare_prints_the_table_on_stdout(compared: Compared) -> None:
    head, rule, *rows = compared.done.out.splitlines()
    assert [cell.strip() for cell in head.split("|")[1:6]] == ["method", "P@1", "P@3", "P@5", "nDCG@5"]
    assert [row.split()[1] for row in rows] == ["untrained", "rae", "near"]
    assert {len(line) for line in (head, rule, *rows)} == {len(head)}
    assert compared.done.out.strip() in (compared.out / "report.md").read_text(encoding="utf-8")


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
    assert compared.again(out, "--metric", "P@1").status == 0
    assert in_this_process == ["tune untrained", "tune rae"]
    assert "best two by P@1" in (out / "report.md").read_text(encoding="utf-8")


def test_methods_that_train_the_full_encoder_can_be_compared(
    compared: Compared, tmp_path: Path, in_this_process: list[str]
) -> None:
    out = tmp_path / "full"
    output = compared.again(out, "--train", "full", "--max-steps", "2", "--learning-rate", "0.01", methods="infonce")
    assert output.status == 0
    assert in_this_process == ["train untrained", "tune untrained", "train infonce", "tune infonce"]
    dataset, path = open_dataset(compared.dataset), out / "runs" / "infonce"
    found = json.loads((path / "quality.json").read_text())
    assert found["tuned"] == pytest.approx(by_hand(open_memory(path / "memory"), path / "checkpoint", dataset))


def test_comparison_can_start_from_an_encoder_that_has_an_adapter(
    compared: Compared, tmp_path: Path, in_this_process: list[str]
) -> None:
    checkpoint = compared.out / "runs" / "near" / "checkpoint"
    out = tmp_path / "further"
    output = compared.again(out, "--encoder", checkpoint, "--max-steps", "1", methods="infonce")
    assert output.status == 0
    dataset = open_dataset(compared.dataset)
    for path in (out / "untrained", out / "runs" / "infonce"):
        found = json.loads((path / "quality.json").read_text())
        assert found["tuned"] == pytest.approx(by_hand(open_memory(path / "memory"), path / "checkpoint", dataset))
    assert "Methods compared: topics, near" in (out / "report.md").read_text(encoding="utf-8")


def test_same_folder_with_other_flags_for_a_trained_contestant_is_rejected(
    compared: Compared, out: Path, no_training: None
) -> None:
    output = compared.again(out, "--epochs", "3")
    assert (output.status, output.out, len(output.err.splitlines())) == (2, "", 1)
    assert "rae: expected rae trained with these flags, found other values of --epochs; give" in output.err


def test_same_folder_with_another_dataset_is_rejected(
    compared: Compared, out: Path, tmp_path: Path, no_training: None
) -> None:
    other = shutil.copytree(compared.dataset, tmp_path / "other")
    rows = (other / "train.jsonl").read_text(encoding="utf-8").splitlines()
    (other / "train.jsonl").write_text("\n".join(rows[1:]), encoding="utf-8")
    output = run(other, "--out", out, "--encoder", compared.encoder, "--methods", "rae", *SMALL_TRAINING)
    assert (output.status, output.out, len(output.err.splitlines())) == (2, "", 1)
    expected = "expected a comparison on this dataset, found a comparison on another dataset; choose another --out"
    assert expected in output.err
