"""Measures the claims of the papers (`rows.py`), and writes the page `docs/claims.md`.

    python -m benchmarks.papers.claims

A training runs once for each seed, however many claims read it. Its figures are added to `results.jsonl` at once, and
another run measures only the figures that are missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

import recollect
from benchmarks.papers.rows import AMAZON, PAPERS, Claim, Setting
from benchmarks.papers.samples import LENGTHS, Sample, make_base, make_samples
from recollect.index_builder.evaluation.deciles import by_frequency, deciles_of_pairs
from recollect.index_builder.evaluation.measured import report
from recollect.index_builder.run_quality import alone, best_labels
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.inference import InferenceSetting
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.metrics import hits

ROOT = Path(__file__).parents[2]
DATASET = ROOT.parent / "shared" / "datasets" / "crs-bills-110"
RESULTS, PAGE = Path(__file__).with_name("results.jsonl"), ROOT / "docs" / "claims.md"

# How a run answers, unless a setting says otherwise: with label keys alone, of both views (UniDEC).
_ANSWER: Setting = {"lambda": 0.0, "top_b": 200, "memories": "joint", "view": None}
# Flags of `recollect.train`, unless a setting says otherwise. A run keeps its last checkpoint.
_TRAINING: Setting = {"train": "full", "tune": "no", "learning_rate": 3e-3, "batch_size": 128, "max_steps": 100}
_METRICS = {claim.metric for claims in PAPERS.values() for claim in claims}

# The level of significance, and the number of seeds below which no difference counts.
_LEVEL, _LEAST_SEEDS = 0.05, 5

_INTRODUCTION = """# Claims of the papers

Each row claims that its first setting has the higher metric. A paper's figures are of LF-AmazonTitles-1.3M unless the
row names another dataset. Ours are of small stand-ins: a static encoder of 64 dimensions is trained for 100 steps of
128 queries (SoftTop-k: 300 of 64) on 5,000 US bills, and measured on 1,000 others. So no row reproduces a figure; it
shows whether the difference is seen here too. A *proxy* measures a claim in another way than the paper.

Ours is the mean ± the standard deviation over five seeds, and p the result of a paired t-test over them. *Trend*: the
first setting is better, with p < .05; *reversed*: the second; *not seen*: p is .05 or more. Chance alone would call
one row in forty a trend. `python -m benchmarks.papers.claims` measures all rows in about 20 minutes of one core.
"""

_HEADER = "|where|metric|first|paper|ours|second|paper|ours|p|verdict|\n" + "|---" * 10 + "|"

# The metrics of a setting, by its name and the seed.
Figures = dict[tuple[str, int], dict[str, float]]


def main() -> None:
    """Measure the missing figures, and write the page."""
    parser = argparse.ArgumentParser(description="Measure the claims of the papers.")
    parser.add_argument("--dataset", type=Path, default=DATASET, help="dataset from which samples are drawn")
    parser.add_argument("--encoder", default="minilm", help="encoder that gives the first token vectors")
    parser.add_argument("--texts", type=int, default=5_000, help="training texts of a sample")
    parser.add_argument("--tests", type=int, default=1_000, help="test texts of a sample")
    parser.add_argument("--pairs", type=int, default=5_000, help="labels of a synthetic dataset")
    parser.add_argument("--most-steps", type=int, default=1_000, help="limit on the steps of a training")
    parser.add_argument("--seeds", type=int, default=_LEAST_SEEDS)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="file of all figures, which are not measured again"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    figures = read_figures(options.results)
    base = make_base(options.dataset, options.encoder)
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder, options.results.open("a") as results:
            samples = make_samples(
                Path(folder), seed, base, options.dataset, options.texts, options.tests, options.pairs
            )
            for training, settings in trainings():
                missing = [setting for setting in settings if (name_of(setting), seed) not in figures]
                for setting, metrics in measure(training, missing, samples, seed, options.most_steps):
                    line = {"setting": setting, "seed": seed, "metrics": metrics}
                    print(json.dumps(line), file=results, flush=True)
    options.page.write_text(page(read_figures(options.results)))


def trainings() -> list[tuple[Setting, list[Setting]]]:
    """Each training of the claims, and the settings that answer with its run."""
    groups: dict[str, dict[str, Setting]] = {}
    for claim in (claim for claims in PAPERS.values() for claim in claims):
        for setting in (claim.first, claim.second):
            training = {key: value for key, value in setting.items() if key not in _ANSWER}
            groups.setdefault(name_of(training), {})[name_of(setting)] = setting
    return [(json.loads(training), list(settings.values())) for training, settings in groups.items()]


def measure(
    training: Setting, settings: Sequence[Setting], samples: dict[str, Sample], seed: int, most_steps: int
) -> Iterator[tuple[Setting, dict[str, float]]]:
    """Train once if there are settings, and yield each of them with its metrics in percent."""
    if not settings:
        return
    flags: Setting = {"sample": "drawn"} | LENGTHS | training
    if flags.get("epochs") != 0:
        flags = _TRAINING | {"validation_fraction": 0, "seed": seed} | flags
    dataset, encoder = samples[flags.pop("sample")]
    limits = {"batch_size": len(open_dataset(dataset).read_split("train")), "max_steps": most_steps}
    flags |= {name: min(flags[name], limit) for name, limit in limits.items() if name in flags}
    if flags.get("max_steps") == most_steps:
        flags.pop("mine_from", None)  # so few steps may have no second epoch
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        recollect.train(dataset, out=run, encoder=str(encoder), **flags)
        for setting in settings:
            answer = _ANSWER | {key: value for key, value in setting.items() if key in _ANSWER}
            found = (_answer_separately if answer["memories"] == "separate" else _answer)(run, dataset, answer)
            yield setting, {name: round(found[name] or 0.0, 3) for name in sorted(_METRICS & found.keys())}


def _answer(run: Path, dataset: Path, answer: Setting) -> dict[str, float | None]:
    """All metrics of a run, by exact search in one memory."""
    test = open_dataset(dataset).read_split("test")
    encoder, memory = load_checkpoint(run / "checkpoint", "cpu"), open_memory(run / "memory")
    vectors, head = encoder.encode(test.entries.texts.to_pylist(), encoder.config.max_length), encoder.model.head
    if head is not None and answer["view"]:
        vectors = alone(vectors, head.key_views()[answer["view"]])
    truth, filtered = (sets.to_csr(memory.plan.labels) for sets in (test.labels, test.filtered))
    inference = InferenceSetting(answer["lambda"], memory.defaults["temperature"], answer["top_b"])
    found, counts = best_labels(vectors, memory, inference, 0.0, filtered), memory.label_counts
    no_sources = np.zeros((2, 10), dtype=np.int64)
    deciles = by_frequency(found, hits(found, truth), truth, counts, deciles_of_pairs(counts), no_sources)
    metrics = report(found, truth, counts, memory.plan.instances)
    return metrics | {f"P@5 decile {each['decile']}": each["P@5"] for each in deciles}


def _answer_separately(run: Path, dataset: Path, answer: Setting) -> dict[str, float | None]:
    """All metrics of a run, with a softmax for each memory (RAE-XMC, Eq. 11)."""
    store = run.with_name("store")
    recollect.build(run, store=store, lexical="off", index="flat", threads=1, activate=True)
    setting = {"lambda_": answer["lambda"], "top_b": answer["top_b"], "separate_memories": True}
    rows: list[dict[str, Any]] = recollect.evaluate(dataset, store=store, threads=1, **setting)["rows"]
    return next(row for row in rows if row["memories"] == "separate")


def read_figures(path: Path) -> Figures:
    """The kept figures; none if there is no file."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {(name_of(line["setting"]), line["seed"]): line["metrics"] for line in lines}


def name_of(setting: Setting) -> str:
    return json.dumps(setting, sort_keys=True)


def page(figures: Figures) -> str:
    """The text of `docs/claims.md`."""
    tables = [
        "\n".join([f"## {paper}\n", _HEADER, *(_row(claim, figures) for claim in claims)]) + "\n"
        for paper, claims in PAPERS.items()
    ]
    return "\n".join([_INTRODUCTION, *tables])


def _row(claim: Claim, figures: Figures) -> str:
    names = name_of(claim.first), name_of(claim.second)
    seeds = sorted(seed for name, seed in figures if name == names[0] and (names[1], seed) in figures)
    first, second = ([figures[name, seed].get(claim.metric, 0.0) for seed in seeds] for name in names)
    paper = [f"{figure:g}" for figure in claim.paper] or ["chart", "chart"]
    ours = ["–", "–"]
    if len(seeds) > 1:
        ours = [f"{statistics.mean(each):.1f}±{statistics.stdev(each):.1f}" for each in (first, second)]
    settings = zip(claim.names.split(", "), paper, ours, strict=True)
    where = claim.where if claim.dataset == AMAZON else f"{claim.where} ({claim.dataset})"
    cells = [where, claim.metric, *itertools.chain(*settings), *judge(first, second)]
    return f"|{'|'.join(cells)}|"


def judge(first: Sequence[float], second: Sequence[float]) -> tuple[str, str]:
    """Test the claim that the first figures are higher, with a paired t-test over the seeds.

    Returns:
        The text of p, and the verdict.
    """
    if len(first) < _LEAST_SEEDS:
        return "–", "too few seeds"
    differences = np.round(np.subtract(first, second), 10)
    difference, same = float(differences.mean()), np.ptp(differences) == 0
    p = float(difference == 0) if same else float(ttest_1samp(differences, 0).pvalue)
    text = f"{p:.3f}".removeprefix("0") if p >= 0.0005 else "<.001"
    if p >= _LEVEL:
        return text, "not seen"
    return text, "trend" if difference > 0 else "reversed"


if __name__ == "__main__":
    main()
