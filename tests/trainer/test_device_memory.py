from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from trainer import device_memory
from trainer.device_memory import kept_tokens, told_when_full
from trainer.errors import TrainingError
from trainer.gradient_cache import Embedder, Part
from trainer.heads.head import VectorModel
from trainer.tokens import TokenTable

LENGTHS = [3, 9, 5, 8, 7]


@pytest.fixture
def part() -> Part:
    return Part(TokenTable(np.zeros(sum(LENGTHS), np.int32), np.cumsum([0, *LENGTHS]), 0), np.arange(5))


def embedder(device: str, make: type[Embedder] = Embedder) -> Embedder:
    return make(VectorModel(4), device, autocast=True, micro_tokens=20, micro_rows=100, cache=True)


class OnPaper(Embedder):
    """Embeds nothing; its graphs take 1,000 bytes a token, padding included, on a GPU that nobody sees."""

    taken = 500

    def views(self, part: Part, places: np.ndarray) -> torch.Tensor:
        OnPaper.taken += 1_000 * len(places) * int(part.inputs.lengths_of(part.rows[places]).max())
        return torch.zeros(len(places), 1, self.model.dim)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A GPU with 100,000 bytes free, and 50,500 more that torch holds: 500 in use. Holds the states restored."""
    restored: list[object] = []
    monkeypatch.setattr(OnPaper, "taken", 500)
    replaced: dict[str, Callable[[], object]] = {
        "memory_allocated": lambda: OnPaper.taken if not restored else 500,
        "memory_reserved": lambda: 50_500,
        "mem_get_info": lambda: (100_000, 200_000),
    }
    for name, function in replaced.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(device_memory, "random_state", lambda device: {"device": device})
    monkeypatch.setattr(device_memory, "restore", restored.append)
    return restored


def test_a_cpu_keeps_what_it_always_did(part: Part) -> None:
    assert kept_tokens(embedder("cpu"), part) == 16_384


def test_a_gpu_keeps_as_many_as_fit_into_half_of_what_is_free(part: Part, gpu: list[object]) -> None:
    assert kept_tokens(embedder("cuda", OnPaper), part) == 150_000 / 2 / 1_000


def test_measuring_draws_no_random_numbers(part: Part, gpu: list[object]) -> None:
    kept_tokens(embedder("cuda", OnPaper), part)
    assert gpu == [{"device": "cuda"}]


def test_a_gpu_that_is_full_is_told_in_one_line_with_what_to_do() -> None:
    said = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 3.00 MiB"
    with pytest.raises(TrainingError) as told, told_when_full():
        raise torch.OutOfMemoryError(said)
    assert str(told.value) == (
        "--device cuda: expected enough memory on the GPU, found too little (CUDA out of memory. Tried to allocate "
        "20.00 MiB); lower --micro-batch or --batch-size, or cut texts shorter with --max-length"
    )


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="no more"), told_when_full():
        raise RuntimeError("no more")
