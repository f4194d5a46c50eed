"""Claims of a paper, our figures for them, and the page `docs/claims.md`.

A program of this folder has one row for each claim of a paper. Each claim says that a first setting is better than a
second one. Both are trained on the same samples, one for each seed. The figures are kept in `results/`.

    python -m benchmarks.papers.rae       # measures the claims of RAE-XMC; the same for dexml, prime and unidec
    python -m benchmarks.papers.claims    # writes docs/claims.md from the kept figures
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import recollect
from recollect.index_builder.evaluation.measured import report
from recollect.index_builder.run_quality import alone, best_labels
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.encoding.checkpoint import load_checkpoint, save_checkpoint
from recollect.trainer.memory.inference import InferenceSetting
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.static.model import StaticModel
from recollect.trainer.train_settings import TrainSettings

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = Path(__file__).with_name("results"), ROOT / "docs" / "claims.md"
DATASET = ROOT.parent / "shared" / "datasets" / "crs-bills-110"
PAPERS = {"rae": "RAE-XMC", "dexml": "DEXML", "prime": "PRIME", "unidec": "UniDEC"}

_INTRODUCTION = """# Claims of the papers

Each row claims that its first setting is better than its second. The programs in `benchmarks/papers` measure the rows.
Ours is the mean ± the standard deviation of three seeds. A seed draws US bills with all their labels: 6,000 for
RAE-XMC, 3,000 for the others, and 1,000 test texts. It trains a static encoder with 128 dimensions on a CPU, in about
100 steps. The encoder starts from the token vectors of MiniLM, and reads 32 tokens of a text. DEXML's Fig. 2 and C.1
have random words, and C.1 has 28 dimensions: with more, both settings memorise all pairs. The machine was busy;
RAE-XMC's Fig. 2 compares times that were measured in turn. The rows reproduce no figure of a paper, and none is called
more than a trend. The verdicts:

- *trend*: seen, with a weak stand-in for the paper's encoder and dataset;
- *not seen*: the mean difference is within its standard deviation;
- *reversed*: the second setting is better.
"""

_HEADER = "|where|claim|paper|ours|verdict|\n|---|---|---|---|---|"

Flags = dict[str, Any]
Entry = dict[str, Any]
Pair = tuple[float, float] | tuple[()]

# Default inference: label keys alone, of both views (UniDEC).
_SETTING: Flags = {"lambda": 0.0, "top_b": 200, "memories": None, "view": None}
# Dimensions of the encoder, and tokens of a text and of a label that it reads.
_DIM = 128
_LENGTHS: Flags = {"max_length": 32, "label_max_length": 16}


@dataclass(frozen=True)
class Claim:
    """A claim that a first setting is better than a second one.

    Attributes:
        where: Table, figure or section of the paper.
        text: The two settings and the metric.
        paper: The figures of the paper for both, as printed; empty if the paper has a chart only.
        first, second: Our figures for both settings, one for each seed.
    """

    where: str
    text: str
    paper: Pair
    first: list[float]
    second: list[float]

    @property
    def verdict(self) -> str:
        """`not seen` unless the mean difference exceeds the standard deviation of the differences over the seeds."""
        differences = [first - second for first, second in zip(self.first, self.second, strict=True)]
        mean = statistics.mean(differences)
        if abs(mean) <= _deviation(differences):
            return "not seen"
        return "reversed" if mean < 0 else "trend"

    def row(self) -> str:
        paper = ", ".join(f"{figure:g}" for figure in self.paper) or "chart"
        ours = ", ".join(f"{statistics.mean(each):.1f}±{_deviation(each):.1f}" for each in (self.first, self.second))
        return f"|{self.where}|{self.text}|{paper}|{ours}|{self.verdict}|"


def _deviation(figures: Sequence[float]) -> float:
    return statistics.stdev(figures) if len(figures) > 1 else 0.0


class Bench:
    """Trains and measures encoders on samples, one for each seed. Equal flags are trained once.

    Args:
        samples: Dataset folders. The seed of a run is the position of its sample.
        base: Checkpoint of a static encoder, from which the encoders of the trainings are made.
        work: Folder for encoders, runs and stores.
        pairs: Size of synthetic datasets.
        encoder: Arguments of `static_encoder`. With `random`, each seed has other vectors.
        flags: Flags of `recollect.train` for all runs.
    """

    def __init__(
        self, samples: list[Path], base: Path, work: Path, pairs: int, encoder: Flags | None = None, **flags: Any
    ) -> None:
        self.samples, self.base, self.work, self.pairs = samples, base, work, pairs
        self._flags: Flags = {"validation_fraction": 0, "tune": "no", "train": "full", "learning_rate": 3e-3} | flags
        self._runs: dict[str, list[Path]] = {}
        self._encoders = [
            static_encoder(base, work / f"encoder{seed}", seed, **encoder or {}) for seed in range(len(samples))
        ]

    def beside(self, name: str, samples: list[Path], encoder: Flags, **flags: Any) -> Bench:
        """Another bench with this base. Its flags override the flags of this one."""
        return Bench(samples, self.base, self.work / name, self.pairs, encoder, **self._flags | flags)

    def train(self, **flags: Any) -> list[Path]:
        """The run folders, one for each seed."""
        name = json.dumps(flags, sort_keys=True)
        if name not in self._runs:
            first = len(self._runs) * len(self.samples)
            self._runs[name] = [self.work / f"run{first + seed}" for seed in range(len(self.samples))]
            for seed, (sample, run) in enumerate(zip(self.samples, self._runs[name], strict=True)):
                given: Flags = {"encoder": str(self._encoders[seed]), "seed": seed} | self._flags | flags
                given["batch_size"] = min(given["batch_size"], len(read(sample / "train.jsonl")))
                given["mine_from"] = min(given.get("mine_from", 0), max(0, given["epochs"] - 1))
                recollect.train(sample, out=run, **TrainSettings.read_of(given, {}))
        return self._runs[name]

    def claim(self, where: str, metric: str, names: str, paper: Pair, first: Flags, second: Flags) -> Claim:
        """Measure two settings, which are arguments of `measure`. Other arguments as of `Claim`."""
        ours, other = (self.measure(metric, **setting) for setting in (first, second))
        return Claim(where, f"{metric}: {names}", paper, ours, other)

    def measure(self, metric: str, **setting: Any) -> list[float]:
        """A metric of `recollect.evaluate`, one figure for each seed.

        Args:
            metric: Name of the metric.
            setting: Flags of `recollect.train`, and keys of `_SETTING`. With `memories` (`joint` or `separate`), a
                bundle is measured; without, the memory of the run, by exact search.
        """
        inference = {name: setting.pop(name, default) for name, default in _SETTING.items()}
        found = []
        for run, sample in zip(self.train(**setting), self.samples, strict=True):
            if inference["memories"]:
                (row,) = (row for row in _evaluate(run, sample) if row["memories"] == inference["memories"])
            else:
                row = _rank(run, sample, inference["lambda"], inference["top_b"], inference["view"])
            found.append(row[metric] or 0.0)  # None: the sample has no label of the segment
        return found


# A claim of a program: the arguments of `Bench.claim`, or a function that measures it.
Measure = tuple[str, str, str, Pair, Flags, Flags] | Callable[[Bench], Claim]


def static_encoder(
    base: Path, folder: Path, seed: int, dim: int = _DIM, random: bool = False, even: bool = False
) -> Path:
    """Write a static encoder with the first principal components of another one's token vectors.

    Args:
        base: Checkpoint of the other encoder.
        folder: Checkpoint to write.
        seed: Seed of random vectors.
        dim: Number of components.
        random: Whether random vectors replace those of the base.
        even: Whether all words weigh the same, as in a transformer. Otherwise frequent words weigh less.
    """
    encoder = load_checkpoint(base, "cpu")
    old: Any = encoder.model.transformer
    vectors, weights = old.tokens.weight.data[:, :dim], old.weights.data.clone()
    if random:
        vectors = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(seed)) / dim**0.5
    if even:
        weights[np.setdiff1d(np.arange(len(weights)), encoder.tokenizer.encode("").ids)] = 1.0
    encoder.model.transformer = StaticModel.of(vectors, weights, len(old.positions))
    save_checkpoint(encoder, folder)
    return folder


def random_text(rng: random.Random, words: list[str]) -> str:
    """Sixteen random words, as in DEXML's synthetic data."""
    return " ".join(rng.choices(words, k=16))


def words_of(encoder: Path) -> list[str]:
    """The words that are one token of an encoder."""
    tokens = json.loads((encoder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(token for token in tokens if token.isascii() and token.isalpha())


@cache
def _evaluate(run: Path, dataset: Path) -> list[Entry]:
    """The rows of `recollect.evaluate` for a bundle of a run: with one softmax, and with two."""
    store = run.with_name(f"{run.name}-store")
    recollect.build(run, store=store, lexical="off", index="flat", threads=1, activate=True)
    rows: list[Entry] = recollect.evaluate(dataset, store=store, lambda_=0.5, threads=1, separate_memories=True)["rows"]
    return rows


@cache
def _rank(run: Path, dataset: Path, lambda_: float, top_b: int, view: str | None) -> Entry:
    """All metrics of a run on the test texts, by exact search for its nearest keys."""
    test = open_dataset(dataset).read_split("test")
    encoder, memory = load_checkpoint(run / "checkpoint", "cpu"), open_memory(run / "memory")
    vectors, head = encoder.encode(test.entries.texts.to_pylist(), encoder.config.max_length), encoder.model.head
    if head and view:
        vectors = alone(vectors, head.key_views()[view])
    truth, filtered = (sets.to_csr(memory.plan.labels) for sets in (test.labels, test.filtered))
    setting = InferenceSetting(lambda_, memory.defaults["temperature"], top_b)
    found = best_labels(vectors, memory, setting, 0.0, filtered)
    return report(found, truth, memory.label_counts, memory.plan.instances)


def read(path: Path) -> list[Entry]:
    """The objects of a file `.jsonl`, or of the same file with `.gz`."""
    packed = path.with_name(f"{path.name}.gz")
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def write(folder: Path, **files: list[Entry]) -> Path:
    """Write a dataset folder. Entries without a uid get their position."""
    folder.mkdir(parents=True)
    for name, entries in files.items():
        lines = (json.dumps({"uid": str(row)} | entry) + "\n" for row, entry in enumerate(entries))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def draw(dataset: Path, folder: Path, sizes: dict[str, int], seed: int) -> Path:
    """Write a random sample of a dataset. It keeps the labels of all its texts, also those without a training text."""
    rng = random.Random(seed)
    labels = read(dataset / "labels.jsonl")
    drawn = {name: read(dataset / f"{name}.jsonl") for name in sizes}
    drawn = {name: rng.sample(drawn[name], min(size, len(drawn[name]))) for name, size in sizes.items()}
    used = set()
    for entry in (entry for entries in drawn.values() for entry in entries):
        entry["labels"] = [label if isinstance(label, str) else labels[label]["uid"] for label in entry["labels"]]
        used.update(entry["labels"])
    return write(folder, labels=[label for label in labels if label["uid"] in used], **drawn)


def main(program: str, claims: Sequence[Measure], *, texts: int, epochs: int, **flags: Any) -> None:
    """Measure the claims of a paper, and keep the figures in `results/<program>.json`.

    Args:
        program: A key of `PAPERS`.
        claims: The claims.
        texts: Default of `--texts`.
        epochs: Default of `--epochs`.
        flags: Flags of `recollect.train` for all runs.
    """
    parser = argparse.ArgumentParser(description=f"Measure the claims of {PAPERS[program]}.")
    parser.add_argument("--dataset", type=Path, default=DATASET)
    parser.add_argument("--encoder", default="minilm", help="encoder that gives the first token vectors")
    parser.add_argument("--texts", type=int, default=texts, help="training texts of a sample")
    parser.add_argument("--tests", type=int, default=1_000, help="test texts of a sample")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--pairs", type=int, default=10_000, help="text pairs of synthetic datasets")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sizes = {"train": options.texts, "test": options.tests}
        samples = [draw(options.dataset, work / f"sample{seed}", sizes, seed) for seed in range(options.seeds)]
        given = {"epochs": 0, "encoder": "static", "static_from": options.encoder}
        base = recollect.train(samples[0], out=work / "base", **given, **_LENGTHS) / "checkpoint"
        bench = Bench(samples, base, work, options.pairs, epochs=options.epochs, **_LENGTHS, **flags)
        measured = []
        for each in claims:
            measured.append(each(bench) if callable(each) else bench.claim(*each))
            print(measured[-1].row(), flush=True)
            text = json.dumps([asdict(claim) for claim in measured], indent=1)
            (options.results / f"{program}.json").write_text(text + "\n")


def page() -> str:
    """The text of `docs/claims.md`, from all kept figures."""
    parts = [_INTRODUCTION]
    for program, paper in PAPERS.items():
        kept = json.loads((RESULTS / f"{program}.json").read_text())
        rows = "\n".join(Claim(**claim).row() for claim in kept)
        parts.append(f"## {paper}\n\n{_HEADER}\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
