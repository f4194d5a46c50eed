from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.helpers import OwnShare, learned_adapter, learned_head, random_units
from trainer import memory_writer
from trainer.data.dataset import open_dataset
from trainer.encoder import Encoder
from trainer.heads.head import VectorModel
from trainer.key_sources import AdaptedKeys, EncodedTexts, KeySource
from trainer.memory import MemoryPlan
from trainer.memory_writer import write_memory
from trainer.ranks import ALONE, Ranks
from trainer.tokens import VectorTable

KINDS = [f"{what}, {method}" for what in ("texts", "adapter") for method in ("rae", "prime", "unidec")]
INSTANCES, LABELS = 14, 5


def source(kind: str, toy: Path, encoder: Encoder, ranks: Ranks) -> KeySource:
    torch.manual_seed(7)
    what, method = kind.split(", ")
    head = learned_head(method, encoder.model.dim, LABELS)
    if what == "texts":
        dataset, encoder = open_dataset(toy), encoder.with_adapter(None, head)
        return EncodedTexts(encoder, dataset.labels, dataset.read_split("train").entries, ranks)
    read = random_units(np.random.default_rng(3), INSTANCES + LABELS, encoder.dim)
    model = VectorModel(encoder.dim, learned_adapter(encoder.dim, 48), head).eval()
    labels = VectorTable(torch.from_numpy(read[INSTANCES:]), "labels")
    return AdaptedKeys(model, read[:INSTANCES], labels, "cpu", ranks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("start", "stop"), [(0, 14), (3, 9), (14, 19), (16, 17)])
def test_each_rank_makes_its_share_of_the_keys(
    toy: Path, tiny_encoder: Encoder, kind: str, start: int, stop: int
) -> None:
    whole = source(kind, toy, tiny_encoder, ALONE).keys(start, stop, lambda rows: None)
    told: list[int] = []
    shares = [
        source(kind, toy, tiny_encoder, OwnShare(rank, 3)).keys(start, stop, lambda rows: told.append(rows))
        for rank in range(3)
    ]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sum(told) == stop - start
    np.testing.assert_allclose(np.concatenate(shares), whole, atol=1e-6)


class Repeated(OwnShare):
    """One of several processes, the others of which make the same keys as it does."""

    def join_arrays(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        return np.resize(part, (rows, *part.shape[1:]))

    def agree(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_progress_ends_where_all_keys_are_made_however_many_make_them(
    toy: Path, tiny_encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int
) -> None:
    bars = []
    progress_bar = memory_writer._progress_bar

    def watched(*arguments: Any) -> Any:
        bars.append(progress_bar(*arguments))
        return bars[-1]

    monkeypatch.setattr(memory_writer, "_progress_bar", watched)
    dataset, ranks = open_dataset(toy), Repeated(0, size)
    instances = dataset.read_split("train")
    plan = MemoryPlan.of(dataset.labels, instances, tiny_encoder, "0" * 64, "float32")
    write_memory(tmp_path / "memory", plan, dataset.labels, instances, source(kind, toy, tiny_encoder, ranks), ranks)
    (bar,) = bars
    assert bar.n == bar.total == INSTANCES + LABELS
