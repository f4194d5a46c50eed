"""Checks of a bundle before it is published: golden queries, bounds, and the gate against the current version."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.bundle.manifest import Check
from recollect.index_builder.build import build
from recollect.index_builder.errors import CheckFailed
from recollect.index_builder.evaluation.evaluate import evaluate
from recollect.index_builder.settings import BuildSettings, EvaluateSettings
from recollect.index_builder.verify import check
from recollect.store.store import Store
from tests.processes import copy_store

GATED = [f"{metric} on dataset, points lost" for metric in ("P@1", "P@5", "nDCG@5", "R@100")]


# Checks.


@pytest.mark.parametrize(
    ("found", "bounds", "passed"),
    [
        (0.5, {}, True),
        (0.5, {"minimum": 0.5, "limit": 0.5}, True),
        (0.49, {"minimum": 0.5}, False),
        (0.51, {"limit": 0.5}, False),
        (float("nan"), {"minimum": 0.5}, False),
        (float("nan"), {"limit": 0.5}, False),
    ],
)
def test_check_passes_within_its_bounds(found: float, bounds: dict[str, float], passed: bool) -> None:
    checked = check("share", found, **bounds)
    assert checked.passed is passed
    assert checked.found == (None if np.isnan(found) else found)


def checks_of(store: Path, version: str) -> dict[str, Check]:
    return {each.name: each for each in Store(store).manifest(version).checks}


# The gate against the current version.


@pytest.fixture
def store(built: Any, tmp_path: Path) -> Path:
    """A copy of the built store. The same version is current in the copy."""
    return copy_store(built.store, tmp_path / "store")


@pytest.fixture
def worse_run(built: Any, tmp_path: Path) -> Path:
    """A copy of the run in which the labels of the instances are shuffled."""
    run = shutil.copytree(built.run, tmp_path / "run")
    path = run / "memory" / "value_indices.npy"
    np.save(path, np.random.default_rng(7).permutation(np.load(path)))
    return run


def gated(run: Path, store: Path, built: Any, **settings: Any) -> BuildSettings:
    return BuildSettings(run=run, store=store, index="flat", gate_dataset=built.dataset, threads=1, **settings)


def test_gate_accepts_a_bundle_that_is_as_good_as_the_current_version(
    built: Any, store: Path, quick_road_export: None
) -> None:
    version = build(gated(built.run, store, built, max_drop=0))
    checks = checks_of(store, version)
    assert [(name, checks[name].found, checks[name].most) for name in GATED] == [(name, 0, 0) for name in GATED]


def test_gate_rejects_a_worse_bundle_and_force_publishes_it_with_the_points_that_it_loses(
    built: Any, store: Path, worse_run: Path, quick_road_export: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckFailed, match=r"P@1 on dataset, points lost.*--force") as failed:
        build(gated(worse_run, store, built))
    assert failed.value.exit_status == 1
    assert "golden" not in str(failed.value)  # the golden queries pass, because the bundle answers as its memory does
    assert Store(store).versions() == [built.version]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("P@1 on dataset")]
    assert line.endswith("<= 0.5          FAILED")
    version = build(gated(worse_run, store, built, force=True))
    metrics = [
        evaluate(EvaluateSettings(dataset=built.dataset, store=store, version=each, threads=1)).rows[0]
        for each in (built.version, version)
    ]
    checks = checks_of(store, version)
    for name in GATED:
        metric = name.partition(" on ")[0]
        assert checks[name].found == pytest.approx(metrics[0][metric] - metrics[1][metric])
    assert not checks["P@1 on dataset, points lost"].passed
    assert checks["P@1 on dataset, points lost"].found > 20
