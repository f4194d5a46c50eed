"""Command-line verbs of the index builder. A verb imports heavy modules when it runs, so `--help` stays fast."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from recollect.index_builder.settings import (
    BuildSettings,
    CompactSettings,
    CompareSettings,
    DemoSettings,
    EvaluateSettings,
    PushSettings,
    RankSettings,
)
from recollect.trainer.settings import TuneSettings
from recollect.trainer.train_settings import TrainSettings

if TYPE_CHECKING:
    from recollect.index_builder.ranking.rank import Ranking


def train(settings: TrainSettings) -> None:
    """Train; `--best` and `--rank` also fit rankers, which the trainer cannot do alone."""
    if settings.best:
        from recollect.index_builder.best import train_best

        print(train_best(settings))  # noqa: T201
        return
    from recollect.index_builder.ranking.after_training import train_and_rank

    ranking = train_and_rank(settings)
    if ranking is not None:
        _print_ranking(ranking)


def tune(settings: TuneSettings) -> None:
    from recollect.index_builder.ranking.after_training import tune_and_rank
    from recollect.trainer.memory.tune import table

    tuning, ranking = tune_and_rank(settings)
    if settings.json_:
        print(json.dumps(tuning.as_json() | ({} if ranking is None else {"ranking": ranking.as_json()})))  # noqa: T201
        return
    print("\n".join(table(tuning)))  # noqa: T201
    if ranking is not None:
        _print_ranking(ranking)


def build(settings: BuildSettings) -> None:
    from recollect.index_builder.build import build as build_bundle

    print(build_bundle(settings))  # noqa: T201


def push(settings: PushSettings) -> None:
    from recollect.core import extras

    print(extras.load("verb", "push").push(settings))  # noqa: T201


def compact(settings: CompactSettings) -> None:
    from recollect.index_builder.live_memory.compact import compact as compact_memory

    if (version := compact_memory(settings)) is not None:
        print(version)  # noqa: T201


def rank(settings: RankSettings) -> None:
    from recollect.index_builder.ranking.rank import rank_run

    ranking = rank_run(settings)
    if settings.json_:
        print(json.dumps(ranking.as_json()))  # noqa: T201
    else:
        _print_ranking(ranking)


def evaluate(settings: EvaluateSettings) -> None:
    from recollect.index_builder.evaluation.evaluate import evaluate as evaluate_bundle
    from recollect.index_builder.evaluation.table import format_evaluation

    evaluation = evaluate_bundle(settings)
    if settings.json_:
        print(json.dumps(vars(evaluation)))  # noqa: T201
        return
    print("\n".join(format_evaluation(evaluation, settings.intervals, settings.deciles)))  # noqa: T201


def compare(settings: CompareSettings) -> None:
    from recollect.index_builder.compare import compare as compare_methods

    print(compare_methods(settings))  # noqa: T201


def demo(settings: DemoSettings) -> None:
    from recollect.index_builder.demo import demo as run_demo
    from recollect.index_builder.demo import open_playground

    if not settings.serve:
        print(run_demo(settings))  # noqa: T201
        return
    from recollect.service.addresses import bind, start_listening, url
    from recollect.service.process.server import serve
    from recollect.service.settings import ServeSettings

    with bind(settings.host, settings.port) as bound:  # a port in use fails here, before the work of minutes
        print(run_demo(settings))  # noqa: T201
        start_listening(bound)  # the browser waits until the server answers
        print(f"\nTry it in a browser: {url(bound)}/ (stop with Ctrl-C)", flush=True)  # noqa: T201
        if settings.browser:
            open_playground(f"{url(bound)}/")
        serve(ServeSettings(store=settings.folder / "store", workers=1), bound)


def _print_ranking(ranking: Ranking) -> None:
    from recollect.index_builder.ranking.rank import table

    print("\n".join(table(ranking)))  # noqa: T201
