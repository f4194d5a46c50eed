"""Quality by label frequency: ten groups with equally many labels, or with equally many pairs of a text and a label.

RAE-XMC explains its gain by the source of the retrieved keys (Fig. 3): frequent labels are found by instances, rare
labels by their own keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from scipy import sparse

from recollect.core.bundle.values import Values
from recollect.core.scoring import WeightedKeys

_GROUPS = 10
_DEPTHS_OF_RECALL = (10, 100)
_DEPTH_OF_PRECISION = 5


def deciles_of_labels(label_counts: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
    """The decile of each label, from 0 for the labels with the fewest training texts to 9.

    All deciles have equally many labels. Labels with equally many texts are in the order of their positions. With fewer
    than ten labels, deciles are empty.
    """
    deciles = np.empty(len(label_counts), dtype=np.int64)
    for number, members in enumerate(np.array_split(np.argsort(label_counts, kind="stable"), _GROUPS)):
        deciles[members] = number
    return deciles


def deciles_of_pairs(label_counts: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
    """The decile of each label, from 0 for the labels with the most training texts to 9, as in DEXML and NGAME.

    All deciles have equally many pairs of a training text and a label, up to the pairs of one label. A label that is on
    a border belongs to the decile of its first pair.
    """
    order = np.argsort(-label_counts.astype(np.int64), kind="stable")
    counts = label_counts[order].astype(np.int64)
    deciles = np.empty(len(label_counts), dtype=np.int64)
    deciles[order] = np.minimum(_GROUPS * (counts.cumsum() - counts) // max(1, int(counts.sum())), _GROUPS - 1)
    return deciles


# The ways to form deciles, by their names in the result.
DECILES = {"deciles": deciles_of_labels, "deciles_by_pairs": deciles_of_pairs}


def count_sources(
    weighted: WeightedKeys, values: Values, relevance: sparse.csr_matrix, groupings: Iterable[Int[np.ndarray, " label"]]
) -> Int[np.ndarray, "grouping source decile"]:
    """The number of retrieved keys that vote for a true label of each decile: instance keys, and label keys."""
    by_instances, by_labels = [], []
    for query in range(relevance.shape[0]):
        true = relevance.indices[relevance.indptr[query] : relevance.indptr[query + 1]].astype(np.int64)
        place, column = weighted.voters(query, true, values)
        is_label = weighted.keys[query, column] >= values.instances
        by_instances.append(true[place[~is_label]])
        by_labels.append(true[place[is_label]])
    labels_of_sources = [np.concatenate(labels) for labels in (by_instances, by_labels)]
    return np.stack(
        [[np.bincount(deciles[labels], minlength=_GROUPS) for labels in labels_of_sources] for deciles in groupings]
    )


def by_frequency(
    predictions: Int[np.ndarray, "query 100"],
    hit: Bool[np.ndarray, "query 100"],
    truth: sparse.csr_matrix,
    label_counts: Int[np.ndarray, " label"],
    deciles: Int[np.ndarray, " label"],
    sources: Int[np.ndarray, "source decile"],
) -> list[dict[str, Any]]:
    """Measure each decile that has labels. The predictions are best first; -1 pads short lists.

    The sources are the sum of `count_sources` over all queries, for these deciles.

    Returns:
        For each decile: the number of `labels`; the `least` and `most` training texts of a label; `true`, the pairs of
        a test text and a true label. `P@5` is the part of the P@5 of all labels, so that the deciles add up to it.
        `R@10` and `R@100` are shares of `true`. `instance_keys` and `label_keys` are retrieved keys of a true label,
        as a mean over `true`; `label_key_share` is the share of label keys among both. All metrics but these two means
        are in percent. A mean over no pairs or no keys is None.
    """

    def counted(labels: Int[np.ndarray, " found"]) -> Int[np.ndarray, " decile"]:
        return np.bincount(deciles[labels], minlength=_GROUPS)

    true = counted(truth.indices)
    top = predictions[:, :_DEPTH_OF_PRECISION][hit[:, :_DEPTH_OF_PRECISION]]
    precision = 100 * counted(top) / (_DEPTH_OF_PRECISION * len(predictions))
    means = {f"R@{k}": 100 * counted(predictions[:, :k][hit[:, :k]]) for k in _DEPTHS_OF_RECALL}
    means |= zip(("instance_keys", "label_keys"), sources, strict=True)
    retrieved, label_keys = sources.sum(axis=0), sources[1]
    texts = [label_counts[deciles == number] for number in range(_GROUPS)]
    return [
        {
            "decile": number + 1,
            "labels": len(members),
            "least": int(members.min()),
            "most": int(members.max()),
            "true": int(true[number]),
            "P@5": float(precision[number]),
            **{name: float(sums[number] / true[number]) if true[number] else None for name, sums in means.items()},
            "label_key_share": float(100 * label_keys[number] / retrieved[number]) if retrieved[number] else None,
        }
        for number, members in enumerate(texts)
        if len(members)
    ]
