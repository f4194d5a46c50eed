"""`recollect train` and `recollect tune`, with the rankers (`--rank`) and the comparison (`--best`) after them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recollect.core.system.console import print_status
from recollect.index_builder.errors import BuildError, NothingToRank
from recollect.index_builder.settings import RankSettings
from recollect.trainer.settings import Metric, RankChoice, TuneSettings
from recollect.trainer.train_flags import SharedTrainSettings
from recollect.trainer.train_settings import TrainSettings

if TYPE_CHECKING:
    from recollect.index_builder.reranker.rank import RankerFit
    from recollect.trainer.memory.tune import Tuning


def train(settings: TrainSettings) -> list[str]:
    """Write a run folder, and fit its ranker if `--rank` asks for one. Return the table of the ranker, or of `--best`.

    Raises:
        BuildError: If a package of the ranker is missing, or `--rank yes` or `--best` finds too few texts.
        TrainerError: If the settings, the dataset or the encoder are wrong, or the training fails.
    """
    if settings.best:
        from recollect.index_builder.best import train_best

        return train_best(settings)
    _require_packages(settings.rank)
    from recollect.trainer.distributed import is_first_rank
    from recollect.trainer.run import write_run

    write_run(settings)
    fit = _rank(settings.out, settings, "nDCG@5") if is_first_rank() else None
    return [] if fit is None else fit.table()


def tune(settings: TuneSettings) -> tuple[Tuning, RankerFit | None]:
    """Tune a memory, and fit its ranker by the same metric if `--rank` asks for one.

    Raises:
        BuildError: If a package of the ranker is missing, or `--rank yes` finds too few texts.
        TrainerError: If the run cannot be read, or no instances with labels are held out.
    """
    _require_packages(settings.rank)
    from recollect.trainer.memory.tune import tune as tune_memory

    return tune_memory(settings), _rank(settings.run, settings, settings.metric)


def _require_packages(choice: RankChoice) -> None:
    """Raise an error before the work of minutes if the ranker cannot be fitted after it."""
    if choice == "no":
        return
    try:
        import recollect.index_builder.reranker.rank  # noqa: F401
    except ModuleNotFoundError as error:
        raise BuildError(
            f"--rank {choice}: expected {error.name}, which fits the ranker, found no such package; "
            "pip install 'recollect-xmc[build]', or omit --rank"
        ) from error


def _rank(run: Path, settings: SharedTrainSettings | TuneSettings, metric: Metric) -> RankerFit | None:
    if settings.rank == "no":
        return None
    from recollect.index_builder.reranker.rank import rank_run

    print_status(f"rank: {run}")
    try:
        # Without a reranker: its variable is for services, too, and the scores of thousands of texts take long.
        return rank_run(
            RankSettings(run=run, metric=metric, propensity=settings.propensity, seed=settings.seed, reranker=None)
        )
    except NothingToRank as error:
        if settings.rank == "yes":
            raise
        print_status(f"rank: none; {error}")
        return None
