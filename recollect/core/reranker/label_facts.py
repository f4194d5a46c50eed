"""The properties of labels that the ranker reads, besides what the searches find for a query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.core.bundle.bundle import Bundle
from recollect.core.reranker.classifier import Classifier
from recollect.core.reranker.cooccurrence import Cooccurrence
from recollect.core.words.names import Names


@dataclass(frozen=True)
class LabelFacts:
    """Properties of the labels that do not depend on a query.

    Attributes:
        counts: Numbers of training instances (int32).
        together: The labels that occur together; without rows, this feature is NaN.
        classifier: None if linear classifiers do not help.
    """

    counts: Int[np.ndarray, " label"]
    names: Names
    together: Cooccurrence = Cooccurrence()
    classifier: Classifier | None = None

    @classmethod
    def open(cls, bundle: Bundle) -> LabelFacts:
        """Open the files of a bundle that has a ranker."""
        components, manifest, labels = bundle.components, bundle.manifest, len(bundle.labels)
        return cls(
            bundle.labels.counts,
            Names.open_with(components.open, labels, manifest.has_stems),
            Cooccurrence.open_with(components.open, labels) if manifest.has_stems else Cooccurrence(),
            Classifier.open_with(components.open, labels) if manifest.has_classifier else None,
        )

    def take(self, labels: Int[np.ndarray, " label"], texts: Iterable[str]) -> LabelFacts:
        """The properties of some labels of a bundle, in this order, with these texts; -1 for a label that is new.

        They are those with which the live memory of the bundle answers, except the counts.
        """
        classifier = None if self.classifier is None else self.classifier.take(labels)
        return LabelFacts(self.counts, self.names.renamed(texts), self.together.take(labels), classifier)

    def write(self, folder: Path) -> None:
        """Write the files of a bundle, except the counts, which all bundles have."""
        self.names.write(folder)
        self.together.write(folder)
        if self.classifier is not None:
            self.classifier.write(folder)
