"""Distillation: a static encoder learns the vectors that another encoder, its teacher, computes for the same texts.

The loss of a batch compares the student's vectors v with the teacher's vectors t of the same texts, and their
similarities to some keys K of the memory:

    mean of  1 - v . t  +  KL( softmax(t K^T / tau) || softmax(v K^T / tau) )

The divergence counts the errors that change the votes. K has the keys of the batch, and random keys. Before the first
step, the projection is fitted with the least square error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trainer.encoder import UnitVectorModel
from trainer.errors import TrainingError
from trainer.progress_bar import with_progress
from trainer.randomness import Purpose, generator
from trainer.static.model import StaticModel
from trainer.tokens import Inputs

_EPOCHS, _MOST_STEPS, _BATCH = 12, 10_000, 1_024
_RATE, _WARM_UP_SHARE, _CLIP = 1e-3, 0.1, 1.0
# Temperature of the two softmaxes, and the number of random keys.
_TAU, _RANDOM_KEYS = 0.05, 1_024
# Number of texts that the start is fitted to, and the penalty of large weights, relative to the mean square.
_FITTED_TEXTS, _RIDGE = 65_536, 1e-3


@dataclass(frozen=True)
class Lesson:
    """The texts that the student learns from, and the teacher's vectors.

    Attributes:
        texts: Texts of instances and labels.
        vectors: The teacher's vectors of these texts as queries.
        keys: The keys of the memory, row by row those of the texts.
        rows: The rows that the student may see.
    """

    texts: Inputs
    vectors: Float[np.ndarray, "text dim"]
    keys: Float[np.ndarray, "key dim"]
    rows: Int[np.ndarray, " row"]

    def taught(self, rows: Int[np.ndarray, " row"]) -> Float[Tensor, "row dim"]:
        return torch.from_numpy(np.asarray(self.vectors[rows], dtype=np.float32))

    def draw_keys(self, batch: Int[np.ndarray, " row"], rng: np.random.Generator) -> Float[Tensor, "key dim"]:
        """The keys of a batch, and random keys of other rows that the student may see."""
        drawn = rng.choice(self.rows, min(_RANDOM_KEYS, len(self.rows)), replace=False, shuffle=False)
        return torch.from_numpy(np.asarray(self.keys[np.union1d(batch, drawn)], dtype=np.float32))


def distil(student: UnitVectorModel, lesson: Lesson, seed: int, device: str) -> int:
    """Train a student.

    Args:
        student: A static model without adapter and head.
        lesson: The texts and vectors.
        seed: Seed of the order of the texts, the random keys and the dropout.
        device: Device of the student.

    Returns:
        Number of steps.

    Raises:
        TrainingError: If the loss is not finite.
    """
    torch.manual_seed(seed)
    rng = generator(seed, Purpose.DISTILLATION)
    student.trainable()
    _fit_projection(student, lesson, rng.permutation(lesson.rows)[:_FITTED_TEXTS], device)
    batches = _batches(lesson.rows, rng)
    optimizer = torch.optim.AdamW(student.parameters(), lr=_RATE, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, len(batches)))
    student.train()
    for step, rows in enumerate(with_progress(batches, "step", "distil")):
        taught = lesson.taught(rows).to(device)
        loss = _loss(student(*lesson.texts.batch(rows, device)), taught, lesson.draw_keys(rows, rng).to(device))
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
        fitted = torch.linalg.solve(gram, untaught.T @ lesson.taught(rows)).T
        static.projection.weight.copy_(fitted.to(device) @ static.projection.weight)


def _loss(
    learnt: Float[Tensor, "text dim"], taught: Float[Tensor, "text dim"], keys: Float[Tensor, "key dim"]
) -> Float[Tensor, ""]:
    """The loss of a batch: cosines, and the divergence of the similarities to the keys."""
    distances = 1 - (learnt * taught).sum(dim=1)
    student, teacher = (torch.log_softmax(vectors @ keys.T / _TAU, dim=1) for vectors in (learnt, taught))
    divergence = nn.functional.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)
    mean: Tensor = (distances + divergence).mean()
    return mean


def _batches(rows: Int[np.ndarray, " row"], rng: np.random.Generator) -> list[Int[np.ndarray, " batch"]]:
    """The texts of all steps. The last, smaller batch of an epoch is a step too."""
    epochs = (np.array_split(rng.permutation(rows), -(-len(rows) // _BATCH)) for _ in range(_EPOCHS))
    return [batch for epoch in epochs for batch in epoch][:_MOST_STEPS]


def _rate(step: int, steps: int) -> float:
    """Share of the learning rate at a step: it rises in the first tenth of the steps, then falls to 0."""
    warm_up = max(1, round(_WARM_UP_SHARE * steps))
    return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
