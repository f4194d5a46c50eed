from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.trainer.distributed import ALONE
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


MINED = HardNegatives(Sharded.of(np.array([[3, -1, 0], [2, 1, -1]], dtype=np.int32)))
CLUSTERS = np.array([1, 0, -1], dtype=np.int32)


@pytest.fixture
def learner() -> Learner:
    """A learner after three steps."""
    learner = new_learner(negatives=MINED, clusters=CLUSTERS)
    take_steps(learner, 3)
    return learner


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
