"""`python -m benchmarks.live_memory STORE DATASET`: quality of a memory while instances and labels are added live.

The first figure is a learning curve: a bundle of the first half of the instances gets the second half as live entries.
After each tenth, the test texts are answered. The second figure is about new labels: a bundle without some labels, and
without the instances with these labels, gets first their texts and then one, two and five instances of each label.

The store has a version with a flat index, made from the train split of the dataset: its keys and its encoder are used.
The vectors of live entries are these keys, so nothing is trained, and only the test texts are encoded. Answers are in
order of the score, without words. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from benchmarks.arguments import positive_int
from recollect.index_builder.build import describe_bundle, new_version, write_indexes, write_manifest
from recollect.index_builder.bundle_tables import read_field, write_bundle_tables
from recollect.index_builder.compaction.served_memory import ServedMemory
from recollect.index_builder.console import print_status
from recollect.index_builder.errors import BuildError
from recollect.index_builder.live_memory.bundle_memory import BundleMemory
from recollect.index_builder.live_memory.final_state import FinalState
from recollect.index_builder.live_memory.merged_memory import write_merged_memory
from recollect.index_builder.onnx_export import Sample
from recollect.index_builder.settings import BuildSettings
from recollect.index_builder.verify import golden_queries
from recollect.service.bundle.bundle import Bundle, open_bundle
from recollect.service.bundle.integrity import describe_files
from recollect.service.errors import ServiceError
from recollect.service.memory.entries import Entry, PutInstance, PutLabel
from recollect.service.memory_log.log import number
from recollect.service.predictor.golden import write_golden
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.store import Store
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.split import LabelSets
from recollect.trainer.errors import TrainerError
from recollect.trainer.memory.memory import Memory
from recollect.trainer.metrics import hits, ndcg_at, precision_at, recall_at

_STEPS, _TOP_K, _GOLDEN_TEXTS = 10, 100, 16
# Instances of each new label after each step.
_INSTANCES = (1, 2, 5)
_CUT_OFFS = (5, 10, 100)


@dataclass(frozen=True)
class Test:
    """The test texts: their vectors, and their labels by position in the memory."""

    vectors: Float[np.ndarray, "query dim"]
    truth: sparse.csr_array

    def of_labels(self, labels: Int[np.ndarray, " label"]) -> Test:
        """The texts with at least one of some labels, and only these labels of them."""
        chosen = np.zeros(self.truth.shape[1], dtype=bool)
        chosen[labels] = True
        truth = sparse.csr_array(self.truth.multiply(chosen[None, :]))
        truth.eliminate_zeros()
        rows = np.diff(truth.indptr) > 0
        return Test(self.vectors[rows], sparse.csr_array(truth[rows]))


class Benchmark:
    """Measures parts of the memory of one version.

    Args:
        bundle: The version.
        memory: Its memory.
        folder: An empty folder for bundles.
    """

    def __init__(self, bundle: Bundle, memory: Memory, folder: Path) -> None:
        self._bundle, self._memory, self._folder = bundle, memory, folder
        self._relevance = memory.label_sets.to_csr(memory.plan.labels)
        self._position = {bundle.labels.uids[row]: row for row in range(memory.plan.labels)}

    def learning_curve(self, test: Test) -> dict[str, Any]:
        """P@5 and nDCG@5 after each tenth of the second half, of the first half alone, and of a bundle of all."""
        instances = self._memory.plan.instances
        first = np.arange(instances) < instances // 2
        live, frozen = self._open(first), self._open(first, name="frozen")
        rebuilt = self._open(np.ones(instances, dtype=bool))
        curve = [self._quality(live, test)]
        for part in np.array_split(np.flatnonzero(~first), _STEPS):
            self._apply(live, (self._instance(row) for row in part.tolist()))
            curve.append(self._quality(live, test))
            print_status(f"{len(curve) - 1} of {_STEPS}: {curve[-1]}")
        return {
            "instances": [int(first.sum()), instances],
            "frozen": self._quality(frozen, test),
            "curve": curve,
            "rebuilt": self._quality(rebuilt, test),
            "equal": self._equality(live, rebuilt, test),
        }

    def new_labels(self, test: Test, count: int, seed: int) -> dict[str, Any]:
        """Recall of labels that are added live, with no instance, and with one, two and five instances each."""
        sizes, tested = np.diff(self._relevance.tocsc().indptr), np.diff(test.truth.tocsc().indptr)
        usable = np.flatnonzero((sizes >= _INSTANCES[-1]) & (tested > 0))
        if len(usable) < count:
            raise BuildError(
                f"--labels {count}: expected at most {len(usable):,}, the labels with {_INSTANCES[-1]} instances and a "
                "test text"
            )
        chosen = np.sort(np.random.default_rng(seed).choice(usable, count, replace=False))
        kept = np.ones(self._memory.plan.labels, dtype=bool)
        kept[chosen] = False
        old = np.asarray(self._relevance[:, chosen].sum(axis=1)).ravel() == 0
        live, rebuilt, own = self._open(old, kept), self._open(np.ones(len(old), dtype=bool)), test.of_labels(chosen)
        steps = {"before": self._recall(live, own)}
        texts = self._bundle.labels.texts
        self._apply(live, (PutLabel(self._uid(row), texts[row], self._label_key(row)) for row in chosen.tolist()))
        steps["label texts"] = self._recall(live, own)
        by_label = self._relevance.tocsc()
        for limit in _INSTANCES:
            added = {row for label in chosen for row in by_label.indices[by_label.indptr[label] :][:limit].tolist()}
            self._apply(live, (self._instance(row) for row in sorted(added)))
            steps[f"{limit} instances each"] = self._recall(live, own)
            print_status(f"{limit} instances each: {steps[f'{limit} instances each']}")
        steps["rebuilt, all instances"] = self._recall(rebuilt, own)
        removed = int((~old).sum())
        return {"labels": count, "instances": removed, "queries": len(own.vectors), "recall": steps}

    def _open(
        self, rows: Bool[np.ndarray, " instance"], labels: Bool[np.ndarray, " label"] | None = None, name: str = "part"
    ) -> Predictor:
        """Build and open a bundle of some instances and labels."""
        labels = np.ones(self._memory.plan.labels, dtype=bool) if labels is None else labels
        folder = Path(tempfile.mkdtemp(prefix=name, dir=self._folder))
        state = FinalState(
            rows=np.flatnonzero(rows),
            label_rows=np.flatnonzero(labels),
            instances=[],
            labels=[],
            replaced_labels={},
            label_sets=LabelSets.of(self._relevance[rows][:, labels]),
            kept=[],
        )
        served = ServedMemory.whole(write_merged_memory(self._memory, state, 0, folder / "memory"))
        to, old = folder / "bundle", self._bundle.manifest
        to.mkdir()
        write_bundle_tables(served, to)
        for file in ("encoder.onnx", "tokenizer.json"):
            shutil.copyfile(self._bundle.folder / file, to / file)
        settings = BuildSettings(run=folder, store=folder, index="flat", threads=1)
        indexes, _, curves = write_indexes(served.memory, to, settings, "cpu", old.encoder)
        write_golden(to, golden_queries(served, _golden_sample(served.memory)))
        defaults = old.defaults.model_copy(update={"order": "score", "word_weight": 0.0})
        files = describe_files(to)
        version = new_version(files)
        write_manifest(to, describe_bundle(served, version, files, old.encoder, indexes, curves, defaults, None, {}))
        return Predictor.open(open_bundle(to), 1)

    def _apply(self, predictor: Predictor, entries: Iterable[Entry]) -> None:
        predictor.apply(number([*entries], predictor.memory.sequence + 1))

    def _instance(self, row: int) -> PutInstance:
        labels = self._relevance.indices[self._relevance.indptr[row] : self._relevance.indptr[row + 1]]
        bundle, (vector,) = self._bundle, self._memory.queries(slice(row, row + 1))
        uids = [self._uid(label) for label in labels.tolist()]
        return PutInstance(bundle.instances.uids[row], bundle.instances.texts[row], uids, vector)

    def _uid(self, label: int) -> str:
        return self._bundle.labels.uids[label]

    def _label_key(self, label: int) -> Float[np.ndarray, " dim"]:
        return np.asarray(self._memory.keys[self._memory.plan.instances + label], dtype=np.float32)

    def _top(self, predictor: Predictor, test: Test, top_k: int) -> Int[np.ndarray, "query top_k"]:
        """The best labels of each text, by position in the whole memory; -1 for none."""
        found = np.full((len(test.vectors), top_k), -1, dtype=np.int64)
        for row, answer in enumerate(predictor.answer(test.vectors, predictor.resolve(top_k=top_k))):
            positions = [self._position[label.uid] for label in answer.labels]
            found[row, : len(positions)] = positions
        return found

    def _quality(self, predictor: Predictor, test: Test) -> dict[str, float]:
        hit, sizes = hits(self._top(predictor, test, 5), test.truth), np.diff(test.truth.indptr)
        return {"P@5": _percent(precision_at(hit, 5)), "nDCG@5": _percent(ndcg_at(hit, sizes, 5))}

    def _recall(self, predictor: Predictor, test: Test) -> dict[str, float]:
        hit, sizes = hits(self._top(predictor, test, _TOP_K), test.truth), np.diff(test.truth.indptr)
        return {f"R@{k}": _percent(recall_at(hit, sizes, k)) for k in _CUT_OFFS}

    def _equality(self, one: Predictor, other: Predictor, test: Test) -> dict[str, float]:
        """The share of texts with the same five labels in the same order, and the largest difference of a score."""
        options = one.resolve(top_k=5)
        pairs = zip(one.answer(test.vectors, options), other.answer(test.vectors, options), strict=True)
        same, difference = 0, 0.0
        for first, second in pairs:
            same += [label.uid for label in first.labels] == [label.uid for label in second.labels]
            scores = zip(first.labels, second.labels, strict=True)
            difference = max([difference, *(abs(a.score - b.score) for a, b in scores)])
        return {"same labels": round(100 * same / len(test.vectors), 2), "largest difference": difference}


def _golden_sample(memory: Memory) -> Sample:
    """Texts of instances with their keys, which every bundle needs."""
    texts = itertools.islice(read_field(memory.folder / "instances.jsonl", "text"), _GOLDEN_TEXTS)
    return Sample([*texts], memory.queries(slice(_GOLDEN_TEXTS)))


def measure(store: Path, dataset: Path, queries: int, labels: int, seed: int, folder: Path) -> dict[str, Any]:
    """Measure both figures.

    Raises:
        StoreError, BundleError: If the current version cannot be opened.
        BuildError: If its index is not exact, or there are too few labels.
        DatasetError: If the dataset cannot be read.
    """
    faiss.omp_set_num_threads(1)
    published = Store(store)
    bundle = published.open(published.require_current())
    encoder = Predictor.open(bundle, 1)
    memory = BundleMemory(bundle, encoder.encoder).write(folder / "memory")
    opened = open_dataset(dataset, "auto")
    split = opened.read_split("test").head(queries)
    texts = [str(text) for text in split.entries.texts]
    test = Test(_encode(encoder, texts), sparse.csr_array(split.labels.to_csr(len(opened.labels))))
    uids = [str(uid) for uid in opened.labels.uids]
    if uids != [bundle.labels.uids[row] for row in range(len(bundle.labels))]:
        raise BuildError(f"{dataset}: expected the labels of version {bundle.manifest.version}, found others")
    benchmark = Benchmark(bundle, memory, folder)
    return {
        "version": bundle.manifest.version,
        "queries": len(split),
        "learning curve": benchmark.learning_curve(test),
        "new labels": benchmark.new_labels(test, labels, seed),
    }


def _encode(predictor: Predictor, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
    print_status(f"encode {len(texts):,} test texts")
    return np.concatenate([predictor.encode(texts[start : start + 32]) for start in range(0, len(texts), 32)])


def _percent(values: Float[np.ndarray, " query"]) -> float:
    return round(100 * float(values.mean()), 2)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_memory", description=__doc__)
    parser.add_argument("store", type=Path, help="bundle store; its current version has a flat index")
    parser.add_argument("dataset", type=Path, help="dataset folder from which the version was made")
    parser.add_argument("--queries", type=positive_int, default=2_000, help="number of test texts; default: 2000")
    parser.add_argument("--labels", type=positive_int, default=500, help="number of new labels; default: 500")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of new labels; default: 0")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(given.store, given.dataset, given.queries, given.labels, given.seed, Path(folder))
        except (BuildError, ServiceError, TrainerError) as error:
            parser.error(str(error))
    print(json.dumps(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
