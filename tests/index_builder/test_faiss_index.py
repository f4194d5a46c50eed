"""Indexes over unit vectors: flat indexes, inverted lists, graphs, other factory strings, and rejected inputs."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from recollect.core.bundle.manifest import IndexInfo
from recollect.core.search.searcher import KeyIndex, OpenIndex
from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import (
    HNSW_EFFORT,
    KeysToIndex,
    build_index,
    check_factory,
    empty_index,
    linked_graph,
    write_index,
)
from recollect.index_builder.recall import exact_neighbours, reachable_share
from tests.index_builder.vectors import clustered_keys, enriched, opened, random_keys, recall_of


@pytest.mark.parametrize(
    ("factory", "kind", "effort", "refine"),
    [
        ("SQfp16", "flat", 0, 1),
        ("PQ8x4fs,Refine(SQ8)", "flat", 0, 2),
        ("PCA8,Flat", "flat", 0, 1),
        ("IVF32,RaBitQ4", "ivf", 2, 1),
        ("IVF8,Flat", "ivf", 1, 1),
        ("PCA8,IVF64,SQ8,RFlat", "ivf", 4, 2),
        ("HNSW16", "hnsw", HNSW_EFFORT, 1),
        ("RR16,HNSW8,SQ8", "hnsw", HNSW_EFFORT, 1),
    ],
)
def test_manifest_entry_states_kind_and_effort_for_any_factory_string(
    factory: str, kind: str, effort: int, refine: float
) -> None:
    _, info = build_index(KeysToIndex(random_keys(3_000)), factory)
    expected = {"kind": kind, "factory": factory, "keys": 3_000, "effort": effort, "refine": refine}
    assert info.model_dump() == expected


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
def test_keys_of_any_length_are_found_by_their_inner_products(tmp_path: Path, factory: str) -> None:
    keys = np.random.default_rng(0).uniform(0.1, 9, (3_000, 1)).astype(np.float32) * random_keys(3_000)
    index, info = build_index(KeysToIndex(keys, unit=False), factory)
    write_index(index, tmp_path / "keys.faiss")
    found = KeyIndex(OpenIndex(tmp_path / "keys.faiss"), info.model_copy(update={"effort": 4})).search(keys[:50], 5)
    expected = -np.sort(-(keys[:50].astype(np.float64) @ keys.T), axis=1)[:, :5]
    np.testing.assert_allclose(found.similarities, expected, rtol=1e-5)
    keys[42, 0] = np.nan
    with pytest.raises(BuildError, match="row 1042: expected a vector of finite numbers"):
        build_index(KeysToIndex(keys, 1_000, unit=False), factory)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("lsh", "could not parse index string lsh"),
        ("IVF4,PQ5", "The dimension of the vector (d) should be a multiple of the number of subquantizers (M)"),
    ],
)
def test_error_for_a_rejected_factory_string_contains_the_message_of_faiss(factory: str, reason: str) -> None:
    with pytest.raises(BuildError) as refused:
        build_index(KeysToIndex(random_keys(100)), factory)
    expected = "expected auto, flat, ivf, hnsw or a faiss factory string for keys of 16 dimensions, faiss says: "
    assert str(refused.value).startswith(f"--index {factory!r}: {expected}")
    assert str(refused.value).endswith(reason)
    assert "/project/" not in str(refused.value)


@pytest.mark.parametrize(
    ("factory", "found"),
    [
        ("HNSW0", "found that faiss crashes with SIG"),
        ("IVF4,PQ8x4fs_0", "found that faiss crashes with SIG"),
        ("ZnLattice2x10_4", "expected an index that faiss can build, write and read back, found: "),
    ],
)
def test_factory_string_that_crashes_faiss_is_rejected_without_a_crash(factory: str, found: str) -> None:
    with pytest.raises(BuildError) as refused:
        check_factory(factory, 16)
    assert str(refused.value).startswith(f"--index {factory!r}: ")
    assert found in str(refused.value)


@pytest.mark.parametrize("factory", ["IVF64,SQ8", "PQ8x4fs", "OPQ8,IVF64,PQ8x4fs,RFlat"])
def test_error_for_fewer_keys_than_clusters_names_the_next_step(factory: str) -> None:
    expected = r"expected enough keys to train the index, found 15: .*number of clusters.*; use fewer clusters, or "
    with pytest.raises(BuildError, match=expected):
        build_index(KeysToIndex(random_keys(15)), factory)


@pytest.mark.parametrize("kind", ["flat", "ivf", "PCA8,HNSW8"])
@pytest.mark.parametrize("value", [np.nan, 0.0, 0.2])
def test_error_names_the_memory_row_of_a_key_that_is_not_a_unit_vector(kind: str, value: float) -> None:
    keys = random_keys(100)
    keys[42] = value if value != 0.2 else keys[42] * 1.01
    expected = "row 1042: expected a unit vector, found length .*train --overwrite"
    with pytest.raises(BuildError, match=expected):
        build_index(KeysToIndex(keys, 1_000), kind)
    with pytest.raises(BuildError, match=expected):
        list(KeysToIndex(keys, 1_000).blocks())


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_index_can_be_built_over_enriched_label_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("recollect.trainer.memory.search._BLOCK_KEYS", 64)
    keys, queries = enriched(300), random_keys(20)
    index = opened(keys, kind, tmp_path)
    found = index.search(queries, 300)
    assert index.shape == (300, 16)
    assert all(sorted(row) == list(range(300)) for row in found.keys.tolist())
    expected = np.take_along_axis(queries @ keys[:].T, found.keys, axis=1)
    np.testing.assert_allclose(
        found.similarities, expected, atol=1e-5 if kind == "flat" else 0.02
    )  # ivf and hnsw store eight bits for each number


# GPU builds.

HAS_GPU = hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


@pytest.mark.skipif(HAS_GPU, reason="the machine has a GPU")
@pytest.mark.parametrize("factory", ["Flat", "IVF16,SQ8"])
def test_cpu_builds_the_same_index_if_there_is_no_gpu_and_a_message_states_the_reason(
    factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cuda, on_cpu = (
        build_index(KeysToIndex(random_keys(900)), factory, device=device)[0] for device in ("cuda", "cpu")
    )
    np.testing.assert_array_equal(faiss.serialize_index(on_cuda), faiss.serialize_index(on_cpu))
    lacking = "this faiss does not support GPUs; it needs recollect-xmc[gpu] in place of [cpu]"
    assert capsys.readouterr().err == f"{factory}: built on the CPU: {lacking}\n"


@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA GPU and faiss-gpu")
@pytest.mark.parametrize("factory", ["Flat", "IVF16,SQ8", "IVF16,PQ8x4fs,Refine(SQ8)", "HNSW8"])
def test_index_built_on_a_gpu_is_as_good_as_one_built_on_the_cpu(factory: str) -> None:
    keys = clustered_keys(4_000)
    found = []
    for device in ("cuda", "cpu"):
        index, info = build_index(KeysToIndex(keys), factory, device=device)
        assert info.keys == index.ntotal == 4_000
        found.append(index.search(keys[:100], 10)[0].mean())
    assert abs(found[0] - found[1]) < 0.02


def test_graph_of_given_links_is_written_and_searched_like_any_graph(tmp_path: Path) -> None:
    keys = random_keys(3_000)
    index = empty_index("HNSW8,SQ8", 16)
    index.train(keys)
    index.storage.add(keys)
    write_index(linked_graph(index, exact_neighbours(keys, keys, 17).keys[:, 1:]), tmp_path / "keys.faiss")
    graph = KeyIndex(OpenIndex(tmp_path / "keys.faiss"), IndexInfo(kind="hnsw", factory="HNSW8,SQ8", keys=3_000))
    assert graph.shape == (3_000, 16)
    assert reachable_share(graph.index) > 0.99
    assert recall_of(graph, keys, keys[:50], exact_neighbours(keys, keys[:50], 100)) > 0.95
    rows = np.arange(5, 500, 3)
    np.testing.assert_allclose(graph.similarities(keys[0], rows), keys[rows] @ keys[0], atol=0.02)


@pytest.mark.skipif(not hasattr(faiss, "GpuIndexCagra") or not HAS_GPU, reason="needs a CUDA GPU and faiss-gpu-cuvs")
@pytest.mark.parametrize("factory", ["HNSW16", "HNSW32,SQ8"])
def test_keys_of_a_graph_are_linked_on_a_gpu_and_searched_on_the_cpu(
    tmp_path: Path, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = clustered_keys(20_000)
    index, info = build_index(KeysToIndex(keys), factory, device="cuda")
    assert capsys.readouterr().err == ""  # nothing was built on the CPU instead
    write_index(index, tmp_path / "keys.faiss")
    graph = KeyIndex(OpenIndex(tmp_path / "keys.faiss"), info)
    assert isinstance(graph.index, faiss.IndexHNSWCagra)
    assert (info.kind, reachable_share(graph.index)) == ("hnsw", 1)
    assert recall_of(graph, keys, keys[:200], exact_neighbours(keys, keys[:200], 100)) > 0.95
