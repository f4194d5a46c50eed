"""The verbs from a dataset to a measured bundle. A verb imports its libraries when it runs."""

from __future__ import annotations

import dataclasses
import json

from recollect.core.system.console import print_status
from recollect.index_builder.settings import (
    BuildSettings,
    CompactSettings,
    CompareSettings,
    EvaluateSettings,
    PushSettings,
    RankSettings,
)
from recollect.trainer.settings import PresetsSettings, SampleSettings, TuneSettings


def sample(settings: SampleSettings) -> None:
    from recollect.trainer.data.sample import write_sample

    counts = write_sample(settings.folder)
    print_status(
        f"{settings.folder}: {counts.labels:,} labels, {counts.train:,} train and {counts.test:,} test sentences"
    )


def presets(settings: PresetsSettings) -> list[str]:
    from recollect.trainer.presets.listing import details, table
    from recollect.trainer.presets.preset import all_presets, find_preset

    chosen = [*all_presets().values()] if settings.preset is None else [find_preset(settings.preset)]
    if settings.json_:
        documents = [dataclasses.asdict(preset) for preset in chosen]
        return [json.dumps(documents if settings.preset is None else documents[0])]
    return table(chosen) if settings.preset is None else details(chosen[0])


def tune(settings: TuneSettings) -> list[str]:
    from recollect.index_builder.training import tune as tune_and_rank
    from recollect.trainer.memory.tune import table

    tuning, fit = tune_and_rank(settings)
    if settings.json_:
        return [json.dumps(tuning.as_json() | ({} if fit is None else {"ranking": fit.as_json()}))]
    return [*table(tuning), *([] if fit is None else fit.table())]


def rank(settings: RankSettings) -> list[str]:
    from recollect.index_builder.reranker.rank import rank_run

    fit = rank_run(settings)
    return [json.dumps(fit.as_json())] if settings.json_ else fit.table()


def build(settings: BuildSettings) -> str:
    from recollect.index_builder.build import build as build_bundle

    return build_bundle(settings)


def push(settings: PushSettings) -> list[str]:
    from recollect.core import extras

    card: str = extras.load("verb", "push").push(settings)
    return card.split("\n")


def compact(settings: CompactSettings) -> str | None:
    from recollect.index_builder.live_memory.compact import compact as compact_memory

    return compact_memory(settings)


def evaluate(settings: EvaluateSettings) -> list[str]:
    from recollect.index_builder.evaluation.evaluate import evaluate as evaluate_bundle
    from recollect.index_builder.evaluation.table import format_csv, format_evaluation, format_latex

    evaluation = evaluate_bundle(settings)
    if settings.json_:
        return [json.dumps(vars(evaluation))]
    if settings.csv:
        return format_csv(evaluation, settings.intervals)
    if settings.latex:
        return [*format_latex(evaluation, settings.intervals, settings.wide)]
    return [*format_evaluation(evaluation, settings.intervals, settings.deciles, settings.wide)]


def compare(settings: CompareSettings) -> list[str]:
    from recollect.index_builder.compare import compare as compare_methods

    return compare_methods(settings).split("\n")
