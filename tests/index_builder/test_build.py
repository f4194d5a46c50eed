"""`recollect build`: the manifest, rejected inputs, and an unchanged store after a failed build."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

import recollect
from recollect.core.bundle.bundle import open_bundle
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor
from recollect.core.search.searcher import unwrapped
from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError, CheckFailed
from recollect.index_builder.settings import BuildSettings
from recollect.model import open_model
from recollect.store.store import Store
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.memory import open_memory, write_defaults
from tests import forked
from tests.conftest import TOPICS
from tests.store.servers import create_bucket, s3_server

ChangeArray = Callable[[str, Callable[[np.ndarray], Any]], None]
QUERY = "Who must pay tax on the sale of a house"


def answers(store: Path, version: str) -> list[str]:
    predictor = open_model(store, version).predictor
    return [label.uid for label in predictor.predict([QUERY], resolve_options(predictor.defaults)).answers[0].labels]


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_manifest_states_quality_and_counts_of_the_bundle(built: Any) -> None:
    manifest = Store(built.store).manifest(built.version)
    assert 0.9999 <= manifest.metrics["parity_worst_cosine"] <= manifest.metrics["parity_mean_cosine"] <= 1.0001
    assert (manifest.metrics["recall_instances"], manifest.metrics["recall_labels"]) == (1, 1)
    assert (manifest.counts.instances, manifest.counts.labels, manifest.counts.pairs) == (28, 8, 30)
    assert (manifest.dim, manifest.encoder.precision, manifest.encoder.pooling) == (384, "fp32", "mean")
    assert (manifest.defaults.lambda_, manifest.defaults.temperature, manifest.defaults.top_b) == (0.5, 0.04, 200)
    assert sorted(path.name for path in (built.store / "bundles").iterdir()) == [built.version]
    assert answers(built.store, built.version)[0] == "Taxation"


def test_bundle_lists_the_labels_of_each_instance_and_the_instances_of_each_label(built: Any) -> None:
    memory, bundle = open_memory(built.run / "memory"), Store(built.store).open(built.version)
    np.testing.assert_array_equal(bundle.instances.values.indices, memory.value_indices)
    votes = np.split(memory.value_indices, memory.value_indptr[1:-1])
    voters = np.split(bundle.instances.voters.indices, bundle.instances.voters.indptr[1:-1])
    assert [row.tolist() for row in voters] == [
        [instance for instance, row in enumerate(votes) if label in row] for label in range(8)
    ]


def test_bundle_can_be_published_in_a_store_on_s3(tiny_run: Path, quick_export: None, tmp_path: Path) -> None:
    with s3_server() as address:
        url, cache = create_bucket(address, tmp_path.name), tmp_path / "cache"
        version = build(BuildSettings(run=tiny_run, store=url, bundle_cache=cache, activate=True))
        store = Store(url, None, cache)
        assert (store.current(), store.versions()) == (version, [version])
        assert store.open(version).manifest.version == version


def test_memory_that_a_cpu_encoded_in_bf16_passes_all_checks_with_queries_in_fp32(
    built: Any, quick_road_export: None, tmp_path: Path
) -> None:
    run = recollect.train(built.dataset, out=tmp_path / "run", epochs=0, precision="bf16")
    keys, exact = (open_memory(each / "memory").keys for each in (run, built.run))
    assert 0 < np.abs(keys - exact).max() < 0.01
    version = build(BuildSettings(run=run, store=tmp_path / "store", index="flat"))
    assert all(each.passed for each in Store(tmp_path / "store").manifest(version).checks)
    assert answers(tmp_path / "store", version)[0] == "Taxation"


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_every_kind_of_index_can_be_built_over_eight_labels(
    tiny_run: Path, quick_export: None, tmp_path: Path, kind: str
) -> None:
    version = build(BuildSettings.model_validate({"run": tiny_run, "store": tmp_path, "index": kind}))
    manifest = Store(tmp_path).manifest(version)
    assert (manifest.index.instances.kind, manifest.index.labels.kind) == (kind, kind)
    assert manifest.metrics["recall_labels"] == 1
    assert len(answers(tmp_path, version)) == 8


@pytest.mark.parametrize(("index", "factory"), [("hnsw", "HNSW64,SQ8"), ("HNSW64,Flat", "HNSW64,Flat")])
def test_graph_has_the_given_links_and_efforts(
    tiny_run: Path, quick_export: None, tmp_path: Path, index: str, factory: str
) -> None:
    links = {"hnsw_m": 64} if index == "hnsw" else {}
    given = {"index": index, "hnsw_ef_construction": 500, "hnsw_ef_search": 300} | links
    version = build(BuildSettings.model_validate({"run": tiny_run, "store": tmp_path} | given))
    manifest = Store(tmp_path).manifest(version)
    assert (manifest.index.instances.factory, manifest.index.instances.effort) == (factory, 300)
    assert [point.effort for point in manifest.curves["labels"]] == [300]
    for part in ("instance", "label"):
        index = faiss.read_index(str(tmp_path / "bundles" / version / f"{part}_keys.faiss"))
        graph = unwrapped(index).hnsw
        assert (graph.nb_neighbors(0), graph.efConstruction) == (2 * 64, 500)  # twice as many on the lowest level


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("lsh", "--index 'lsh': expected auto, flat, ivf, hnsw or a faiss factory string for keys of 32 dimensions"),
        ("IVF4,PQ7", "multiple of the number of subquantizers"),
    ],
)
def test_build_with_a_factory_string_that_faiss_rejects_fails_at_once(
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    index: str,
    message: str,
) -> None:
    monkeypatch.setattr("recollect.index_builder.build.write_bundle_tables", pytest.fail)
    assert recollect.main(["build", str(tiny_run), "--store", str(tmp_path), "--index", index]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert message in err


@pytest.fixture
def small_top_b(run: Path) -> Path:
    """A run with top_b = 5, which is fewer than all keys, so that an index can miss some of them."""
    memory = open_memory(run / "memory")
    write_defaults(run / "memory", memory.plan, memory.defaults | {"top_b": 5})
    return run


HOPELESS = "PCA1,Flat"  # keeps one of 32 dimensions


def test_force_publishes_a_failed_bundle_and_the_manifest_records_the_failure(
    small_top_b: Path, quick_export: None, tmp_path: Path
) -> None:
    version = build(BuildSettings(run=small_top_b, store=tmp_path / "store", index=HOPELESS, force=True))
    manifest = Store(tmp_path / "store").manifest(version)
    failed = {each.name: each for each in manifest.checks if not each.passed}
    name = f"recall at 5, instances ({HOPELESS})"
    assert (failed[name].least, failed[name].found) == (0.98, manifest.metrics["recall_instances"])
    assert failed[name].found == max(point.recall for point in manifest.curves["instances"])


@pytest.mark.parametrize(
    ("budget", "failed"),
    [({"memory_budget": "1KB"}, "indexes, bytes"), ({"latency_budget_ms": 1e-6}, "search, ms a query on one thread")],
)
def test_check_fails_when_no_index_meets_the_budget(
    tiny_run: Path, quick_export: None, tmp_path: Path, budget: dict[str, Any], failed: str
) -> None:
    with pytest.raises(CheckFailed, match=f"expected every check to pass, 1 failed: {failed}; the bundle is not"):
        build(BuildSettings.model_validate({"run": tiny_run, "store": tmp_path} | budget))
    assert contents(tmp_path) == {}


def test_label_keys_include_instances_when_the_memory_sets_label_key_alpha(
    run: Path, quick_export: None, tmp_path: Path
) -> None:
    memory = open_memory(run / "memory")
    write_defaults(run / "memory", memory.plan, memory.defaults | {"label_key_alpha": 0.5})
    version = build(BuildSettings(run=run, store=tmp_path / "store", index="flat"))
    folder = Store(tmp_path / "store").bundles / version
    instances, texts = np.split(memory.keys.astype(np.float64), [28])
    votes = [row.tolist() for row in np.split(memory.value_indices, memory.value_indptr[1:-1])]
    expected = texts.copy()
    for label in range(7):  # the eighth label has no instance
        total = instances[[row for row, labels in enumerate(votes) if label in labels]].sum(axis=0)
        mixed = 0.5 * texts[label] + 0.5 * total / np.linalg.norm(total)
        expected[label] = mixed / np.linalg.norm(mixed)
    assert np.abs(expected - texts).max() > 0.01
    served = {part: faiss.read_index(str(folder / f"{part}_keys.faiss")) for part in ("instance", "label")}
    np.testing.assert_allclose(served["label"].reconstruct_n(0, 8), expected, atol=1e-6)
    np.testing.assert_array_equal(served["instance"].reconstruct_n(0, 28), memory.keys[:28])

    metrics = Store(tmp_path / "store").manifest(version).metrics
    assert (metrics["recall_instances"], metrics["recall_labels"]) == (1, 1)
    predictor = Predictor.open(open_bundle(folder), threads=1)
    options = resolve_options(predictor.defaults, lambda_=0.0, temperature=1.0, top_k=8)
    labels = predictor.predict([QUERY], options).answers[0].labels
    weights = np.exp(expected @ load_checkpoint(run / "checkpoint", "cpu").encode([QUERY], 64)[0])
    found = {label.uid: label.score for label in labels}
    assert found == pytest.approx(dict(zip(TOPICS, weights / weights.sum(), strict=True)), abs=1e-5)


def test_keys_of_another_encoder_are_rejected(
    run: Path, quick_export: None, tmp_path: Path, change_array: ChangeArray
) -> None:
    change_array("keys.npy", lambda keys: keys.__setitem__(slice(28), keys[:28][::-1].copy()))
    with pytest.raises(BuildError, match=r"row \d+: expected the checkpoint's vector"):
        build(BuildSettings(run=run, store=tmp_path / "store"))


def test_memory_that_other_encoder_weights_computed_is_rejected(run: Path, tmp_path: Path) -> None:
    header = json.loads((run / "memory" / "memory.json").read_text())
    (run / "memory" / "memory.json").write_text(json.dumps(header | {"encoder_sha256": "0" * 64}))
    with pytest.raises(BuildError, match="found another encoder"):
        build(BuildSettings(run=run, store=tmp_path / "store"))


@pytest.mark.parametrize("lines", [["{"], []])
def test_memory_with_damaged_texts_is_rejected(run: Path, quick_export: None, tmp_path: Path, lines: list[str]) -> None:
    path = run / "memory" / "instances.jsonl"
    path.write_text("\n".join([*path.read_text().splitlines()[: 28 - 1], *lines]) + "\n")
    with pytest.raises(BuildError, match=r"instances\.jsonl: expected"):
        build(BuildSettings(run=run, store=tmp_path / "store"))
    assert list((tmp_path / "store" / "bundles").iterdir()) == []


# A program that imports the packages once, then forks a process that builds, for each crash. Its arguments are the run,
# the store and the exported encoder.
CRASHES = """
import os, resource, shutil, signal, sys
import recollect, recollect.index_builder.build as builder, recollect.index_builder.choose_index as choose_index
from recollect.core.predictor import Predictor
from recollect.core.search.searcher import unwrapped
from recollect.store.store import Store
from pathlib import Path
run, store, exported = sys.argv[1:4]

def copy(encoder, folder, *_):
    for path in Path(exported).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())

def crash(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at(owner, step):
    return lambda: setattr(owner, step, crash)

def full_at(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

builder.export_encoder = copy
crashes = {
    "export": kill_at(builder, "export_encoder"),
    "index": kill_at(choose_index, "write_index"),
    "verify": kill_at(Predictor, "open"),
    "rename": kill_at(Path, "rename"),
    "activate": kill_at(Store, "activate"),
    **{f"full {size}": full_at(size) for size in (0, 600, 2_000, 5_000, 60_000)},
}
for name, prepare in crashes.items():
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        prepare()
        os._exit(recollect.main(["build", run, "--store", store, "--activate", "--threads", "1"]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(name, status, len(Store(Path(store)).versions()), sep="|")
"""


def test_build_that_crashes_in_any_step_leaves_a_valid_store(
    built: Any, tiny_run: Path, exported: Path, quick_export: None, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = build(BuildSettings(run=tiny_run, store=store, activate=True))
    before = contents(store)
    done = forked.run(
        [sys.executable, "-c", CRASHES, str(tiny_run), str(store), str(exported)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = (line.split("|") for line in done.stdout.splitlines())
    # The exit status of the build, and the number of published versions after it.
    assert {name: (int(status), int(versions)) for name, status, versions in lines} == {
        **dict.fromkeys(("export", "index", "verify", "rename"), (-9, 1)),
        "activate": (-9, 2),  # the version is published, but not the current version
        **{f"full {size}": (2, 2) for size in (0, 600, 2_000, 5_000, 60_000)},
    }, done.stderr
    messages = [line for line in done.stderr.splitlines() if line.startswith("recollect build: ")]
    assert len(messages) == 5
    assert all("File too large" in line for line in messages), messages
    assert before.items() <= contents(store).items()
    assert Store(store).current() == first
    for version in Store(store).versions():
        assert len(answers(store, version)) == 8
    assert Store(store).current() != build(BuildSettings(run=tiny_run, store=store, activate=True))
    assert len(Store(store).versions()) == 3
