from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.trainer.heads.prototypes import Prototypes
from recollect.trainer.methods.prime import PrototypeToken
from recollect.trainer.sharded import Sharded
from tests.trainer.helpers import label_sets

LABELS, DIM, BANK = 24, 64, 5
WITHOUT_INSTANCE = 7
ALL: tuple[PrototypeToken, ...] = get_args(PrototypeToken)
EVERY: list[tuple[PrototypeToken, ...]] = [("text",), ("text", "free"), ("free", "centroid"), ALL]
every_choice = pytest.mark.parametrize("tokens", EVERY, ids="+".join)


def units(rows: int, seed: int) -> Tensor:
    return nn.functional.normalize(torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed)), dim=1)


TEXTS = units(LABELS, 1)
INSTANCES = units(3 * LABELS, 2)
VALUES = label_sets([sorted({row % LABELS, row * 5 % LABELS} - {WITHOUT_INSTANCE}) for row in range(3 * LABELS)])


def started(tokens: tuple[PrototypeToken, ...] = ALL, bank: int = BANK) -> Prototypes:
    torch.manual_seed(0)
    head = Prototypes(DIM, LABELS, tokens, bank if "free" in tokens else 0).eval()
    head.start(TEXTS.numpy(), Sharded.of(INSTANCES.numpy()), VALUES.to_csr(LABELS), seed=3)
    return head


def prototypes(head: Prototypes) -> Tensor:
    with torch.no_grad():
        return head.key(head.labels(TEXTS, torch.arange(LABELS)))


def tokens_of(head: Prototypes, tokens: tuple[PrototypeToken, ...], label: int) -> list[Tensor]:
    """Return the parts of a label's prototype by the written formula."""
    own = [row for row in range(len(VALUES)) if label in VALUES.indices[slice(*VALUES.indptr[row : row + 2])]]
    assert bool(own) == (label != WITHOUT_INSTANCE)
    mean = INSTANCES[own].mean(dim=0) if own else TEXTS[label]
    found = {"text": TEXTS[label], "centroid": mean / mean.norm()}
    if "free" in tokens:
        shared = TEXTS[head.cluster == head.cluster[label]].mean(dim=0)
        found["free"] = shared / shared.norm()
    return [found[name] for name in tokens]


@every_choice
def test_prototype_before_training_is_near_the_mean_of_its_parts(tokens: tuple[PrototypeToken, ...]) -> None:
    head = started(tokens)
    for label, prototype in enumerate(prototypes(head)):
        mean = torch.stack(tokens_of(head, tokens, label)).mean(dim=0)
        centred = mean - mean.mean()  # the layer's norms only centre unit vectors
        assert torch.cosine_similarity(prototype, centred, dim=0) > 0.99
        assert torch.cosine_similarity(prototype, mean, dim=0) > 0.9


def test_centroids_start_as_unit_means_and_move_by_a_twentieth_towards_the_mean_of_the_drawn_queries() -> None:
    head, random = started(), np.random.default_rng(5)
    assert head.centroids is not None
    expected = torch.stack([tokens_of(head, ("centroid",), label)[0] for label in range(LABELS)])
    torch.testing.assert_close(head.centroids(torch.arange(LABELS), TEXTS), expected)
    for step in range(20):
        queries, query = units(12, 10 + step), random.integers(0, 12, 30)
        drawn = random.choice(np.delete(np.arange(LABELS), WITHOUT_INSTANCE), 30)
        head.follow(queries, query, drawn)
        for label in np.unique(drawn):
            expected[label] = 0.95 * expected[label] + 0.05 * queries[query[drawn == label]].mean(dim=0)
    found = head.centroids(torch.arange(LABELS), TEXTS)
    torch.testing.assert_close(found, nn.functional.normalize(expected, dim=1))
    assert torch.equal(found[WITHOUT_INSTANCE], TEXTS[WITHOUT_INSTANCE])
