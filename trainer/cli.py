"""The verbs `sample` and `tune`.

Modules that need torch are imported only when a verb runs, so that `--help` is fast.
"""

from __future__ import annotations

import json
import sys

from trainer.settings import SampleSettings, TuneSettings


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
