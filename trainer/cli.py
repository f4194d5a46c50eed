"""The verbs `plan`, `presets` and `sample`. They import other modules only when they run, so that `--help` is fast."""

from __future__ import annotations

import json
import sys

from recollect.trainer.plan.settings import PlanSettings
from recollect.trainer.settings import PresetsSettings, SampleSettings


def plan(settings: PlanSettings) -> None:
    from recollect.trainer.plan.listing import listing
    from recollect.trainer.plan.plan import make_plan

    made = make_plan(settings)
    print(json.dumps(made.as_json()) if settings.json_ else "\n".join(listing(made)))  # noqa: T201


def presets(settings: PresetsSettings) -> None:
    from recollect.trainer.presets.listing import as_json, details, table
    from recollect.trainer.presets.preset import all_presets, find_preset

    chosen = list(all_presets().values()) if settings.preset is None else [find_preset(settings.preset)]
    if settings.json_:
        documents = [as_json(preset) for preset in chosen]
        print(json.dumps(documents if settings.preset is None else documents[0]))  # noqa: T201
        return
    print("\n".join(table(chosen) if settings.preset is None else details(chosen[0])))  # noqa: T201


def sample(settings: SampleSettings) -> None:
    from recollect.trainer.data.sample import write_sample

    counts = write_sample(settings.folder)
    print(  # noqa: T201
        f"{settings.folder}: {counts.labels:,} labels, {counts.train:,} train and {counts.test:,} test sentences",
        file=sys.stderr,
    )
