"""The precision in which a CPU encodes a memory: bf16 if it is close to fp32 and faster, as the run records it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recollect
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.precision import choose_precision
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.memory.memory import open_memory
from tests.trainer.conftest import SAMPLE_TEXTS, load
from tests.trainer.helpers import learned_adapter, learned_head, unit

TEXTS = pa.array(SAMPLE_TEXTS, pa.large_string())


def choose(encoder: Encoder, asked: Any, texts: pa.LargeStringArray = TEXTS) -> tuple[str, str]:
    """The precision, and the line that states the reason."""
    lines = list[str]()
    chosen = choose_precision(encoder, texts, asked, lines.append)
    return chosen, "".join(lines)


@pytest.fixture
def minilm() -> Encoder:
    return load("minilm")  # type: ignore[no-any-return,arg-type]


def test_vectors_in_bf16_are_unit_vectors_close_to_those_in_fp32_also_above_an_adapter_and_a_head(
    minilm: Encoder,
) -> None:
    head = learned_head("prime", minilm.dim, 8)
    for encoder in (minilm, minilm.with_adapter(learned_adapter(minilm.dim, 16, std=0.01), head)):
        for side in ("queries", "labels"):
            full, half = (
                encoder.in_precision(each).encode(SAMPLE_TEXTS, 32, side=side)  # type: ignore[arg-type]
                for each in ("fp32", "bf16")
            )
            assert not np.array_equal(full, half)
            assert (full.astype(np.float64) * half).sum(axis=1) == pytest.approx(1, abs=1e-3)
            np.testing.assert_allclose(half, unit(half), atol=1e-6)
            assert encoder.precision == "fp32"


def test_bf16_is_refused_by_the_flag_for_few_texts_and_for_vectors_that_are_not_close(minilm: Encoder) -> None:
    assert choose(minilm, "fp32") == choose(minilm, "auto") == ("fp32", "")
    chosen, line = choose(minilm, "bf16")
    assert chosen == "bf16"
    assert line.startswith("encode: bf16, worst cosine 0.99")
    for weights in minilm.model.transformer.parameters():
        weights.data *= 4
    chosen, line = choose(minilm, "bf16")
    assert chosen == "fp32"
    assert line.startswith("encode: fp32, because a vector in bf16 has the cosine ")


def test_many_texts_are_encoded_in_the_precision_that_is_faster_here(minilm: Encoder) -> None:
    chosen, line = choose(minilm, "auto", pa.array(["a short text"] * 2_000, pa.large_string()))
    assert line.startswith(f"encode: {chosen}, ")


class TestRun:
    @pytest.fixture
    def train(self, toy: Path, tmp_path: Path) -> Callable[..., Path]:
        return lambda name="run", **flags: recollect.train(toy, out=tmp_path / name, **{"epochs": 0} | flags)

    def test_interrupted_memory_and_new_texts_have_the_recorded_precision(self, train: Callable[..., Path]) -> None:
        memory = train(precision="bf16") / "memory"
        before = (memory / "keys.npy").read_bytes()
        header = json.loads((memory / "memory.json").read_text())
        assert header["precision"] == "bf16"
        (memory / "memory.json").unlink()
        (memory / "progress.json").write_text(json.dumps(header | {"keys_done": 5}))
        train()
        assert (memory / "keys.npy").read_bytes() == before
        for flags in ({}, {"epochs": 2, "method": "rae"}):
            again = train(f"again-{len(flags)}", vectors=memory.parent, **flags)
            assert open_memory(again / "memory").plan.precision == "bf16"

    def test_fp32_is_refused_for_keys_in_bf16(self, train: Callable[..., Path]) -> None:
        run = train(precision="bf16")
        for flags in ({}, {"name": "other", "vectors": run}, {"name": "trained", "vectors": run, "epochs": 1}):
            with pytest.raises(MemoryFolderError, match=r"--precision fp32: expected keys .* found keys in bf16"):
                train(precision="fp32", **flags)
        train(precision="fp32", overwrite=True)
        assert open_memory(run / "memory").plan.precision == "fp32"

    def test_unknown_precision_is_refused(self, train: Callable[..., Path]) -> None:
        path = train() / "memory" / "memory.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"precision": "fp8"}))
        with pytest.raises(MemoryFolderError, match="expected a memory's header, found: .*fp8"):
            open_memory(path.parent)
