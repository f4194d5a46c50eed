from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.negatives import HardNegatives
from recollect.trainer.training.training_state import Learner, Progress, load_state, save_state


def new_learner(seed: int = 0, negatives: HardNegatives | None = None, clusters: Any = None) -> Learner:
    """A small model with dropout, some weights with weight decay and some without, as in training."""
    torch.manual_seed(seed)
    model = VectorDualEncoder(6, Adapter(6, 40, dropout=0.5))
    weights = list(model.parameters())
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": 0.01},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    return Learner(model, torch.optim.AdamW(groups, lr=0.01), "cpu", negatives, clusters)


def take_steps(learner: Learner, steps: int) -> None:
    """Take a training step on random data, with dropout."""
    for _ in range(steps):
        loss = (learner.model(torch.randn(8, 6)) - torch.randn(8, 6)).square().mean()
        loss.backward()
        learner.optimizer.step()
        learner.optimizer.zero_grad()


def weights_of(learner: Learner) -> dict[str, list[float]]:
    return {name: weight.flatten().tolist() for name, weight in learner.model.state_dict().items()}


MINED = HardNegatives(Sharded.of(np.array([[3, -1, 0], [2, 1, -1]], dtype=np.int32)))
CLUSTERS = np.array([1, 0, -1], dtype=np.int32)


@pytest.fixture
def learner() -> Learner:
    """A learner after three steps."""
    learner = new_learner(negatives=MINED, clusters=CLUSTERS)
    take_steps(learner, 3)
    return learner


def test_training_continues_from_a_restored_state_with_the_same_result(tmp_path: Path, learner: Learner) -> None:
    progress = Progress(step=3, best=12.5, best_step=2, seconds=7.25)
    save_state(tmp_path, progress, learner, ALONE)
    take_steps(learner, 4)
    other = new_learner(seed=99)
    take_steps(other, 1)
    assert load_state(tmp_path, other, ALONE) == progress
    take_steps(other, 4)
    assert weights_of(other) == weights_of(learner)
    assert other.negatives is not None
    assert other.negatives.labels.own.dtype == np.int32
    np.testing.assert_array_equal(other.negatives.labels.own, MINED.labels.own)
    assert other.clusters is not None
    assert other.clusters.dtype == np.int32
    np.testing.assert_array_equal(other.clusters, CLUSTERS)


def test_saving_a_state_does_not_change_the_learner(tmp_path: Path, learner: Learner) -> None:
    other = new_learner()
    take_steps(other, 3)
    random = torch.get_rng_state()
    save_state(tmp_path, Progress(step=3), learner, ALONE)
    assert torch.equal(torch.get_rng_state(), random)
    take_steps(learner, 2)
    torch.set_rng_state(random)
    take_steps(other, 2)
    assert weights_of(learner) == weights_of(other)


def test_newest_of_several_saved_states_is_loaded(tmp_path: Path, learner: Learner) -> None:
    for step in (9, 10, 100):
        save_state(tmp_path / str(step), Progress(step=step), learner, ALONE)
        (state,) = (tmp_path / str(step)).iterdir()
        shutil.copytree(state, tmp_path / "all" / state.name)
    assert load_state(tmp_path / "all", learner, ALONE).step == 100


NAMES = (
    "state.json",
    "model.safetensors",
    "optimizer.safetensors",
    "random.safetensors",
    "negatives.npy",
    "clusters.npy",
)


@pytest.mark.parametrize("name", NAMES)
def test_broken_saved_state_is_refused(tmp_path: Path, learner: Learner, name: str) -> None:
    save_state(tmp_path, Progress(step=1), learner, ALONE)
    path = tmp_path / "step-00000001" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(TrainingError, match="step-00000001: expected a training state, found: .*--overwrite"):
        load_state(tmp_path, learner, ALONE)


class EqualRank(Ranks):
    """One of two ranks that hold the same tensors."""

    def all_gather(self, part: torch.Tensor, rows: int) -> torch.Tensor:
        return torch.cat([part] * self.size)


def test_saved_state_of_fewer_ranks_is_refused(tmp_path: Path, learner: Learner) -> None:
    save_state(tmp_path, Progress(step=1), learner, ALONE)
    with pytest.raises(TrainingError, match="expected a training state"):
        load_state(tmp_path, new_learner(), EqualRank(1, 2))
