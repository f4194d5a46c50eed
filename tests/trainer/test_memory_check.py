"""The memory check: the memory that training needs, the free memory of a GPU or a machine, and how many graphs fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from recollect.trainer.encoding.tokens import TokenTable
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.classifier import Classifier
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.heads.prototypes import Prototypes
from recollect.trainer.training import memory_check
from recollect.trainer.training.gradient_cache import Embedder, Part
from recollect.trainer.training.memory_check import explain_out_of_memory, kept_tokens, require_memory

LENGTHS = [3, 9, 5, 8, 7]


class TestRequiredMemory:
    """The required memory of a classifier for 1,000 labels in 100 dimensions, with its projection."""

    needed = 6 * 4 * (1_000 * 100 + 100 * 100 + 100)

    @pytest.fixture
    def module(self) -> torch.nn.Module:
        with torch.device("meta"):
            return Classifier(100, 1_000)

    @pytest.fixture
    def set_free(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        return lambda free: monkeypatch.setattr(memory_check, "free_bytes", lambda: free)

    def test_module_that_needs_exactly_the_free_memory_is_accepted(
        self, module: torch.nn.Module, set_free: Callable[[int], None]
    ) -> None:
        set_free(self.needed)
        require_memory(module, "the weights", "cpu")

    def test_module_that_needs_one_more_byte_is_refused(
        self, module: torch.nn.Module, set_free: Callable[[int], None]
    ) -> None:
        set_free(self.needed - 1)
        with pytest.raises(TrainingError, match="the weights: expected 2.6 MB of free memory"):
            require_memory(module, "the weights", "cpu")

    def test_error_names_needed_and_free_memory(self, set_free: Callable[[int], None]) -> None:
        set_free(3_072_000_000)
        with torch.device("meta"):
            module = Classifier(768, 2_000_000)
        with pytest.raises(TrainingError) as refused:
            require_memory(module, "--method unidec: 2,000,000 labels of 768 dimensions", "cpu")
        assert str(refused.value) == (
            "--method unidec: 2,000,000 labels of 768 dimensions: expected 36.9 GB of free memory for weights, "
            "gradients and moments, found 3.1 GB; choose another --method, or a machine with more memory"
        )

    def test_each_buffer_of_a_module_counts_once(self, set_free: Callable[[int], None]) -> None:
        with torch.device("meta"):
            module = Prototypes(8, 1_000_000, ("text", "centroid"), 0)
        learnt = sum(weight.numel() for weight in module.parameters())
        sums, counts = 4 * 8 * 1_000_000, 8 * 1_000_000
        set_free(6 * 4 * learnt + sums + counts)
        require_memory(module, "prototypes", "cpu")
        set_free(6 * 4 * learnt + sums + counts - 1)
        with pytest.raises(TrainingError):
            require_memory(module, "prototypes", "cpu")

    def test_for_training_on_a_gpu_the_free_memory_of_the_gpu_counts(
        self, module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (self.needed, 10**12))
        require_memory(module, "the weights", "cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (self.needed - 1, 10**12))
        with pytest.raises(TrainingError):
            require_memory(module, "the weights", "cuda")


@pytest.fixture
def part() -> Part:
    return Part(TokenTable(np.zeros(sum(LENGTHS), np.int32), np.cumsum([0, *LENGTHS]), 0), np.arange(5))


def embedder(device: str, make: type[Embedder] = Embedder) -> Embedder:
    return make(VectorDualEncoder(4), device, autocast=True, micro_tokens=20, micro_rows=100, cache=True)


class FakeEmbedder(Embedder):
    """An embedder that computes nothing.

    Its graphs take 1,000 bytes for each token, padding included, on a simulated GPU.
    """

    allocated = 500

    def views(self, part: Part, places: np.ndarray) -> torch.Tensor:
        FakeEmbedder.allocated += 1_000 * len(places) * int(part.inputs.lengths_of(part.rows[places]).max())
        return torch.zeros(len(places), 1, self.model.dim)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Simulate a GPU with 100,000 free bytes. torch has reserved 50,500 more bytes and uses 500 of these.

    Return the list of restored random states.
    """
    restored: list[object] = []
    monkeypatch.setattr(FakeEmbedder, "allocated", 500)
    replaced: dict[str, Callable[[], object]] = {
        "memory_allocated": lambda: FakeEmbedder.allocated if not restored else 500,
        "memory_reserved": lambda: 50_500,
        "mem_get_info": lambda: (100_000, 200_000),
    }
    for name, function in replaced.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(memory_check, "random_state", lambda device: {"device": device})
    monkeypatch.setattr(memory_check, "restore_random_state", restored.append)
    return restored


def test_on_a_cpu_the_autograd_graphs_of_a_fixed_number_of_tokens_are_kept(part: Part) -> None:
    assert kept_tokens(embedder("cpu"), part) == 16_384


def test_on_a_gpu_the_autograd_graphs_that_fit_into_half_of_its_free_memory_are_kept(
    part: Part, gpu: list[object]
) -> None:
    assert kept_tokens(embedder("cuda", FakeEmbedder), part) == 150_000 / 2 / 1_000


def test_measuring_the_memory_of_a_token_restores_the_random_state(part: Part, gpu: list[object]) -> None:
    kept_tokens(embedder("cuda", FakeEmbedder), part)
    assert gpu == [{"device": "cuda"}]


def test_out_of_memory_error_of_torch_becomes_one_line_that_names_flags_to_change() -> None:
    reason = (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 3.00 MiB"
    )
    with pytest.raises(TrainingError) as refused, explain_out_of_memory():
        raise torch.OutOfMemoryError(reason)
    assert str(refused.value) == (
        "--device cuda: expected enough memory on the GPU, found too little (CUDA out of memory. Tried to allocate "
        "20.00 MiB); lower --micro-batch or --batch-size, or cut texts shorter with --max-length"
    )


def test_errors_other_than_out_of_memory_stay_unchanged() -> None:
    with pytest.raises(RuntimeError, match="no more"), explain_out_of_memory():
        raise RuntimeError("no more")
