"""`recollect compare`: train, tune and measure each contestant with each seed, and write a table.

DIR/   untrained/             the run of the untrained encoder
       runs/NAME/             one run for each contestant and seed: NAME, or NAME-seed3
       runs/NAME/quality.json its figures, and the flags and the data for which they hold
       report.md  report.json

A contestant is a method, or a variant of a method with other flags. The user lists the variants in a TOML file:

    [prime-random-batches]
    method = "prime"
    clusters = 0
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from recollect.core.settings import as_words
from recollect.core.system.console import aligned, print_status
from recollect.core.system.files import find_files, read_json, write_json, write_text
from recollect.index_builder.errors import BuildError, ContestantError
from recollect.index_builder.evaluation.bootstrap import bootstrap, means
from recollect.index_builder.run_quality import TESTED, LabelledQueries, Quality, measure
from recollect.index_builder.settings import CompareSettings
from recollect.trainer.data.dataset import open_named, with_remembered
from recollect.trainer.data.split import fingerprint
from recollect.trainer.distributed import require_single_process
from recollect.trainer.encoding.encoder import choose_device
from recollect.trainer.errors import MemoryFolderError, TrainingError
from recollect.trainer.memory.left_out import choose_queries
from recollect.trainer.memory.memory import open_memory, read_dataset_flags
from recollect.trainer.methods import METHODS
from recollect.trainer.metrics import SEGMENTS
from recollect.trainer.settings import TuneSettings
from recollect.trainer.train_settings import TrainSettings

# Name of the baseline of every comparison: the pretrained encoder without training.
UNTRAINED = "untrained"
# Flags of training that a comparison has, too. They are equal for all contestants.
_SHARED_FLAGS = [
    name
    for name in CompareSettings.model_fields
    if name in TrainSettings.model_fields and name not in ("dataset", "out")
]
# Shared flags that a variant may override.
_OVERRIDABLE = ("batch_size", "learning_rate")
# Flags that the comparison sets itself for each run.
_RUN_FLAGS = (
    *("dataset", "out", "preset", "scale", "seed", "vectors"),
    *("tune", "rank", "best", "minutes", "resume", "overwrite"),
)
# A variant is also a run folder. `rae-seed1` would be the folder of the method `rae` with seed 1.
_VARIANT_NAME = re.compile(r"(?!.*-seed\d+$)[A-Za-z0-9][A-Za-z0-9._-]*")
_KNOWN_FILES = {UNTRAINED, "runs", "report.md", "report.json"}
_METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100", *(f"F1@5 {segment}" for segment in SEGMENTS))
# For each heading: the part of `Quality`, the name of the figure, the format and the unit.
_COSTS_AND_SETTINGS: dict[str, tuple[str, str, str, float]] = {
    "seconds": ("measured", "seconds", ",.1f", 1),
    "peak MiB": ("measured", "peak_memory_bytes", ",.0f", 2**20),
    "parameters": ("measured", "trainable_parameters", ",.0f", 1),
    "λ": ("answering", "lambda", ".4g", 1),
    "τ": ("answering", "temperature", ".4g", 1),
    "b": ("answering", "top_b", ".4g", 1),
    "α": ("answering", "label_key_alpha", ".4g", 1),
}


@dataclass(frozen=True)
class Contestant:
    """A method, a variant of a method, or the untrained encoder."""

    name: str
    flags: dict[str, Any]  # of `recollect train`, except those that differ between seeds

    def run(self, out: Path, seed: int) -> Path:
        if self.name == UNTRAINED:
            return out / UNTRAINED
        return out / "runs" / (self.name if seed == 0 else f"{self.name}-seed{seed}")

    def seeds(self, settings: CompareSettings) -> list[int]:
        """The seeds of its runs; nothing in the untrained encoder is random."""
        return [0] if self.name == UNTRAINED else settings.seeds


@dataclass(frozen=True)
class Results:
    """A contestant, and the quality of its run with each seed."""

    contestant: Contestant
    runs: dict[int, Quality]

    def figures(self, part: str, name: str) -> list[float]:
        """A figure of each run, from one of the dictionaries of `Quality`; empty if a run has no such figure."""
        values: list[Any] = [(getattr(run, part) or {}).get(name) for run in self.runs.values()]
        return [] if None in values else values

    def scores(self, metric: str) -> np.ndarray:
        """The score of each query, averaged over the runs."""
        return np.asarray(np.mean([run.scores[metric] for run in self.runs.values()], axis=0))

    def as_json(self) -> dict[str, Any]:
        runs = [
            {"seed": seed} | {name: value for name, value in vars(run).items() if name != "scores"}
            for seed, run in self.runs.items()
        ]
        return {"name": self.contestant.name, "flags": as_words(self.contestant.flags), "runs": runs}


def compare(settings: CompareSettings) -> str:
    """Compare methods, or continue an interrupted comparison. Return the table in Markdown, or all figures as JSON.

    Raises:
        BuildError: If the flags of a variant are invalid, or the output folder holds files of something else.
        DatasetError: If the dataset is invalid or has no test split.
        TrainingError: If torchrun started several processes.
        EncoderError: If the requested device is absent.
        ContestantError: If the training or the tuning of a run fails; the finished runs stay in the output folder.
    """
    require_single_process("recollect compare")
    settings = _with_remembered(settings)
    out, device, compared = settings.out, choose_device(settings.device), contestants(settings)
    dataset = open_named(settings)
    if dataset.is_one_split:
        raise BuildError(f"{settings.dataset}: expected --test-fraction, such as .1, because a table has no test split")
    train, test = dataset.read_split("train"), dataset.read_split("test")
    test = test.head(settings.limit) if settings.limit else test
    if unknown := sorted({path.name for path in find_files(out)} - _KNOWN_FILES):
        raise BuildError(
            f"{out}: expected an absent folder, an empty folder or a comparison, found {unknown[0]} in it; "
            "choose another --out"
        )
    (out / "runs").mkdir(parents=True, exist_ok=True)
    queries = LabelledQueries(test, len(dataset.labels), settings.propensity, frozen=settings.trained != "full")
    data = {"dataset": fingerprint(dataset.labels, train), "queries": fingerprint(dataset.labels, test)}
    results = [
        Results(one, {seed: _run(one, seed, settings, queries, data, device) for seed in one.seeds(settings)})
        for one in compared
    ]
    best = sorted(results, key=lambda result: -statistics.fmean(result.figures("tuned", settings.metric) or [0]))[:2]
    report = {
        "format_version": 2,
        "title": f"Methods compared: {settings.dataset.resolve().name}, {Path(settings.encoder).name}",
        "metric": settings.metric,
        "contestants": [result.as_json() for result in results],
        "significance": {"best": [result.contestant.name for result in best], "tests": _differences(best)},
        "dataset": f"{len(train):,} instances, {len(dataset.labels):,} labels, {len(test):,} test texts",
        "versions": f"recollect {importlib.metadata.version('recollect-xmc')}, torch {torch.__version__}",
    }
    write_json(out / "report.json", report)
    write_text(out / "report.md", "\n".join(_markdown(report, results)))
    print_status(f"{out}: wrote report.md and report.json")
    return json.dumps(report) if settings.json_ else quality_table(results)


def _with_remembered(settings: CompareSettings) -> CompareSettings:
    """The flags of the dataset that the comparison in --out, or the run of --encoder, remembers."""
    checkpoint = Path(settings.encoder)
    of_encoder = [checkpoint.parent] if checkpoint.is_dir() else []
    for run in (settings.out / UNTRAINED, *of_encoder):
        if remembered := read_dataset_flags(run / "memory"):
            return with_remembered(settings, remembered, str(run), MemoryFolderError)
    return settings


# ---- Contestants ----


def contestants(settings: CompareSettings) -> list[Contestant]:
    """The untrained encoder, the methods and the variants; a `BuildError` if there are no methods and no variants."""
    given = {name: getattr(settings, name) for name in _SHARED_FLAGS if name in settings.model_fields_set}
    trained: dict[str, dict[str, Any]] = {method: {"method": method} for method in settings.methods}
    if settings.variants is not None:
        trained |= _read_variants(settings.variants, settings, given)
    if not trained:
        raise BuildError("--methods: expected at least one method, or a file with --variants, found neither; name one")
    # The untrained encoder is first, because the other runs may train on its vectors.
    return [
        Contestant(UNTRAINED, _with_shared({"epochs": 0}, given)),
        *(Contestant(name, _with_shared(own, given)) for name, own in trained.items()),
    ]


def _with_shared(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The flags of a contestant, and the shared flags that have an effect beside them."""
    return TrainSettings.read_of(given, own) | own


def _read_variants(path: Path, settings: CompareSettings, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The flags of each variant of a file. The error for an invalid file names the table and the key."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: expected TOML with one table for each variant, found: {error}") from None
    fixed_flags = {*_SHARED_FLAGS, *_RUN_FLAGS} - set(_OVERRIDABLE)
    for name, table in tables.items():
        where = f"{path}: [{name}]"
        if not isinstance(table, dict) or "method" not in table:
            raise BuildError(f'{where}: expected a table with a method, as in method = "rae", found {table!r}')
        if name in (UNTRAINED, *METHODS) or not _VARIANT_NAME.fullmatch(name):
            raise BuildError(
                f"{where}: expected a name of letters, digits, '.', '_' and '-' that no method has and that does not "
                "end in -seed and a number; rename the variant"
            )
        if fixed := [key for key in table if key in fixed_flags]:
            raise BuildError(
                f"{where} {fixed[0]}: expected a flag that may differ between variants, found a flag that the "
                "comparison sets; remove it"
            )
        try:
            run = {"dataset": settings.dataset, "out": settings.out / "runs" / name}
            TrainSettings(**({name: given[name] for name in given if name != "propensity"} | table | run))
        except ValidationError as error:
            problem = error.errors()[0]
            raise BuildError(
                f"{where} {problem['loc'][0]}: expected a flag of `recollect train` and a value that it accepts, found "
                f"{problem['input']!r}: {problem['msg']}"
            ) from None
        except TrainingError as error:
            raise BuildError(f"{where}: {error}") from None
    return tables


# ---- Runs ----


def _run(
    contestant: Contestant,
    seed: int,
    settings: CompareSettings,
    queries: LabelledQueries,
    data: dict[str, str],
    device: str,
) -> Quality:
    """Train, tune and measure a run. A run that was measured with the same flags and data is not repeated."""
    path = contestant.run(settings.out, seed)
    print_status(f"compare: {path.name}")
    metric = {"metric": settings.metric}
    tuning = as_words(metric | TuneSettings.read_of({"propensity": settings.propensity}, metric))
    flags = as_words(contestant.flags)
    holds_for = data | {"train": flags, "tune": tuning}
    if (path / "quality.json").exists():
        measured = read_json(path / "quality.json")
        if measured["holds_for"] == holds_for:
            return Quality(**measured["quality"])
    own = [f"--out={path}"]
    if contestant.name != UNTRAINED:
        own += [f"--seed={seed}", "--tune=no", "--resume"]
        untrained = settings.out / UNTRAINED
        # Adapter and head are trained on the vectors of the untrained run, so that no text is encoded again.
        if settings.trained != "full":
            own.append(f"--vectors={untrained}")
    run_recollect(path.name, "train", str(settings.dataset), *own, *flags)
    if len(choose_queries(open_memory(path / "memory"), path, 1, seed=0)):
        run_recollect(path.name, "tune", str(path), *tuning)
    else:
        print_status(f"compare: {path.name} is not tuned, because its training held out no instances")
    print_status(f"compare: measure {path.name} on {len(queries):,} test texts")
    quality = measure(path, queries, device)
    write_json(path / "quality.json", {"holds_for": holds_for, "quality": vars(quality)})
    return quality


def run_recollect(run_name: str, verb: str, *arguments: str) -> None:
    """Run a verb of `recollect` in a new process and copy its standard error to ours.

    The peak memory of a run can so be measured alone, and a crash does not end the comparison.

    Raises:
        ContestantError: If the process fails; the message holds the last line of its standard error.
    """
    command = [sys.executable, "-m", "recollect", verb, *arguments]
    # Environment variables are removed: they would change every contestant, and the report would not show it.
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("RECOLLECT_")}
    reason = "it printed no message"
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, encoding="utf-8", errors="replace"
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                sys.stderr.write(line)
                sys.stderr.flush()
                reason = line.strip().removeprefix(f"recollect {verb}: ") or reason
            status = process.wait()
        except BaseException:  # after Ctrl-C, the process of the training must end too
            process.terminate()
            raise
    if status < 0:
        reason = f"`recollect {verb}` was killed by {signal.Signals(-status).name}; memory may have run out"
    if status:
        raise ContestantError(f"{run_name}: {reason} (finished runs are kept; fix the cause and run the command again)")


# ---- Report ----


def _differences(best: Sequence[Results]) -> list[dict[str, Any]]:
    """Each metric of the first contestant minus that of the second, and the ends of the 95% confidence interval."""
    scores = [{metric: result.scores(metric) for metric in TESTED} for result in best]
    first, second = bootstrap([[means(of_contestant)] for of_contestant in scores])
    gains = {metric: first[metric] - second[metric] for metric in first}
    return [{"metric": name, "difference": gain.value, "interval": [*gain.interval]} for name, gain in gains.items()]


def _column(
    results: Sequence[Results], part: str, name: str, form: str = ",.2f", unit: float = 1, highest_is_bold: bool = True
) -> list[str]:
    """A figure of each contestant: the mean and the standard deviation of its runs."""
    by_contestant = [[value / unit for value in result.figures(part, name)] for result in results]
    means = [statistics.fmean(values) if values else -math.inf for values in by_contestant]
    cells = []
    for mean, values in zip(means, by_contestant, strict=True):
        spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
        cell = f"{mean:{form}}{spread}" if values else "-"
        cells.append(f"**{cell}**" if values and highest_is_bold and mean == max(means) else cell)
    return cells


def _metrics(results: Sequence[Results], part: str) -> dict[str, list[str]]:
    return {metric: _column(results, part, metric) for metric in _METRICS}


def quality_table(results: Sequence[Results]) -> str:
    """The quality with the tuned settings, the training cost, and the tuned settings themselves."""
    columns = _metrics(results, "tuned")
    for heading, figure in _COSTS_AND_SETTINGS.items():
        columns[heading] = _column(results, *figure, highest_is_bold=False)
    return _table(results, columns)


def _table(results: Sequence[Results], columns: dict[str, list[str]]) -> str:
    rows = zip((result.contestant.name for result in results), *columns.values(), strict=True)
    return _in_markdown([["method", *columns], *map(list, rows)])


def _in_markdown(rows: list[list[str]]) -> str:
    """A Markdown table whose columns are also aligned in a terminal."""
    head, *body = rows
    rule = [":---", *["---:"] * (len(head) - 1)]
    return "\n".join(aligned([[*(f"| {cell}" for cell in row), "|"] for row in (head, rule, *body)]))


def _markdown(report: dict[str, Any], results: list[Results]) -> Iterator[str]:
    best, metric = report["significance"]["best"], report["metric"]
    yield f"# {report['title']}\n\nPercent on the test split. With several seeds, a cell is mean ± standard deviation."
    yield f"\n## Quality and cost\n\nTuned by {metric} on held-out instances.\n\n{quality_table(results)}"
    plain = _metrics(results, "plain")
    for view in sorted({view for result in results for run in result.runs.values() for view in run.views}):
        plain[f"nDCG@5, {view} alone"] = _column(results, "views", view)
    yield f"\n## Label keys alone (λ = 0, α = 0)\n\n{_table(results, plain)}"
    yield f"\n## Significance\n\n{best[0]} minus {best[1]}, the best two by {metric}: difference over the test texts in"
    yield "points, and its 95% interval (paired bootstrap). A difference is significant if its interval excludes 0.\n"
    tests = [
        [test["metric"], f"{test['difference']:+.2f}", "{:+.2f} to {:+.2f}".format(*test["interval"])]
        for test in report["significance"]["tests"]
    ]
    yield _in_markdown([["metric", "difference", "95% interval"], *tests])
    yield f"\n## Flags of `recollect train`\n\n{report['dataset']}; {report['versions']}\n"
    yield from (f"- {one.contestant.name}: `{shlex.join(as_words(one.contestant.flags))}`" for one in results)
    yield ""
