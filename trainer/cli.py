"""The trainer's verbs. Heavy modules load when a verb runs, so that `--help` stays quick."""

from __future__ import annotations

import sys

from trainer.settings import SampleSettings, TrainSettings


def sample(settings: SampleSettings) -> None:
    from trainer.sample import write_sample

    counts = write_sample(settings.folder)
    print(  # noqa: T201
        f"{settings.folder}: {counts.labels:,} labels, {counts.train:,} train and {counts.test:,} test sentences",
        file=sys.stderr,
    )


def train(settings: TrainSettings) -> None:
    from trainer.train import train as train_run

    train_run(settings)
