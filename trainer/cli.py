"""The verbs `presets`, `sample` and `tune`.

Modules that need torch are imported only when a verb runs, so that `--help` is fast.
"""

from __future__ import annotations

import json
import sys

from trainer.settings import PresetsSettings, SampleSettings, TuneSettings


def presets(settings: PresetsSettings) -> None:
    from trainer.presets.listing import as_json, details, table
    from trainer.presets.preset import all_presets, find_preset

    chosen = list(all_presets().values()) if settings.preset is None else [find_preset(settings.preset)]
    if settings.json_:
        documents = [as_json(preset) for preset in chosen]
        print(json.dumps(documents if settings.preset is None else documents[0]))  # noqa: T201
        return
    print("\n".join(table(chosen) if settings.preset is None else details(chosen[0])))  # noqa: T201


def sample(settings: SampleSettings) -> None:
    from trainer.data.sample import write_sample

    counts = write_sample(settings.folder)
    print(  # noqa: T201
        f"{settings.folder}: {counts.labels:,} labels, {counts.train:,} train and {counts.test:,} test sentences",
        file=sys.stderr,
    )


def tune(settings: TuneSettings) -> None:
    from trainer.tune import table
    from trainer.tune import tune as tune_memory

    tuning = tune_memory(settings)
    lines = [json.dumps(tuning.as_json())] if settings.json_ else table(tuning)
    print("\n".join(lines))  # noqa: T201
