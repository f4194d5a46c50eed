"""`recollect compare`: train, tune and measure each contestant with each seed, and write a table.

DIR/   untrained/             the run of the untrained encoder
       runs/NAME/             one run for each contestant and seed: NAME, or NAME-seed3
       runs/NAME/quality.json its figures, and the flags and digests for which they hold
       report.md  report.json
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import ttest_1samp

from recollect.index_builder.compare.contestants import (
    SHARED_FLAGS,
    UNTRAINED,
    Contestant,
    as_argument,
    contestants,
    run_recollect,
    untrained,
)
from recollect.index_builder.compare.quality import Quality, Queries, measure
from recollect.index_builder.errors import BuildError
from recollect.index_builder.evaluation.bootstrap import bootstrap, means
from recollect.index_builder.settings import CompareSettings
from recollect.service.console import print_status
from recollect.service.files import write_json, write_text
from recollect.trainer.data.dataset import open_named
from recollect.trainer.data.split import Split, fingerprint
from recollect.trainer.distributed import require_single_process
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import choose_device
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.memory import is_complete, open_memory
from recollect.trainer.metrics import SEGMENTS
from recollect.trainer.recipe import Recipe
from recollect.trainer.run_folder import RunFolder
from recollect.trainer.settings import STATIC
from recollect.trainer.training.validation import hold_out

_FORMAT_VERSION = 1
_KNOWN_FILES = {UNTRAINED, "runs", "report.md", "report.json"}
_METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100", *(f"F1@5 {segment}" for segment in SEGMENTS))
_TUNED_SETTINGS = {"λ": "lambda", "τ": "temperature", "b": "top_b", "α": "label_key_alpha"}
_LEVEL = 0.05
# Differences below this are rounding errors, because the smallest possible difference of P@5 or nDCG@5 is far larger.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RunResult:
    """The quality of a run, and its seconds, peak memory and trainable parameters (empty for the untrained encoder)."""

    seed: int
    quality: Quality
    measured: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        quality = {name: value for name, value in vars(self.quality).items() if name != "hits"}
        return {"seed": self.seed, **quality, "measured": self.measured}


@dataclass(frozen=True)
class Results:
    """A contestant and the results of its runs, one for each seed."""

    contestant: Contestant
    runs: list[RunResult]

    @property
    def name(self) -> str:
        return self.contestant.name

    def figures(self, figure: Callable[[RunResult], float | None]) -> list[float]:
        """A figure of each run; empty if a run has no such figure."""
        found = [value for value in map(figure, self.runs) if value is not None]
        return found if len(found) == len(self.runs) else []

    def scores(self, queries: Queries) -> dict[str, Float[np.ndarray, " query"]]:
        """The score of each query by each metric, averaged over the runs."""
        by_run = [run.quality.scores(queries.sizes) for run in self.runs]
        return {metric: np.mean([scores[metric] for scores in by_run], axis=0) for metric in by_run[0]}


def compare(settings: CompareSettings) -> str:
    """Compare methods, or continue an interrupted comparison.

    Returns:
        The table in Markdown; all figures as JSON with `--json`.

    Raises:
        BuildError: If a contestant's flags are invalid, or the output folder holds files of something else.
        DatasetError: If the dataset is invalid or has no test split.
        TrainingError: If torchrun started several processes.
        EncoderError: If the requested device is absent.
        ContestantError: If the training or the tuning of a run fails; the finished runs stay in the output folder.
    """
    require_single_process("recollect compare")
    device, trained = choose_device(settings.device), contestants(settings)
    dataset = open_named(settings)
    train, test = dataset.read_split("train"), dataset.read_split("test")
    _check_sizes(trained, settings, train, len(dataset.labels), device)
    unknown = sorted({path.name for path in settings.out.iterdir()} - _KNOWN_FILES) if settings.out.exists() else []
    if unknown:
        raise BuildError(
            f"{settings.out}: expected an absent folder, an empty folder or a comparison, found {unknown[0]} in it; "
            "choose another --out"
        )
    test = test.head(settings.limit) if settings.limit else test
    queries = Queries(dataset.labels, test, settings.propensity, frozen=settings.trained == "adapter")
    (settings.out / "runs").mkdir(parents=True, exist_ok=True)
    runs = [(untrained(settings), [0]), *((each, settings.seeds) for each in trained)]
    made_of = {"dataset": fingerprint(dataset.labels, train), "queries": queries.sha256}
    results = [
        Results(each, [_run(each, seed, settings, queries, made_of, device) for seed in seeds]) for each, seeds in runs
    ]
    best = sorted(results, key=lambda each: -statistics.fmean(each.figures(_of("tuned", settings.metric)) or [0]))[:2]
    tests = paired_tests(best[0].scores(queries), best[1].scores(queries))
    report = {
        "format_version": _FORMAT_VERSION,
        "title": f"Methods compared: {settings.dataset.resolve().name}, {_encoder_name(settings)}",
        "metric": settings.metric,
        "contestants": [
            {"name": each.name, "flags": list(each.contestant.own), "runs": [run.as_json() for run in each.runs]}
            for each in results
        ],
        "significance": {
            "best": [each.name for each in best],
            "tests": [asdict(test) | {"significant": test.significant} for test in tests],
            "verdict": verdict(best[0].name, best[1].name, tests),
        },
        "made": _provenance(settings, results, queries, device),
    }
    write_json(settings.out / "report.json", report)
    write_text(settings.out / "report.md", "\n".join(_markdown(report, results, tests)))
    print_status(f"{settings.out}: wrote report.md and report.json")
    return json.dumps(report) if settings.json_ else quality_table(results)


def _check_sizes(trained: list[Contestant], settings: CompareSettings, train: Split, labels: int, device: str) -> None:
    """Check, before any training starts, that each contestant can be trained on a dataset of this size.

    Raises:
        BuildError: If a contestant cannot; the message names the contestant.
    """
    for each in trained:
        parsed = each.parse(settings)
        for seed in settings.seeds:
            instances = int((~hold_out(train.labels, parsed.validation_fraction, seed)).sum())
            try:
                static = parsed.encoder == STATIC
                Recipe.of(parsed, {}, "", "", instances=instances, labels=labels, device=device, static=static)
            except TrainingError as error:
                raise BuildError(f"{each.origin}: {error}") from None


def _run(
    contestant: Contestant,
    seed: int,
    settings: CompareSettings,
    queries: Queries,
    made_of: dict[str, str],
    device: str,
) -> RunResult:
    """Train, tune and measure a run. A step that was finished with the same flags and data is not repeated.

    Raises:
        ContestantError: If `recollect train` or `recollect tune` fails.
    """
    name, is_trained = contestant.run_name(seed), contestant.name != UNTRAINED
    path = settings.out / "runs" / name if is_trained else settings.out / UNTRAINED
    print_status(f"compare: {name}")
    tuning = [f"--metric={settings.metric}", f"--propensity={as_argument(settings.propensity)}"]
    tuning.append(f"--rank={settings.rank}")
    wanted = made_of | {"train": list(contestant.flags), "tune": tuning}
    found = _read(path / "quality.json")
    done = is_complete(path / "memory") and all(found.get(each) == wanted[each] for each in ("train", "dataset"))
    if not done:
        own = [f"--out={path}", f"--seed={seed}", "--tune=no"]
        if is_trained:
            own += ["--resume", *_vectors_flag(settings)]
        run_recollect(name, "train", str(settings.dataset), *own, *contestant.flags)
    if not done or found.get("tune") != tuning:
        run_recollect(name, "tune", str(path), *tuning)
    wanted["memory"] = hashlib.sha256((path / "memory" / "memory.json").read_bytes()).hexdigest()
    if not done or any(found.get(each) != value for each, value in wanted.items()):
        print_status(f"compare: measure {name} on {len(queries):,} test texts")
        quality = measure(path, queries, device, with_ranker=settings.rank != "no")
        write_json(path / "quality.json", wanted | {"quality": vars(quality)})
    else:
        quality = Quality(**found["quality"])
    return RunResult(seed, quality, (RunFolder(path).training() or {}).get("measured") or {})


def _read(path: Path) -> dict[str, Any]:
    """Read the figures of an earlier comparison; empty if the file is absent or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _vectors_flag(settings: CompareSettings) -> list[str]:
    """The flag that trains an adapter on the vectors of the untrained memory, so that no text is encoded again.

    The list is empty if the runs train no adapter, or if the encoder already contains an adapter.
    """
    if settings.trained != "adapter":
        return []
    encoder = load_checkpoint(settings.out / UNTRAINED / "checkpoint", "cpu")
    return [f"--vectors={settings.out / UNTRAINED / 'memory'}"] if encoder.model.adapter is None else []


# ---- Significance ----


@dataclass(frozen=True)
class PairedTest:
    """Result of the test whether two contestants differ by one metric: a paired t-test over queries (RAE-XMC, B.3).

    Attributes:
        metric: Name of the metric.
        difference: Mean of the first contestant minus mean of the second, in percentage points.
        t: Student's t statistic; None if the difference is equal for all queries, or there is only one query.
        p: Probability of at least this difference by chance; None if there is only one query.
        interval: The ends of the 95% confidence interval of the difference (bootstrap over queries), in points.
    """

    metric: str
    difference: float
    t: float | None
    p: float | None
    interval: tuple[float, float]

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < _LEVEL


def paired_tests(
    first: dict[str, Float[np.ndarray, " query"]], second: dict[str, Float[np.ndarray, " query"]]
) -> list[PairedTest]:
    """Test the difference between two contestants by each metric.

    Args:
        first: For each metric the scores of the first contestant, one for each query, as fractions.
        second: Scores of the second contestant, in the same form.
    """
    differences = {metric: first[metric] - second[metric] for metric in first}
    differences = {metric: np.where(np.abs(each) < _ROUNDING, 0.0, each) for metric, each in differences.items()}
    (sampled,) = bootstrap([[means({metric: 100 * each for metric, each in differences.items()})]])
    return [
        PairedTest(metric, sampled[metric].value, *_t_test(each), replace(sampled[metric], least=-100.0).interval)
        for metric, each in differences.items()
    ]


def _t_test(differences: Float[np.ndarray, " query"]) -> tuple[float | None, float | None]:
    """Student's t statistic, and the probability of at least this difference by chance."""
    if not differences.any():
        return 0.0, 1.0
    if len(differences) < 2:
        return None, None
    if np.ptp(differences) < _ROUNDING:
        return None, 0.0
    t, p = ttest_1samp(differences, 0.0)
    return float(t), float(p)


def verdict(first: str, second: str, tests: Sequence[PairedTest]) -> str:
    """Describe which metrics differ significantly."""
    significant = [
        f"{test.metric} ({first if test.difference > 0 else second} by {abs(test.difference):.2f} points)"
        for test in tests
        if test.significant
    ]
    return f"Significant at .05: {', '.join(significant) or 'nothing'}."


# ---- Report ----


@dataclass(frozen=True)
class _Column:
    """A column of a table: one figure for each contestant.

    Attributes:
        heading: Heading of the column.
        figure: Reads the figure of one run; None if the run has no such figure.
        form: Format of the numbers.
        best: Picks the best number, which is bold; None shows the value of each seed instead of mean and deviation.
    """

    heading: str
    figure: Callable[[RunResult], float | None]
    form: str = ",.2f"
    best: Callable[[list[float]], float] | None = max

    def cells(self, results: Sequence[Results]) -> Iterator[str]:
        by_contestant = [each.figures(self.figure) for each in results]
        known = [statistics.fmean(values) for values in by_contestant if values]
        best = format(self.best(known), self.form) if self.best and len(known) > 1 else None
        for values in by_contestant:
            if not values:
                yield "-"
            elif self.best is None:
                yield " / ".join(format(value, self.form) for value in values)
            else:
                mean = format(statistics.fmean(values), self.form)
                spread = f" ± {statistics.stdev(values):{self.form.lstrip('+')}}" if len(values) > 1 else ""
                yield f"**{mean}{spread}**" if mean == best else mean + spread


def _of(part: str, metric: str) -> Callable[[RunResult], float | None]:
    """A metric of `tuned`, `plain`, `ranked`, or of the tuned settings (`answering`)."""
    return lambda run: (getattr(run.quality, part) or {}).get(metric)


def _view(name: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.quality.views.get(name, {}).get("nDCG@5")


def _gain(part: str, over: str) -> Callable[[RunResult], float | None]:
    """nDCG@5 of one part minus nDCG@5 of another one."""

    def gain(run: RunResult) -> float | None:
        first, second = _of(part, "nDCG@5")(run), _of(over, "nDCG@5")(run)
        return None if first is None or second is None else first - second

    return gain


def _measured(name: str, unit: float = 1) -> Callable[[RunResult], float | None]:
    return lambda run: run.measured[name] / unit if name in run.measured else None


def quality_table(results: Sequence[Results]) -> str:
    """The quality with the tuned settings, the training cost, and the tuned settings themselves."""
    columns = [
        *(_Column(metric, _of("tuned", metric)) for metric in _METRICS),
        _Column("seconds", _measured("seconds"), ",.1f", min),
        _Column("peak MiB", _measured("peak_memory_bytes", 2**20), ",.0f", min),
        _Column("parameters", _measured("trainable_parameters"), ",.0f", min),
        *(_Column(heading, _of("answering", name), "g", None) for heading, name in _TUNED_SETTINGS.items()),
    ]
    return _table(results, columns)


def _plain_table(results: Sequence[Results]) -> str:
    """The quality with the label keys alone, and the gain from the whole memory."""
    views = sorted({view for each in results for run in each.runs for view in run.quality.views})
    columns = [
        *(_Column(metric, _of("plain", metric)) for metric in _METRICS),
        *(_Column(f"nDCG@5, {view} alone", _view(view)) for view in views),
        _Column("memory adds to nDCG@5", _gain("tuned", "plain"), "+,.2f"),
    ]
    return _table(results, columns)


def _ranked_table(results: Sequence[Results]) -> str:
    """The quality in the order of the rankers, and their gain."""
    columns = [_Column(metric, _of("ranked", metric)) for metric in _METRICS]
    return _table(results, [*columns, _Column("ranker adds to nDCG@5", _gain("ranked", "tuned"), "+,.2f")])


def _table(results: Sequence[Results], columns: Sequence[_Column]) -> str:
    cells = zip(*(column.cells(results) for column in columns), strict=True)
    rows = [[each.name, *row] for each, row in zip(results, cells, strict=True)]
    return _aligned([["method", *(column.heading for column in columns)], *rows])


def _aligned(rows: list[list[str]]) -> str:
    """A Markdown table. The first column is aligned to the left, all others to the right."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])])
    lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _significance_table(tests: Sequence[PairedTest]) -> str:
    heading = ["metric", "difference", "95% interval", "t", "p", "significant at .05"]
    rows = [
        [
            test.metric,
            f"{test.difference:+.2f}",
            "{:+.2f} to {:+.2f}".format(*test.interval),
            "-" if test.t is None else f"{test.t:.2f}",
            "-" if test.p is None else f"{test.p:.2g}",
            "yes" if test.significant else "no",
        ]
        for test in tests
    ]
    return _aligned([heading, *rows])


def _markdown(report: dict[str, Any], results: list[Results], tests: list[PairedTest]) -> Iterator[str]:
    best, metric = report["significance"]["best"], report["metric"]
    yield f"# {report['title']}\n\nPercent on the test split. With several seeds, a cell is mean ± standard deviation."
    yield f"\n## Quality and cost\n\nTuned by {metric} on held-out instances.\n\n{quality_table(results)}"
    if any(run.quality.ranked for each in results for run in each.runs):
        yield f"\n## In the order of the rankers\n\n{_ranked_table(results)}"
    yield f"\n## Label keys alone (λ = 0, α = 0)\n\n{_plain_table(results)}"
    yield f"\n## Significance\n\n{best[0]} minus {best[1]}, the best two by {metric}, over the test texts, in points.\n"
    yield f"{_significance_table(tests)}\n\n{report['significance']['verdict']}"
    yield "\n## How to repeat this comparison\n"
    yield from (f"- {name}: {fact}" for name, fact in report["made"].items())
    yield ""


def _provenance(settings: CompareSettings, results: list[Results], queries: Queries, device: str) -> dict[str, str]:
    """The facts that a reader needs to repeat the comparison. Files and folders are named without their paths."""
    words = ["recollect compare", settings.dataset.resolve().name, f"--methods {','.join(settings.methods)}"]
    if settings.variants is not None:
        words.append(f"--variants {settings.variants.name}")
    words.append(f"--seeds {as_argument(settings.seeds)}")
    for name in (*SHARED_FLAGS, "metric", "limit"):
        if name in settings.model_fields_set:
            value = _encoder_name(settings) if name == "encoder" else as_argument(getattr(settings, name))
            words.append(f"--{name.replace('_', '-')} {value}")
    plan = open_memory(settings.out / UNTRAINED / "memory").plan
    return {
        "dataset": f"{plan.instances:,} instances, {plan.labels:,} labels, {len(queries):,} test texts",
        "encoder": f"{_encoder_name(settings)}, SHA-256 {plan.encoder_sha256[:12]}",
        "command": " ".join(words),
        **{f"variant {each.name}": " ".join(each.contestant.own) for each in results if each.contestant.own},
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": str(torch.get_num_threads()),
        "versions": f"recollect {importlib.metadata.version('recollect-xmc')}, torch {torch.__version__}",
    }


def _encoder_name(settings: CompareSettings) -> str:
    """The encoder's name, or the name of its folder. For the checkpoint of a run, the name of the run."""
    path = Path(settings.encoder)
    if not path.is_dir():
        return settings.encoder
    path = path.resolve()
    return path.parent.name if path.name == "checkpoint" else path.name
