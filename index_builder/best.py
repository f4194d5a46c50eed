"""`recollect train --best`: train several encoders within a time limit, and keep the run that ranks best.

    untrained   the pretrained encoder without training
    adapter     an adapter, trained on the vectors of the untrained encoder
    static      a static encoder, which takes its first token vectors from the pretrained encoder; left out if encoding
                takes more than 40% of the time

All contestants have the same held-out texts, which are chosen before the first training. One half chooses checkpoints
and tunes; the other half fits rankers, with cross-fitting, and decides. So no text judges a choice that it has made.
The best run is then tuned and ranked again with both halves. The test split is not read.

The pretrained encoder must encode all texts before the first two can answer. A sample of the texts shows how long this
takes. With little time, the encoder reads fewer tokens of each text, unless the user gives their number. With too
little time for this, too, the first two are left out, so that the static encoder gets the whole time.

The first contestant shows how long tuning and ranking take. The trainings share the rest of the time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from recollect.core.system.console import print_status
from recollect.core.system.files import clear_folder, find_files, write_json, write_text
from recollect.index_builder.compare import UNTRAINED, Contestant
from recollect.index_builder.errors import BuildError
from recollect.index_builder.reranker.gains import METRICS
from recollect.index_builder.reranker.rank import MIN_QUERIES, RankerFit, rank_run
from recollect.index_builder.settings import RankSettings
from recollect.trainer.data.dataset import open_named
from recollect.trainer.data.split import Split
from recollect.trainer.distributed import require_single_process
from recollect.trainer.encoding.checkpoint import load_encoder
from recollect.trainer.encoding.encoder import Encoder, EncodingPrecision, choose_device
from recollect.trainer.encoding.precision import choose_precision
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.left_out import MORE_HELD_OUT
from recollect.trainer.memory.tune import tune
from recollect.trainer.run import write_run
from recollect.trainer.settings import STATIC, TuneSettings
from recollect.trainer.train_settings import TrainSettings

ADAPTER = "adapter"
# Shares of the time for training; the untrained encoder has none.
_SHARES = {ADAPTER: 0.35, STATIC: 0.65}
# The time for encoding all texts is estimated from so many texts, or from four times as many again and again, until
# they take so many seconds: a small sample fills its batches badly.
_PROBE_TEXTS, _PROBE_SECONDS = 128, 1.0
# Maximum share of the time for encoding all texts with the pretrained encoder.
_ENCODING_SHARE = 0.65
# If encoding takes more than this share, no static encoder is trained: it is rarely the best.
_STATIC_SHARE = 0.4
# Numbers of tokens that the encoder reads of a text, if there is no time for the default of --max-length.
_SHORT_LENGTHS = 64, 32
# Share of the whole time for all tuning and ranking, until one contestant has been measured.
_MEASURING_SHARE = 0.5
# Time to tune and rank the best run with both halves of the held-out texts and with linear classifiers, relative to the
# time for a contestant.
_LAST_MEASURINGS = 5
# All trainings together get at least this share of the time limit.
_MIN_TRAINING_SHARE = 0.1
# The metric that decides.
_METRIC = "nDCG@5"
# Folder of the contestants, inside the run folder, until the best one is chosen.
_RUNS = "contestants"


@dataclass(frozen=True)
class Halves:
    """The held-out texts of all contestants."""

    both: HeldOutTexts
    choosing: HeldOutTexts  # the half that chooses checkpoints and tunes
    judging: HeldOutTexts  # the half that fits rankers and decides
    queries: int  # number of texts that decide

    @classmethod
    def of(cls, train: Split, settings: TrainSettings, encoder: Encoder) -> Halves:
        """Choose the held-out texts of the train split, as each training chooses them; a `BuildError` for too few."""
        entries, labelled = train.entries, np.diff(train.labels.indptr) > 0
        both = HeldOutTexts.choose(
            entries.strings(), labelled, settings.validation_fraction, settings.seed, encoder.config.held_out
        )
        queries = int((both.mask(entries.strings(), len(entries)) & labelled).sum())
        if queries < 2 * MIN_QUERIES:
            raise BuildError(
                f"--best: expected at least {2 * MIN_QUERIES} held-out instances with labels, because one half tunes "
                f"and the other half decides, found {queries}; {MORE_HELD_OUT}, or omit --best"
            )
        choosing, judging = both.halves(entries.strings(), labelled)
        return cls(both, choosing, judging, int((judging.mask(entries.strings(), len(entries)) & labelled).sum()))


def estimate_seconds(encoder: Encoder, texts: pa.LargeStringArray, max_length: int) -> float:
    """The time that an encoder needs for all texts, estimated from a sample of them."""
    encoder.encode(texts[:8].to_pylist(), max_length)  # the first batch also starts threads and allocates memory
    size, spent = _PROBE_TEXTS // 4, 0.0
    while spent < _PROBE_SECONDS and size < len(texts):
        size = min(4 * size, len(texts))
        sample = texts.take(pa.array(np.linspace(0, len(texts) - 1, num=size, dtype=int))).to_pylist()
        start = time.perf_counter()
        encoder.encode(sample, max_length)
        spent = time.perf_counter() - start
    return spent * len(texts) / size


class Plan(NamedTuple):
    """What fits into the time limit.

    Attributes:
        length: Number of tokens that the pretrained encoder reads of a text; None: it is left out.
        static: Whether a static encoder is trained.
    """

    length: int | None
    static: bool


def choose_plan(encoding_seconds: Callable[[int], float], lengths: Sequence[int], seconds: float) -> Plan:
    """The plan with the first of some numbers of tokens for which encoding fits into a time limit.

    Args:
        encoding_seconds: The time in which the encoder reads so many tokens of all texts.
    """
    needed = dict[int, float]()
    for length in lengths:
        needed[length] = encoding_seconds(length)
        if needed[length] <= _ENCODING_SHARE * seconds:
            break
    times = ", ".join(f"{length} tokens of all texts in about {needed[length]:,.0f} s" for length in needed)
    fits, beside_static = (needed[length] <= share * seconds for share in (_ENCODING_SHARE, _STATIC_SHARE))
    chosen = "is left out, and only a static encoder is trained"
    if fits:
        chosen = f"reads at most {length} tokens" + ("" if beside_static else ", and no static encoder is trained")
    print_status(f"best: the encoder reads {times}, of {seconds:,.0f} s, so it {chosen}")
    return Plan(length, beside_static) if fits else Plan(None, True)


def choose_contestants(runs: Path, encoder: str, plan: Plan, precision: EncodingPrecision = "fp32") -> list[Contestant]:
    """The contestants of a plan.

    Args:
        precision: The precision in which the encoder encodes all texts.
    """
    static = Contestant(STATIC, {"encoder": STATIC, "static_from": encoder})
    statics = [static] if plan.static else []
    if plan.length is None:
        return statics
    untrained = Contestant(UNTRAINED, {"epochs": 0, "max_length": plan.length, "precision": precision})
    adapter = Contestant(ADAPTER, {"vectors": runs / UNTRAINED, "max_length": plan.length})
    return [untrained, adapter, *statics]


def training_seconds(waiting: Sequence[Contestant], left: float, seconds: float, measuring: float | None) -> float:
    """The seconds to train the first contestant in a list, with so many seconds left of all.

    Each contestant is then tuned and ranked, which takes the seconds `measuring`; None if they are not known yet.
    """
    reserved = _MEASURING_SHARE * seconds
    if measuring is not None:
        reserved = (len(waiting) + _LAST_MEASURINGS) * measuring
    training = max(left - reserved, _MIN_TRAINING_SHARE * seconds)
    shares = [_SHARES.get(contestant.name, 0.0) for contestant in waiting]
    return training * shares[0] / sum(shares)


@dataclass(frozen=True)
class ContestantResult:
    """The quality of one contestant on texts that its training and its ranker did not see."""

    name: str
    order: str  # the default order of its labels
    metrics: dict[str, float]  # in this order, in percent
    seconds: float  # for training, encoding, tuning and ranking

    @classmethod
    def of(cls, name: str, fit: RankerFit, seconds: float) -> ContestantResult:
        order = fit.choice.order
        return cls(name, order, {gain.name: gain.of_order(order) for gain in fit.gains}, seconds)


def table(results: Sequence[ContestantResult], winner: ContestantResult) -> list[str]:
    """A table of the contestants in Markdown; the winner is in bold."""
    head = f"| contestant | order | {' | '.join(METRICS)} | seconds |"
    lines = [head, f"|---|---|{'---:|' * (len(METRICS) + 1)}"]
    for result in results:
        name = f"**{result.name}**" if result is winner else result.name
        figures = " | ".join(f"{result.metrics[metric]:.2f}" for metric in METRICS)
        lines.append(f"| {name} | {result.order} | {figures} | {result.seconds:,.0f} |")
    return lines


def train_best(settings: TrainSettings) -> list[str]:
    """Write the run folder of the best contestant, with `best.md` and `best.json`. Return the lines of `best.md`.

    Raises:
        BuildError: If the run folder is not empty, or too few texts are held out.
        TrainerError: As `recollect train`.
    """
    require_single_process("recollect train --best")
    start, seconds = time.perf_counter(), 60 * settings.minutes
    out = settings.out
    if find_files(out) and not settings.overwrite:
        raise BuildError(f"{out}: expected an empty folder, found files; choose another --out, or add --overwrite")
    runs = out / _RUNS
    waiting, held_out = _choose(settings, runs, seconds)
    out.mkdir(parents=True, exist_ok=True)
    clear_folder(out)
    results: list[ContestantResult] = []
    measuring = None
    while waiting:
        spent = time.perf_counter() - start
        if results and spent >= seconds:
            print_status(f"best: {spent:,.0f} of {seconds:,.0f} s have passed, so {waiting[0].name} is left out")
            break
        print_status(f"best: {waiting[0].name}, after {spent:,.0f} of {seconds:,.0f} s")
        limit = training_seconds(waiting, seconds - spent, seconds, measuring)
        result, measuring = _run(waiting.pop(0), limit, settings, runs, held_out)
        results.append(result)
    winner = max(results, key=lambda result: result.metrics[_METRIC])
    lines = table(results, winner)
    for path in (runs / winner.name).iterdir():
        path.rename(out / path.name)
    write_text(out / "best.md", "\n".join(lines) + "\n")
    report = {
        "metric": _METRIC,
        "queries": held_out.queries,
        "winner": winner.name,
        "contestants": [asdict(result) for result in results],
    }
    write_json(out / "best.json", {"format_version": 1} | report)
    shutil.rmtree(runs)
    _measure(out, settings, held_out.both, held_out.both, classifier="auto")
    print_status(f"{out}: kept {winner.name}, which has the highest {_METRIC}; {time.perf_counter() - start:,.0f} s")
    return lines


def _choose(settings: TrainSettings, runs: Path, seconds: float) -> tuple[list[Contestant], Halves]:
    """The contestants that fit into the time limit, and the held-out texts of all of them."""
    dataset = open_named(settings)
    train = dataset.read_split("train")
    device = choose_device(settings.device)
    lengths = settings.max_length, settings.label_max_length
    encoder = load_encoder(
        settings.encoder, settings.pooling, *lengths, device, "--encoder", settings.query_prompt, settings.label_prompt
    )
    held_out, texts = Halves.of(train, settings, encoder), train.entries.texts
    encoder = encoder.in_precision(choose_precision(encoder, texts, settings.precision, print_status))
    of_labels = estimate_seconds(encoder, dataset.labels.texts, settings.label_max_length)
    shorter = () if "max_length" in settings.model_fields_set else _SHORT_LENGTHS
    plan = choose_plan(
        lambda tokens: of_labels + estimate_seconds(encoder, texts, tokens), [settings.max_length, *shorter], seconds
    )
    return choose_contestants(runs, settings.encoder, plan, encoder.precision), held_out


def _run(
    contestant: Contestant, limit: float, settings: TrainSettings, runs: Path, held_out: Halves
) -> tuple[ContestantResult, float]:
    """Train a contestant for at most `limit` seconds; return its result, and the time for its tuning and ranking."""
    run, start = runs / contestant.name, time.perf_counter()
    own = {**contestant.flags, "out": run, "best": False, "overwrite": False, "tune": "no"}
    if contestant.name in _SHARES:
        own["max_seconds"] = limit
    write_run(settings.model_copy(update=own), held_out.choosing)
    trained = time.perf_counter()
    ranking = _measure(run, settings, held_out.choosing, held_out.judging, classifier="off")
    end = time.perf_counter()
    return ContestantResult.of(contestant.name, ranking, end - start), end - trained


def _measure(
    run: Path,
    settings: TrainSettings,
    tuned_on: HeldOutTexts,
    ranked: HeldOutTexts,
    classifier: Literal["auto", "off"],
) -> RankerFit:
    """Tune a run on some held-out texts, and rank and judge it with some. Only the last fit tries classifiers."""
    shared: dict[str, Any] = {"run": run, "metric": _METRIC, "seed": settings.seed}
    tune(TuneSettings(**shared), tuned_on)
    flags = {**shared, "classifier": classifier, "propensity": settings.propensity, "reranker": None}
    return rank_run(RankSettings(**flags), ranked)
