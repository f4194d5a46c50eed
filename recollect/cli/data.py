"""The verbs `presets` and `sample`. They import other modules only when they run, so that `--help` is fast."""

from __future__ import annotations

import dataclasses
import json

from recollect.core.system.console import print_status
from recollect.trainer.settings import PresetsSettings, SampleSettings


def presets(settings: PresetsSettings) -> None:
    from recollect.trainer.presets.listing import details, table
    from recollect.trainer.presets.preset import all_presets, find_preset

    chosen = list(all_presets().values()) if settings.preset is None else [find_preset(settings.preset)]
    if settings.json_:
        documents = [dataclasses.asdict(preset) for preset in chosen]
        print(json.dumps(documents if settings.preset is None else documents[0]))  # noqa: T201
        return
    print("\n".join(table(chosen) if settings.preset is None else details(chosen[0])))  # noqa: T201


def sample(settings: SampleSettings) -> None:
    from recollect.trainer.data.sample import write_sample

    counts = write_sample(settings.folder)
    print_status(
        f"{settings.folder}: {counts.labels:,} labels, {counts.train:,} train and {counts.test:,} test sentences"
    )
