"""`recollect train` on a GPU: resuming after a kill, exact search, and measured memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.trainer.encoding.pretrained import load_pretrained
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.search import nearest
from recollect.trainer.randomness import random_state
from recollect.trainer.training.gradient_cache import Embedder, Part
from recollect.trainer.training.memory_check import explain_out_of_memory, kept_tokens
from tests.trainer.helpers import random_units
from tests.trainer.runs import KILLED, Moment, metrics, results, run_recollect, training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

# For texts this short, kernels add in a fixed order, so equal steps give equal bytes.
LEARNING = ["--device", "cuda", "--precision", "bf16", "--method", "rae", "--mine-every", 5, "--mine-top", 4]


@pytest.fixture
def run(flags: list[object], tmp_path: Path) -> Callable[..., int]:
    """Run `recollect train` in a new process that saves its state after every step."""

    def run(*more: object, killed: Moment | None = None) -> int:
        (status,) = run_recollect([*flags, *LEARNING, "--save-minutes", 0, *more], tmp_path / "log", killed)
        return status

    return run


@pytest.mark.parametrize("micro_batch", [3, 0], ids=["gradient cache", "as memory allows"])
@pytest.mark.parametrize("what", ["adapter", "full"])
def test_killed_and_resumed_training_in_bfloat16_has_the_weights_of_an_uninterrupted_one(
    run: Callable[..., int], run_folder: Path, tmp_path: Path, what: str, micro_batch: int
) -> None:
    words = ["--train", what, "--micro-batch", micro_batch]
    assert run(*words, "--out", tmp_path / "never") == 0, (tmp_path / "log").read_text()
    assert training(tmp_path / "never")["recipe"]["precision"] == "bf16"
    for moment in (
        Moment("recollect.trainer.training.objective.Objective.backward", 8),
        Moment("recollect.trainer.training.train.save_state", 4, after=True),
    ):
        assert run(*words, "--resume", killed=moment) == KILLED, (tmp_path / "log").read_text()
    assert run(*words, "--resume") == 0, (tmp_path / "log").read_text()
    assert results(run_folder) == results(tmp_path / "never")
    scores = [metrics(folder, "validation_ndcg_5") for folder in (run_folder, tmp_path / "never")]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("top", [1, 10, 700])
def test_nearest_keys_equal_those_found_on_a_cpu(top: int) -> None:
    rng = np.random.default_rng(0)
    queries, keys = random_units(rng, 300, 32), random_units(rng, 700, 32)
    (on_cpu, rows), (on_gpu, found) = (nearest(queries, keys, top, device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-6)
    # Keys that differ only by rounding may come in any order.
    assert (found == rows).mean() > 0.99
    np.testing.assert_allclose(np.einsum("qd,qtd->qt", queries, keys[found]), on_cpu, atol=1e-6)


def test_memory_of_a_token_is_measured_without_drawing_random_numbers(tiny_bert: Any) -> None:
    encoder = load_pretrained(str(tiny_bert.folder), "mean", 32, 8, "cuda")
    table = encoder.tokenise(["quick Brown fox jumps over the lazy dog"] * 64, 32)
    model = encoder.model.trainable().train()
    embedder = Embedder(model, "cuda", autocast=True, micro_tokens=10_000, micro_rows=2**31, cache=True)
    state = random_state("cuda")
    kept = kept_tokens(embedder, Part(table, np.arange(64)))
    assert all(torch.equal(state[name], now) for name, now in random_state("cuda").items())
    # Two layers of 32 dimensions take some kilobytes for each token.
    assert 500 < torch.cuda.mem_get_info()[0] / 2 / kept < 50_000


def test_gpu_without_enough_memory_is_reported() -> None:
    with pytest.raises(TrainingError, match="found too little .CUDA out of memory"), explain_out_of_memory():
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
