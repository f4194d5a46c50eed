"""The layer with tanh of UniDEC and SupconDE against its formula, in float64."""

from __future__ import annotations

import numpy as np
import torch

from recollect.trainer.heads.projection import Projection
from tests.trainer.helpers import random_units

DIM, SIZE = 16, 6
VECTORS = random_units(np.random.default_rng(1), 5, DIM)


def trained() -> Projection:
    torch.manual_seed(0)
    head = Projection(DIM, SIZE).eval()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    return head


def test_keys_of_queries_and_labels_equal_the_formula() -> None:
    head, vectors = trained(), torch.from_numpy(VECTORS)
    weight, bias = (each.detach().numpy().astype(np.float64) for each in head.parameters())
    entries = np.tanh(np.sqrt(DIM) * VECTORS.astype(np.float64) @ weight.T + bias)
    expected = entries / np.linalg.norm(entries, axis=1, keepdims=True)
    for views in (head.queries(vectors), head.labels(vectors, torch.arange(5))):
        assert views.shape == (5, 1, SIZE)
        np.testing.assert_allclose(head.key(views).detach().numpy(), expected, atol=1e-6)
    assert head.key_dim == SIZE


def test_layer_keeps_most_of_the_similarities_before_training() -> None:
    torch.manual_seed(0)
    vectors = random_units(np.random.default_rng(2), 60, 2 * DIM)
    vectors[1::2] = vectors[::2] + 0.3 * vectors[1::2]  # pairs of similar vectors
    similar = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=1)
    keys = Projection(2 * DIM, DIM).eval().queries(similar)[:, 0]
    found = (keys @ keys.T).fill_diagonal_(-1).argmax(dim=1)
    assert (found == torch.arange(60) + torch.tensor([1, -1]).repeat(30)).float().mean() > 0.9


def test_dropout_changes_keys_in_training_only() -> None:
    head, vectors = trained(), torch.from_numpy(VECTORS)
    assert torch.equal(head.queries(vectors), head.queries(vectors))
    head.train()
    dropped = head.queries(vectors)[:, 0]
    assert not torch.equal(dropped, head.queries(vectors)[:, 0])
    torch.testing.assert_close(dropped.norm(dim=1), torch.ones(5))
