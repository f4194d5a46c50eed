"""Every method of the registry, from its flags to an answer, and the learned numbers of a loss."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import recollect
from recollect.trainer import methods
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.methods import METHODS, MethodOptions
from recollect.trainer.methods.scored import Scored
from tests.trainer.runs import Train, results

# Modules of the folder that several methods share.
SHARED = {"method", "scored", "log_soft_top_k"}
# Options with which a method has all its parts.
COMPLETE = {"supcon": ["--projection", 8]}


def test_every_module_with_a_method_is_in_the_registry() -> None:
    assert {module.name for module in pkgutil.iter_modules(methods.__path__)} - SHARED == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_method_trains_and_its_run_is_loaded_built_and_answers(
    name: str, train: Train, tiny_bert: Any, run_folder: Path, tmp_path: Path
) -> None:
    static = ["--encoder", "static", "--static-from", tiny_bert.folder]  # exported as a table, at once
    outcome = train("--method", name, *static, "--max-steps", 2, "--tune", "no", *COMPLETE.get(name, []))
    assert outcome.status == 0, outcome.err
    encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
    assert (encoder.model.head is None) == (METHODS[name].head is None)
    texts = ["quick The over lazy", "lawn garden"]
    assert np.isfinite(encoder.encode(texts, 16)).all()
    store = tmp_path / "store"
    build = ["build", run_folder, "--store", store, "--index", "flat", "--precision", "int8", "--activate"]
    assert recollect.main([str(word) for word in build]) == 0
    best = [answers[0] for answers in recollect.open(store).predict(texts)]
    assert len(best) == len(texts)
    assert all(label.score > 0 for label in best)
    assert memory.plan.dim == encoder.dim


@pytest.mark.parametrize("part", ["adapter", "full"])
def test_learned_numbers_of_a_loss_are_trained_and_resumed(
    part: str, train: Train, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, float]] = []

    def loss(scored: Scored, options: MethodOptions, interrupted_at: int | None = None) -> Tensor:
        scale, bias = scored.numbers["scale"], scored.numbers["bias"]
        if len(seen) == interrupted_at:
            raise KeyboardInterrupt
        seen.append((scale.item(), bias.item()))
        return METHODS["bce"].loss(dataclasses.replace(scored, scores=scored.scores * scale.exp() + bias), options)

    def use(loss: Callable[..., Tensor]) -> None:
        method = dataclasses.replace(METHODS["bce"], loss=loss, temperature=None, numbers={"scale": 1.0, "bias": -2.0})
        monkeypatch.setitem(METHODS, "dexml", method)

    words = ["--method", "dexml", "--train", part, "--save-minutes", 0, "--max-steps", 9]
    use(loss)
    assert train(*words).status == 0
    whole = seen.copy()
    assert whole[0] == (1.0, -2.0)
    assert len(set(whole)) == len(whole) == 9
    seen.clear()
    use(functools.partial(loss, interrupted_at=5))
    assert train(*words, "--out", tmp_path / "again").status == 130
    use(loss)
    assert train(*words, "--out", tmp_path / "again", "--resume").status == 0
    assert seen == whole
    assert results(run_folder) == results(tmp_path / "again")
