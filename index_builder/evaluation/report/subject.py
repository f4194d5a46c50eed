"""The subject of a report: a version, and the test texts that it answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recollect.index_builder.evaluation.measured import Measured
from recollect.index_builder.evaluation.predictions import GroundTruth
from recollect.service.predictor.predictor import Predictor
from recollect.trainer.data.split import Split


@dataclass(frozen=True)
class Subject:
    """A measured version.

    Attributes:
        predictor: The version.
        dataset: The dataset folder.
        test: The test texts.
        truth: Their true labels.
        answering: The measurement of the default options.
        measured: All measurements, among them those of the lambda curve.
    """

    predictor: Predictor
    dataset: Path
    test: Split
    truth: GroundTruth
    answering: Measured
    measured: list[Measured]

    @property
    def version(self) -> str:
        return self.predictor.version

    def name(self, label: int) -> str:
        """The text of a label."""
        labels = self.predictor.bundle.labels
        return labels.texts[label] if label < len(labels) else "a label that the version does not have"
