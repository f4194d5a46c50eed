"""The ranker's model: the file `ranker.json`, and the logit of each candidate label.

The logit is the log-odds that the label is true: a sum of regression trees over the features of the candidate.
`service/ranking/features.py` computes the features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recollect.service.bundle.files import read_small
from recollect.service.errors import BundleError
from recollect.service.ranking.trees import Tree, Trees

FORMAT_VERSION = 1
_MOST_BYTES = 64 << 20


class RankerFile(BaseModel):
    """The content of `ranker.json`.

    Attributes:
        features: Names of the features, in the order of their columns.
        trees: The trees, whose sum is the logit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format_version: Literal[1]
    features: list[str] = Field(min_length=1)
    trees: list[Tree] = Field(min_length=1, max_length=2_000)

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        if len(set(self.features)) < len(self.features):
            raise ValueError("features: expected each name once")
        if any(feature >= len(self.features) for tree in self.trees for feature in tree.feature):
            raise ValueError("trees: a split compares a feature that does not exist")
        return self


class RankerModel:
    """Computes logits of candidates, and the terms of these logits.

    Attributes:
        features: Names of the features, in the order of their columns.
        bias: The part of every logit that no feature explains.
    """

    def __init__(self, file: RankerFile) -> None:
        self.features = tuple(file.features)
        self._trees = Trees(file.trees, len(file.features))
        self.bias = self._trees.bias

    @classmethod
    def open(cls, path: Path) -> RankerModel:
        """Read and check `ranker.json`.

        Raises:
            BundleError: If the file is missing or not a ranker.
        """
        try:
            return cls(RankerFile.model_validate_json(read_small(path, _MOST_BYTES)))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise BundleError(
                f"{path}: expected a ranker of format_version {FORMAT_VERSION}, found: {problem['msg']}"
                f"{f' at {where}' if where else ''}; fit it again with `recollect rank`, and build the bundle again"
            ) from None

    def logits(self, features: Float[np.ndarray, "candidate feature"]) -> Float[np.ndarray, " candidate"]:
        """The log-odds of each candidate. NaN is a missing feature."""
        return self._trees.values(features)

    def contributions(self, features: Float[np.ndarray, "candidate feature"]) -> Float[np.ndarray, "candidate term"]:
        """The terms of each logit: one for each feature, then the bias. They sum to the logit."""
        terms = self._trees.terms(features)
        return np.concatenate([terms, np.full((len(terms), 1), self.bias)], axis=1)
