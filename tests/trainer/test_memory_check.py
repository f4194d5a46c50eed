"""The memory check: the memory that training needs, the free memory of a GPU or a machine, and how many graphs fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.classifier import Classifier
from recollect.trainer.training import memory_check
from recollect.trainer.training.memory_check import explain_out_of_memory, require_memory


class TestRequiredMemory:
    @pytest.fixture
    def set_free(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        return lambda free: monkeypatch.setattr(memory_check, "free_bytes", lambda: free)

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
