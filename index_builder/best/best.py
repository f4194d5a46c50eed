"""`recollect train --best`: train several encoders within a time limit, and keep the run that ranks best.

Each contestant is trained, tuned and gets a ranker. Left-out texts decide: texts that neither the training nor the
ranker has seen. The test split is not read.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from recollect.index_builder.best.contestants import Contestant, choose_contestants, estimate_seconds, training_seconds
from recollect.index_builder.best.result import Result, as_json, table
from recollect.index_builder.console import print_status
from recollect.index_builder.errors import BuildError
from recollect.index_builder.ranking.rank import rank_run
from recollect.index_builder.settings import RankSettings
from recollect.service.files import write_json, write_text
from recollect.trainer.data.dataset import open_named
from recollect.trainer.distributed import require_single_process
from recollect.trainer.encoding.checkpoint import load_encoder
from recollect.trainer.encoding.encoder import choose_device
from recollect.trainer.memory.tune import tune
from recollect.trainer.run import write_run
from recollect.trainer.settings import TuneSettings
from recollect.trainer.train_settings import TrainSettings

# The metric that decides.
_METRIC = "nDCG@5"
# Folder of the contestants, inside the run folder, until the best one is chosen.
_RUNS = "contestants"


def train_best(settings: TrainSettings) -> str:
    """Write the run folder of the best contestant, with `best.md` and `best.json`.

    Returns:
        The table of the contestants, in Markdown.

    Raises:
        BuildError: If the run folder is not empty.
        TrainerError: As `recollect train`.
    """
    require_single_process("recollect train --best")
    start, seconds = time.perf_counter(), 60 * settings.minutes
    out = settings.out
    _prepare(out, settings.overwrite)
    runs = out / _RUNS
    results: list[Result] = []
    waiting = _choose(settings, runs, seconds)
    measuring = None
    while waiting:
        spent = time.perf_counter() - start
        print_status(f"best: {waiting[0].name}, {spent:,.0f} of {seconds:,.0f} s")
        limit = training_seconds(waiting, seconds - spent, seconds, measuring)
        result, measuring = _run(waiting.pop(0), limit, settings, runs)
        results.append(result)
    winner = max(results, key=lambda result: result.metrics[_METRIC])
    lines = table(results, winner)
    _keep(runs / winner.name, out)
    write_text(out / "best.md", "\n".join(lines) + "\n")
    write_json(out / "best.json", as_json(results, winner, _METRIC))
    shutil.rmtree(runs)
    print_status(f"{out}: kept {winner.name}, which has the highest {_METRIC}; {time.perf_counter() - start:,.0f} s")
    return "\n".join(lines)


def _prepare(out: Path, overwrite: bool) -> None:
    """Make an empty run folder.

    Raises:
        BuildError: If the folder has files, and they may not be replaced.
    """
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise BuildError(f"{out}: expected an empty folder, found files; choose another --out, or add --overwrite")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)


def _choose(settings: TrainSettings, runs: Path, seconds: float) -> list[Contestant]:
    """The contestants that fit into the time limit."""
    train = open_named(settings).read_split("train")
    device = choose_device(settings.device)
    encoder = load_encoder(settings.encoder, settings.pooling, settings.max_length, settings.label_max_length, device)
    encoding = estimate_seconds(encoder, train.entries.texts, settings.max_length)
    contestants = choose_contestants(runs, settings.encoder, encoding, seconds)
    if len(contestants) == 1:
        print_status(
            f"best: {settings.encoder} would need {encoding:,.0f} s for all texts, so only a static encoder is "
            "trained; --minutes sets the time limit"
        )
    return contestants


def _run(contestant: Contestant, limit: float, settings: TrainSettings, runs: Path) -> tuple[Result, float]:
    """Train a contestant for at most `limit` seconds; return its result, and the time for its tuning and ranking."""
    run, start = runs / contestant.name, time.perf_counter()
    own = {**contestant.flags, "out": run, "best": False, "overwrite": False, "tune": "no"}
    if contestant.share:
        own["max_seconds"] = limit
    write_run(settings.model_copy(update=own))
    trained = time.perf_counter()
    tune(TuneSettings(run=run, metric=_METRIC, propensity=settings.propensity, seed=settings.seed))
    ranking = rank_run(RankSettings(run=run, metric=_METRIC, propensity=settings.propensity, seed=settings.seed))
    end = time.perf_counter()
    return Result.of(contestant.name, ranking, end - start), end - trained


def _keep(run: Path, out: Path) -> None:
    """Move the files of a run to the run folder."""
    for path in run.iterdir():
        path.rename(out / path.name)
