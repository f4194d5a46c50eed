"""The public name of the scikit-learn classifier, whose code is in `extras/sklearn`."""

from recollect.extras.sklearn.classifier import RecollectClassifier

__all__ = ["RecollectClassifier"]
