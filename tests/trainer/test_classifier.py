from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect.trainer.heads.classifier import Classifier
from recollect.trainer.sharded import Sharded
from tests.trainer.helpers import label_sets, learned_head

LABELS, DIM, QUERIES = 9, 16, 5
ALL_LABELS = torch.arange(LABELS)


def units(rows: int, seed: int) -> Tensor:
    return nn.functional.normalize(torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed)), dim=1)


TEXTS, VECTORS = units(LABELS, 1), units(QUERIES, 2)


def started(rows: list[list[int]], instances: Tensor, **shape: Any) -> Classifier:
    """Make a classifier whose label vectors are initialised from instances of these labels."""
    torch.manual_seed(1)
    head = Classifier(DIM, LABELS, **shape).eval()
    head.start(TEXTS.numpy(), Sharded.of(instances.numpy()), label_sets(rows).to_csr(LABELS), seed=0)
    return head


@pytest.fixture
def head() -> Classifier:
    """A trained classifier in evaluation mode."""
    torch.manual_seed(0)
    head = learned_head("unidec", DIM, LABELS)
    assert isinstance(head, Classifier)
    return head.eval()


def test_views_equal_the_formula_of_the_classifier(head: Classifier) -> None:
    queries, labels = head.queries(VECTORS), head.labels(TEXTS, ALL_LABELS)
    assert torch.equal(queries[:, 0], VECTORS)
    assert torch.equal(labels[:, 0], TEXTS)
    for query, vector in zip(queries[:, 1], VECTORS, strict=True):
        projected = head.project.weight @ vector + head.project.bias
        torch.testing.assert_close(query, projected / projected.norm())
    for label, weight in zip(labels[:, 1], head.weights, strict=True):
        torch.testing.assert_close(label, weight / weight.norm())


def test_keys_are_unit_vectors_whose_product_is_the_mean_of_both_cosines(head: Classifier) -> None:
    queries, labels = head.queries(VECTORS), head.labels(TEXTS, ALL_LABELS)
    query_keys, label_keys = head.key(queries), head.key(labels)
    assert query_keys.shape == (QUERIES, head.key_dim)
    torch.testing.assert_close(query_keys.norm(dim=1), torch.ones(QUERIES))
    torch.testing.assert_close(label_keys.norm(dim=1), torch.ones(LABELS))
    cosines = [nn.functional.cosine_similarity(queries[:, None, view], labels[None, :, view], dim=2) for view in (0, 1)]
    torch.testing.assert_close(query_keys @ label_keys.T, (cosines[0] + cosines[1]) / 2)


def test_label_vector_starts_between_text_and_instances_or_as_the_text_vector_without_instances() -> None:
    instances = units(4, 3)
    head = started([[0, 1], [1], [], [3]], instances)
    for label, vector in enumerate(head.labels(TEXTS, ALL_LABELS)[:, 1]):
        mean = {0: instances[0], 1: instances[0] + instances[1], 3: instances[3]}.get(label)
        expected = TEXTS[label] if mean is None else TEXTS[label] + mean / mean.norm()
        torch.testing.assert_close(vector, expected / expected.norm())


def test_classifier_looks_up_labels_by_label_position(head: Classifier) -> None:
    rows = torch.tensor([4, 0, 4])
    torch.testing.assert_close(head.labels(TEXTS[rows], rows), head.labels(TEXTS, ALL_LABELS)[rows])
    head.labels(TEXTS[rows], rows)[:, 1].square().matmul(torch.ones(DIM) + VECTORS[0]).sum().backward()
    assert head.weights.grad is not None
    assert head.weights.grad.any(dim=1).nonzero()[:, 0].tolist() == [0, 4]
    assert [weight is head.weights for weight in head.lookups()] == [True]


def test_classifier_without_normalisation_compares_inner_products_and_has_the_same_keys(head: Classifier) -> None:
    plain = Classifier(DIM, LABELS, normalised=False).eval()
    plain.load_state_dict(head.state_dict())
    queries, labels = plain.queries(VECTORS), plain.labels(TEXTS, ALL_LABELS)
    for query, vector in zip(queries[:, 1], VECTORS, strict=True):
        torch.testing.assert_close(query, head.project.weight @ vector + head.project.bias)
    assert torch.equal(labels[:, 1], head.weights)
    torch.testing.assert_close(plain.key(queries), head.key(head.queries(VECTORS)))
    torch.testing.assert_close(plain.key(labels), head.key(head.labels(TEXTS, ALL_LABELS)))


def test_projection_gives_both_views_fewer_dimensions_and_starts_with_equal_ones() -> None:
    head = started([[row] for row in range(QUERIES)], VECTORS, normalised=False, projection=6)
    assert head.reduce is not None
    assert (head.dim, head.key_dim) == (6, 12)
    for views, below in ((head.queries(VECTORS), VECTORS), (head.labels(TEXTS, ALL_LABELS), TEXTS)):
        torch.testing.assert_close(views[:, 0], head.reduce(below))
        torch.testing.assert_close(head.key(views).norm(dim=1), torch.ones(len(below)))
    torch.testing.assert_close(head.queries(VECTORS)[:, 1], VECTORS @ head.project.weight.T)
    both = TEXTS[:QUERIES] + VECTORS  # each of the first labels has one instance
    starts = nn.functional.normalize(torch.cat([both, TEXTS[QUERIES:]]) @ head.project.weight.T, dim=1)
    torch.testing.assert_close(head.weights.detach(), starts)
