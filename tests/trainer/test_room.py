from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer import room
from trainer.errors import TrainingError
from trainer.heads.classifier import Classifier
from trainer.heads.prototypes import Prototypes
from trainer.room import check_room


class TestRoom:
    """For a classifier of 1,000 labels in 100 dimensions, and its projection."""

    needed = 6 * 4 * (1_000 * 100 + 100 * 100 + 100)

    @pytest.fixture
    def module(self) -> torch.nn.Module:
        with torch.device("meta"):
            return Classifier(100, 1_000)

    @pytest.fixture
    def kernel(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, int]]:
        """What the kernel says, by file; nothing at first."""
        said: dict[str, dict[str, int]] = {}
        monkeypatch.setattr(room, "_table", lambda path, name="": said.get(path, {}))
        return said

    def test_that_suffices_is_given(self, module: torch.nn.Module, kernel: dict[str, dict[str, int]]) -> None:
        kernel["/proc/meminfo"] = {"MemAvailable:": self.needed // 1024 + 1}
        check_room(module, "the weights", "cpu")

    def test_that_lacks_a_byte_is_refused(self, module: torch.nn.Module, kernel: dict[str, dict[str, int]]) -> None:
        kernel["/proc/meminfo"] = {"MemAvailable:": (self.needed - 1) // 1024}
        with pytest.raises(TrainingError, match="the weights need 2.6 MB to learn"):
            check_room(module, "the weights", "cpu")

    def test_message_says_how_much_is_needed_and_how_much_is_free(self, kernel: dict[str, dict[str, int]]) -> None:
        kernel["/proc/meminfo"] = {"MemAvailable:": 3 * 10**6}
        with torch.device("meta"):
            module = Classifier(768, 2_000_000)
        with pytest.raises(TrainingError) as refused:
            check_room(module, "--method unidec: 2,000,000 labels of 768 dimensions", "cpu")
        assert str(refused.value) == (
            "--method unidec: 2,000,000 labels of 768 dimensions need 36.9 GB to learn, weights, gradients and "
            "moments, expected no more than the 3.1 GB that are free; choose another --method, or a machine with more "
            "memory"
        )

    def test_buffers_are_held_once(self, kernel: dict[str, dict[str, int]]) -> None:
        with torch.device("meta"):
            module = Prototypes(8, 1_000_000, ("text", "centroid"), 0)
        learnt = sum(weight.numel() for weight in module.parameters())
        sums, counts = 4 * 8 * 1_000_000, 8 * 1_000_000
        kernel["/proc/meminfo"] = {"MemAvailable:": (6 * 4 * learnt + sums + counts) // 1024 + 1}
        check_room(module, "prototypes", "cpu")
        kernel["/proc/meminfo"]["MemAvailable:"] -= 2
        with pytest.raises(TrainingError):
            check_room(module, "prototypes", "cpu")

    def test_on_a_gpu_is_the_gpus(self, module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (self.needed, 10**12))
        check_room(module, "the weights", "cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (self.needed - 1, 10**12))
        with pytest.raises(TrainingError):
            check_room(module, "the weights", "cuda")

    @pytest.mark.parametrize(
        ("limit", "used", "cached", "free"),
        [(None, 500, 100, 4_096_000), (1_000, 500, 0, 500), (1_000, 900, 300, 400), (1_000, 1_200, 0, 0)],
        ids=["no limit", "limit", "limit, and cache that goes when it is asked to", "over the limit"],
    )
    def test_in_a_container_is_what_its_limit_leaves(
        self, kernel: dict[str, dict[str, int]], limit: int | None, used: int, cached: int, free: int
    ) -> None:
        kernel["/proc/meminfo"] = {"MemAvailable:": 4_000}
        kernel["/sys/fs/cgroup/memory.max"] = {} if limit is None else {"all": limit}
        kernel["/sys/fs/cgroup/memory.current"] = {"all": used}
        kernel["/sys/fs/cgroup/memory.stat"] = {"inactive_file": cached}
        assert room._free_bytes() == free

    def test_in_a_large_container_is_the_machines(self, kernel: dict[str, dict[str, int]]) -> None:
        kernel["/proc/meminfo"] = {"MemAvailable:": 1}
        kernel["/sys/fs/cgroup/memory.max"] = {"all": 10**12}
        kernel["/sys/fs/cgroup/memory.current"] = {"all": 0}
        assert room._free_bytes() == 1_024

    @pytest.mark.usefixtures("kernel")
    def test_where_the_kernel_says_nothing_is_asked_of_the_system(self) -> None:
        assert room._free_bytes() > 0


@pytest.mark.parametrize(
    ("text", "name", "table"),
    [
        ("MemTotal:  8152916 kB\nMemAvailable:    6300124 kB\n", "", {"MemTotal:": 8152916, "MemAvailable:": 6300124}),
        ("anon 12\ninactive_file 4096\n", "", {"anon": 12, "inactive_file": 4096}),
        ("2147483648\n", "all", {"all": 2147483648}),
        ("max\n", "all", {}),
        ("", "all", {}),
    ],
)
def test_tables_of_the_kernel_are_read_by_name(tmp_path: Path, text: str, name: str, table: dict[str, int]) -> None:
    (tmp_path / "table").write_text(text)
    assert room._table(str(tmp_path / "table"), name) == table
    assert room._table(str(tmp_path / "none"), name) == {}
