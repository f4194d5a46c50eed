"""`--rank` of `recollect train` and `recollect tune`: fit the ranker as soon as the memory is finished."""

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
    from recollect.index_builder.ranking.rank import Ranking
    from recollect.trainer.memory.tune import Tuning


def train_and_rank(settings: TrainSettings) -> Ranking | None:
    """Write a run folder, and fit its ranker if `--rank` asks for one.

    Raises:
        BuildError: If a package of the ranker is missing, or `--rank yes` finds too few texts.
        TrainerError: As `recollect train`.
        ServiceError: If Ray does not start.
    """
    _require_packages(settings.rank)
    from recollect.trainer.distributed import is_first_rank
    from recollect.trainer.run import write_run

    write_run(settings)
    return _rank(settings.out, settings, "nDCG@5") if is_first_rank() else None


def tune_and_rank(settings: TuneSettings) -> tuple[Tuning, Ranking | None]:
    """Tune a memory, and fit its ranker by the same metric if `--rank` asks for one.

    Raises:
        BuildError: If a package of the ranker is missing, or `--rank yes` finds too few texts.
        TrainerError: As `recollect tune`.
    """
    _require_packages(settings.rank)
    from recollect.trainer.memory.tune import tune

    return tune(settings), _rank(settings.run, settings, settings.metric)


def _require_packages(choice: RankChoice) -> None:
    """Raise an error before the work of minutes if the ranker cannot be fitted after it."""
    if choice == "no":
        return
    try:
        import recollect.index_builder.ranking.rank  # noqa: F401
    except ModuleNotFoundError as error:
        raise BuildError(
            f"--rank {choice}: expected {error.name}, which fits the ranker, found no such package; "
            "pip install 'recollect-xmc[build]', or omit --rank"
        ) from error


def _rank(run: Path, settings: SharedTrainSettings | TuneSettings, metric: Metric) -> Ranking | None:
    if settings.rank == "no":
        return None
    from recollect.index_builder.ranking.rank import rank_run

    print_status(f"rank: {run}")
    try:
        return rank_run(RankSettings(run=run, metric=metric, propensity=settings.propensity, seed=settings.seed))
    except NothingToRank as error:
        if settings.rank == "yes":
            raise
        print_status(f"rank: none; {error}")
        return None
