"""The verb `sample`. It imports other modules only when it runs, so that `--help` is fast."""

from __future__ import annotations

import sys

from trainer.settings import SampleSettings


def sample(settings: SampleSettings) -> None:
    from trainer.data.sample import write_sample

    counts = write_sample(settings.folder)
    print(  # noqa: T201
        f"{settings.folder}: {counts.labels:,} labels, {counts.train:,} train and {counts.test:,} test sentences",
        file=sys.stderr,
    )
