"""The one-vs-all classifier: its views, keys and loss, and the table of its vectors with Adam's moments in bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.trainer.distributed import Ranks
from recollect.trainer.heads.label_table import LabelTable
from recollect.trainer.heads.ova import OvaClassifier
from recollect.trainer.methods.ova import ClassifierKeys
from recollect.trainer.sharded import Sharded
from tests.trainer.helpers import label_sets, random_units
from tests.trainer.test_losses import Pool, loss_of

LABELS, DIM = 5, 4
TEXTS, INSTANCES = random_units(np.random.default_rng(1), LABELS, DIM), random_units(np.random.default_rng(2), 3, DIM)
ALL_LABELS = torch.arange(LABELS)


def started(keys: ClassifierKeys = "alone") -> OvaClassifier:
    """Make a classifier. Label 0 has the first two instances, label 1 has the last, and the others have none."""
    head = OvaClassifier(DIM, LABELS, keys)
    head.start(TEXTS, Sharded.of(INSTANCES), label_sets([[0], [0], [1]]).to_csr(LABELS), seed=0)
    return head


def test_similarity_of_views_is_the_cosine_minus_the_threshold_and_keys_leave_the_threshold_out() -> None:
    head = started()
    with torch.no_grad():
        head.table.rows.mul_(3)
    queries, labels = head.queries(torch.from_numpy(INSTANCES)), head.table_views(ALL_LABELS)
    cosines = nn.functional.cosine_similarity(torch.from_numpy(INSTANCES)[:, None], head.table.rows[None], dim=2)
    torch.testing.assert_close(queries[:, 0] @ labels[:, 0].T, cosines - 0.5)
    torch.testing.assert_close(head.key(queries), torch.from_numpy(INSTANCES))
    torch.testing.assert_close(head.key(queries) @ head.key(labels).T, cosines)


@pytest.mark.parametrize("keys", ["alone", "joined"])
def test_label_keys_are_the_unit_vectors_of_the_classifier_alone_or_added_to_the_text_vectors(
    keys: ClassifierKeys,
) -> None:
    head, texts = started(keys), torch.from_numpy(TEXTS)
    means = {0: INSTANCES[0] + INSTANCES[1], 1: INSTANCES[2]}
    for label, key in enumerate(head.key(head.labels(texts, ALL_LABELS))):
        mean = torch.from_numpy(means.get(label, TEXTS[label]))
        weight = nn.functional.normalize(texts[label] + nn.functional.normalize(mean, dim=0), dim=0)
        expected = weight if keys == "alone" else nn.functional.normalize(texts[label] + weight, dim=0)
        torch.testing.assert_close(key, expected)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(head.labels(texts[order], order), head.labels(texts, ALL_LABELS)[order])


def test_threshold_has_no_effect_on_triplets() -> None:
    found = []
    for threshold in (0.5, -1.0):
        head = started()
        with torch.no_grad():
            head.threshold.fill_(threshold)
        scores = head.queries(torch.from_numpy(INSTANCES))[:, 0] @ head.table_views(ALL_LABELS)[:, 0].T
        relevant = torch.tensor([[True, False, False, True, False]]).expand(3, LABELS)
        loss = loss_of("ngame")(Pool(scores, relevant, relevant, scores[:, :0], relevant[:, :0]))
        loss.sum().backward()
        assert loss.all()
        found.append((loss.detach(), head.table.rows.grad))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def adam(rows: Tensor, gradients: list[Tensor], rate: float) -> Tensor:
    """Apply Adam with its usual formulas, but round the moments to bfloat16 after every step."""
    first = second = torch.zeros_like(rows)
    for step, gradient in enumerate(gradients, start=1):
        exact = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        mean, square = exact[0] / (1 - 0.9**step), exact[1] / (1 - 0.999**step)
        rows = rows - rate * mean / (square.sqrt() + 1e-8)
        first, second = (moment.bfloat16().double() for moment in exact)
    return rows


def test_update_of_the_table_is_adam_with_moments_in_bfloat16() -> None:
    table, random = LabelTable(LABELS, DIM), torch.Generator().manual_seed(3)
    table.start(TEXTS)
    table.divide(Ranks())
    gradients = [torch.randn(LABELS, DIM, generator=random) for _ in range(5)]
    for step, gradient in enumerate(gradients):
        table.rows.grad = gradient.clone()
        table.update(0.01, step)
    expected = adam(torch.from_numpy(TEXTS).double(), [gradient.double() for gradient in gradients], 0.01)
    torch.testing.assert_close(table.rows.detach().double(), expected, rtol=0, atol=1e-4)


def test_rank_keeps_only_its_rows_which_are_not_in_the_weights_that_ranks_exchange() -> None:
    head = started()
    head.table.divide(Ranks(1, 2))
    assert head.table.rows.shape == (3, DIM)
    torch.testing.assert_close(
        head.key(head.table_views(torch.tensor([3, 4]))), nn.functional.normalize(head.table.rows[1:], dim=1)
    )
    assert head.table.find_own(np.array([0, 1, 3, 4])) == (2, 4)
    assert [name for name, _ in head.named_parameters()] == list(head.state_dict()) == ["threshold"]
