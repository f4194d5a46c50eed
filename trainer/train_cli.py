"""The verb `train`. It is apart from the other verbs, because its flags come from the methods, which import torch."""

from __future__ import annotations

from trainer.run import write_run
from trainer.train_settings import TrainSettings


def train(settings: TrainSettings) -> None:
    write_run(settings)
