"""Distillation: a static encoder learns the vectors that another encoder, its teacher, computes for the same texts.

The loss of a batch compares the student's vectors v with the teacher's vectors t of the same texts, and their
similarities to some keys K of the memory. The student cannot imitate its teacher everywhere, so a last term ranks the
true labels l of the text above the set N of labels that are not true for it:

    mean of  1 - v . t  +  KL( softmax(t K^T / tau) || softmax(v K^T / tau) )  +  w mean over l of  -log p(l)

    p(l) = s(l) / ( s(l) + sum over n in N of s(n) )  with  s(l) = exp(v . k_l / tau)

The divergence counts the errors that change the votes. K has the keys of the batch, one true label of each of its
texts, and random keys; l and N are labels whose keys are in K. Before the first step, the projection is fitted with the
least square error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.core.system.console import with_progress
from recollect.trainer.encoding.encoder import UnitVectorModel
from recollect.trainer.encoding.static_model import StaticModel
from recollect.trainer.encoding.tokens import Inputs
from recollect.trainer.errors import TrainingError
from recollect.trainer.randomness import Purpose, generator

_EPOCHS, _MOST_STEPS, _BATCH = 12, 10_000, 1_024
_RATE, _WARM_UP_SHARE, _CLIP = 1e-3, 0.1, 1.0
# Temperature of the two softmaxes, and the number of random keys.
_TAU, _RANDOM_KEYS = 0.05, 1_024
# Weight w of the true labels.
_TRUTH = 0.3
# Number of texts that the start is fitted to, and the penalty of large weights, relative to the mean square.
_FITTED_TEXTS, _RIDGE = 65_536, 1e-3


class Target(NamedTuple):
    """What the student learns in one step, from some keys of the memory."""

    vectors: Float[Tensor, "text dim"]
    keys: Float[Tensor, "key dim"]
    true: Bool[Tensor, "text key"]
    false: Bool[Tensor, "text key"]


@dataclass(frozen=True)
class Lesson:
    """The texts that the student learns from, and the teacher's vectors.

    Attributes:
        texts: Texts of instances, then those of all labels.
        vectors: The teacher's vectors of these texts as queries.
        keys: The keys of the memory, row by row those of the texts.
        labels: The true labels of each text. The true label of a label's text is the label itself.
        rows: The rows that the student may see.
    """

    texts: Inputs
    vectors: Float[np.ndarray, "text dim"]
    keys: Float[np.ndarray, "key dim"]
    labels: sparse.csr_array
    rows: Int[np.ndarray, " row"]

    def vectors_of(self, rows: Int[np.ndarray, " row"]) -> Float[Tensor, "row dim"]:
        return torch.from_numpy(np.asarray(self.vectors[rows], dtype=np.float32))

    def target(self, batch: Int[np.ndarray, " row"], rng: np.random.Generator, device: str) -> Target:
        """The target of a batch, with random keys of rows that the student may see."""
        first_label = self.labels.shape[0] - self.labels.shape[1]
        true, sizes = self.labels[batch], np.diff(self.labels.indptr)[batch]
        one_of_each = true.indices[(true.indptr[:-1] + rng.integers(np.maximum(sizes, 1)))[sizes > 0]]
        drawn = rng.choice(self.rows, min(_RANDOM_KEYS, len(self.rows)), replace=False, shuffle=False)
        keys = np.unique(np.concatenate([batch, first_label + one_of_each, drawn]))
        is_label = keys >= first_label
        is_true = np.zeros((len(batch), len(keys)), dtype=bool)
        is_true[:, is_label] = true[:, keys[is_label] - first_label].toarray()
        return Target(
            self.vectors_of(batch).to(device),
            torch.from_numpy(np.asarray(self.keys[keys], dtype=np.float32)).to(device),
            torch.from_numpy(is_true).to(device),
            torch.from_numpy(is_label & ~is_true).to(device),
        )


def distil(student: UnitVectorModel, lesson: Lesson, seed: int, device: str) -> int:
    """Train a student, a static model without adapter and head. Return the number of steps.

    Raises:
        TrainingError: If the loss is not finite.
    """
    torch.manual_seed(seed)
    rng = generator(seed, Purpose.DISTILLATION)
    student.trainable()
    _fit_projection(student, lesson, rng.permutation(lesson.rows)[:_FITTED_TEXTS], device)
    epochs = (np.array_split(rng.permutation(lesson.rows), -(-len(lesson.rows) // _BATCH)) for _ in range(_EPOCHS))
    batches = [batch for epoch in epochs for batch in epoch][:_MOST_STEPS]  # also the last, smaller ones of epochs
    optimizer = torch.optim.AdamW(student.parameters(), lr=_RATE, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, len(batches)))
    student.train()
    for step, rows in enumerate(with_progress(batches, "step", "distil")):
        loss = _loss(student(*lesson.texts.batch(rows, device)), lesson.target(rows, rng, device))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(student.parameters(), _CLIP)
        optimizer.step()
        schedule.step()
        if not torch.isfinite(loss):
            raise TrainingError(
                f"--query-encoder static: step {step + 1}: expected a finite loss, found {float(loss)}; omit the flag"
            )
    student.eval()
    return len(batches)


def _fit_projection(student: UnitVectorModel, lesson: Lesson, rows: Int[np.ndarray, " row"], device: str) -> None:
    """Start with the projection that maps the student's vectors to the teacher's with the least square error."""
    static = student.transformer
    assert isinstance(static, StaticModel)
    chunks = np.array_split(rows, -(-len(rows) // _BATCH))
    with torch.no_grad():
        untaught = torch.cat([student(*lesson.texts.batch(chunk, device)).cpu() for chunk in chunks])
        gram = untaught.T @ untaught
        gram += _RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
        fitted = torch.linalg.solve(gram, untaught.T @ lesson.vectors_of(rows)).T
        static.projection.weight.copy_(fitted.to(device) @ static.projection.weight)


def _loss(learnt: Float[Tensor, "text dim"], target: Target) -> Float[Tensor, ""]:
    """The loss of a batch: cosines, the divergence of the similarities to the keys, and the ranks of true labels."""
    distances = 1 - (learnt * target.vectors).sum(dim=1)
    student, teacher = (vectors @ target.keys.T / _TAU for vectors in (learnt, target.vectors))
    divergence = nn.functional.kl_div(
        student.log_softmax(dim=1), teacher.log_softmax(dim=1), reduction="none", log_target=True
    ).sum(dim=1)
    # A finite number, because the logarithm of an empty sum would give gradients that are not numbers.
    others = student.masked_fill(~target.false, torch.finfo(student.dtype).min).logsumexp(dim=1, keepdim=True)
    missed = (torch.logaddexp(student, others) - student) * target.true
    truth = missed.sum(dim=1) / target.true.sum(dim=1).clamp_min(1)
    mean: Tensor = (distances + divergence + _TRUTH * truth).mean()
    return mean


def _rate(step: int, steps: int) -> float:
    """Share of the learning rate at a step: it rises in the first tenth of the steps, then falls to 0."""
    warm_up = max(1, round(_WARM_UP_SHARE * steps))
    return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
