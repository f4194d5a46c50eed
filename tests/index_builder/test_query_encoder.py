"""Bundles of runs with a distilled query encoder: the student encodes queries, and the keys stay the teacher's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError
from recollect.index_builder.reranker.artefact import fitted_for
from recollect.index_builder.settings import BuildSettings
from recollect.model import open_model
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.errors import EncoderError
from recollect.trainer.memory.memory import QUERY_VECTORS, open_memory


@pytest.fixture(scope="module")
def distilled_run(tiny_run: Path, built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run with a distilled query encoder. Tests must not change this run."""
    from recollect.trainer.run import write_run
    from recollect.trainer.train_settings import TrainSettings

    run = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("distilled") / "run"))
    encoder = str(tiny_run.parent / "encoder")
    settings = {"epochs": 0, "dataset": built.dataset, "encoder": encoder, "max_length": 64}
    write_run(TrainSettings(out=run, query_encoder="static", validation_fraction=0.2, **settings))  # type: ignore[arg-type]
    return run


@pytest.fixture
def copied(distilled_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(distilled_run, tmp_path / "run"))


def refused(run: Path, folder: Path) -> str:
    with pytest.raises((BuildError, EncoderError)) as error:
        build(BuildSettings(run=run, store=folder / "store", index="flat"))
    return str(error.value)


def test_bundle_serves_the_student_with_the_teachers_keys(distilled_run: Path, tmp_path: Path) -> None:
    version = build(BuildSettings(run=distilled_run, store=tmp_path, index="flat"))
    predictor = open_model(tmp_path, version).predictor
    memory = open_memory(distilled_run / "memory")
    student = load_checkpoint(distilled_run / "query_encoder", "cpu")
    info = predictor.manifest.encoder
    assert (info.kind, info.teacher, info.max_length) == ("static", memory.plan.encoder["name"], 64)
    assert info.name == f"static:{info.teacher}"
    texts = [predictor.bundle.instances.texts[row] for row in range(20)]
    np.testing.assert_allclose(predictor.encode(texts), student.encode(texts, 64), atol=1e-4)
    found = predictor.memory.searcher.search(np.asarray(memory.instance_keys[:20]), 1).instances
    np.testing.assert_allclose(found.similarities[:, 0], 1, atol=1e-5)


def test_vectors_of_another_student_are_refused(copied: Path, tmp_path: Path) -> None:
    path = copied / "memory" / QUERY_VECTORS
    np.save(path, np.load(path)[::-1])
    message = refused(copied, tmp_path)
    assert message.startswith(f"{path}: row ")
    assert "expected the checkpoint's vector of the text" in message


def test_ranker_depends_on_the_vectors_of_queries(distilled_run: Path, tiny_run: Path) -> None:
    before, after = (fitted_for(open_memory(run / "memory")) for run in (tiny_run, distilled_run))
    assert set(after) - set(before) == {"query_vectors_sha256"}
    assert before.items() <= after.items()
