"""A memory as plain tables, and its answers as the formulas say, in float64 (RAE-XMC, Eq. 5 and 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tests.edits.rebuilt import Tables

# Largest error of a similarity in float32.
SIMILARITY_ERROR = 1e-6


class Instance(NamedTuple):
    labels: list[str]
    vector: np.ndarray
    weight: float


class Correction(NamedTuple):
    label: str
    vector: np.ndarray


@dataclass
class Reference:
    """A memory that changes as `Model.add`, `remove`, `learn` and `forget` change it."""

    instances: dict[str, Instance] = field(default_factory=dict)
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    corrections: dict[str, Correction] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any) -> Reference:
        """The memory of a model without live entries."""
        tables = Tables.of(model.predictor.bundle, model.predictor)
        instances = {uid: Instance(own, vector, 1.0) for uid, (_, own, vector) in tables.instances.items()}
        return cls(instances, {uid: vector for uid, (_, vector) in tables.labels.items()})

    def remove_label(self, uid: str) -> None:
        del self.labels[uid]
        self.corrections = {own: each for own, each in self.corrections.items() if each.label != uid}
        kept = ((own, each, [label for label in each.labels if label != uid]) for own, each in self.instances.items())
        self.instances = {own: each._replace(labels=labels) for own, each, labels in kept if labels}

    def answer(
        self, query: np.ndarray, options: dict[str, Any]
    ) -> tuple[dict[str, float], dict[str, dict[Any, float]]]:
        """The scores of the admitted labels, and the terms of each score: the share of each key and correction.

        With a filter, the keys are the `top_b` nearest ones and all keys that vote for an admitted label. At a tie of
        the key `top_b` with the next one, all keys of the tie are taken: `top_b` is changed to their number.
        """
        lambda_, admitted = options["lambda_"], self._admitted(options)
        keys = [(("instance", uid), each.labels, each.vector, each.weight) for uid, each in self.instances.items()]
        keys = keys if lambda_ > 0 else []
        keys += [(("label", uid), [uid], vector, 1.0) for uid, vector in self.labels.items()] if lambda_ < 1 else []
        similarities = np.array([vector.astype(np.float64) @ query for _, _, vector, _ in keys])
        order = np.argsort(-similarities, kind="stable")
        top_b = min(options["top_b"], len(keys))
        while top_b < len(keys) and similarities[order[top_b - 1]] - similarities[order[top_b]] < 2 * SIMILARITY_ERROR:
            top_b += 1
        options["top_b"] = max(top_b, options["top_b"])
        found = {*order[:top_b].tolist()}
        if options["allow"] is not None or options["deny"]:
            found |= {row for row, (_, labels, _, _) in enumerate(keys) if not admitted.isdisjoint(labels)}
        rows = sorted(found)
        logits = np.array([similarities[row] / options["temperature"] + np.log(keys[row][3]) for row in rows])
        weights = np.exp(logits - logits.max()) if rows else logits
        terms: dict[str, dict[Any, float]] = {}
        for row, weight in zip(rows, weights / weights.sum(), strict=True):
            key, labels, _, _ = keys[row]
            for label in admitted.intersection(labels):
                terms.setdefault(label, {})[key] = weight * (lambda_ if key[0] == "instance" else 1 - lambda_)
        scores = {label: sum(own.values()) for label, own in terms.items()}
        return self._corrected(query, options["temperature"], scores, terms), terms

    def _admitted(self, options: dict[str, Any]) -> set[str]:
        allowed = {*self.labels} if options["allow"] is None else {*self.labels} & {*options["allow"]}
        return allowed - {*options["deny"]}

    def _corrected(
        self, query: np.ndarray, temperature: float, scores: dict[str, float], terms: dict[str, dict[Any, float]]
    ) -> dict[str, float]:
        """Multiply each score by the smallest factor of its corrections, and add this as a term."""
        factors: dict[str, float] = {}
        for correction in self.corrections.values():
            distance = np.square(correction.vector.astype(np.float64) - query).sum()
            factor = -np.expm1(-distance / (2 * temperature))
            factors[correction.label] = min(factor, factors.get(correction.label, 1.0))
        for label in factors.keys() & scores.keys():
            terms[label]["correction"] = (factors[label] - 1) * scores[label]
        return {label: score * factors.get(label, 1.0) for label, score in scores.items()}
