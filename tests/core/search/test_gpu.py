"""If a GPU is requested and exists, it is used; otherwise the CPU answers, and the reason is given."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import onnxruntime
import pytest
import structlog

from recollect.core.bundle.manifest import IndexInfo
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor
from recollect.core.search.gpu import GpuIndex, NoGpuError
from recollect.core.search.searcher import KeyIndex, OpenIndex
from recollect.service.versions.opening import Opener
from recollect.store.store import Store

HAS_GPU = hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA GPU, and faiss-gpu")
needs_no_gpu = pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")


@needs_no_gpu
def test_without_a_gpu_the_cpu_gives_the_same_answers_and_a_reason(built: Any) -> None:
    bundle = Store(built.store).open(built.version)
    on_gpu, on_cpu = (Predictor.open(bundle, 1, device) for device in ("cuda", "cpu"))
    assert on_cpu.cpu_reasons == []
    encoder, instances, labels = on_gpu.cpu_reasons
    assert encoder.startswith("encoder.onnx: ONNX Runtime finds no CUDA GPU")
    assert instances.startswith("instance_keys.faiss (Flat): ")
    assert labels.startswith("label_keys.faiss (Flat): ")
    first, second = (
        each.predict(["Who must pay tax"], resolve_options(each.defaults)).answers for each in (on_gpu, on_cpu)
    )
    assert first == second


@needs_no_gpu
def test_error_names_the_gpu_support_that_faiss_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoGpuError, match=r"recollect-xmc\[gpu\]"):
        GpuIndex(faiss.IndexFlatIP(4))
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(NoGpuError, match="faiss finds no GPU"):
        GpuIndex(faiss.IndexFlatIP(4))


@needs_no_gpu
def test_opener_logs_once_a_version_that_the_encoder_or_an_index_runs_on_the_cpu(built: Any) -> None:
    with structlog.testing.capture_logs() as logs:
        Opener(Store(built.store), 1, "cuda").open(built.version, [])
    events = [each for each in logs if each["event"] == "on_cpu"]
    assert len(events) == 3
    assert {each["version"] for each in events} == {built.version}
    assert all(each["why"] for each in events)


@pytest.mark.parametrize(("top_b", "lists", "can"), [(2_048, 0, True), (2_049, 0, False), (200, 2_049, False)])
def test_search_that_exceeds_the_limits_of_a_gpu_runs_on_the_cpu(top_b: int, lists: int, can: bool) -> None:
    assert GpuIndex.can_search(top_b, lists) == can


@pytest.fixture
def keys() -> np.ndarray:
    vectors = np.random.default_rng(0).standard_normal((5_000, 32)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def written(keys: np.ndarray, factory: str, folder: Any) -> Any:
    index = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(keys)
    index.add(keys)
    faiss.write_index(index, str(folder / "keys.faiss"))
    return folder / "keys.faiss"


@needs_gpu
@pytest.mark.parametrize(("factory", "kind", "effort"), [("Flat", "flat", 0), ("IVF64,SQ8", "ivf", 16)])
def test_gpu_search_finds_the_same_keys_as_the_cpu_search(
    keys: np.ndarray, tmp_path: Any, factory: str, kind: Any, effort: int
) -> None:
    path = written(keys, factory, tmp_path)
    info = IndexInfo(kind=kind, factory=factory, keys=5_000, effort=effort)
    there, here = KeyIndex(OpenIndex(path, "cuda"), info), KeyIndex(OpenIndex(path), info)
    assert there.cpu_reason == ""
    for top_b in (1, 200, 3_000):  # the last number exceeds the limit of a GPU
        first, second = there.search(keys[:50], top_b), here.search(keys[:50], top_b)
        np.testing.assert_allclose(first.similarities, second.similarities, atol=1e-3)
        assert (first.keys == second.keys).mean() > 0.98


@needs_gpu
def test_graph_index_runs_on_the_cpu(keys: np.ndarray, tmp_path: Any) -> None:
    info = IndexInfo(kind="hnsw", factory="HNSW16", keys=5_000, effort=64)
    index = KeyIndex(OpenIndex(written(keys, "HNSW16", tmp_path), "cuda"), info)
    assert "faiss cannot copy the index to the GPU" in index.cpu_reason
    assert index.search(keys[:1], 5).keys[0, 0] == 0


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(), reason="needs onnxruntime-gpu"
)
def test_encoder_runs_on_the_gpu(built: Any) -> None:
    bundle = Store(built.store).open(built.version)
    there, here = (Predictor.open(bundle, 1, device) for device in ("cuda", "cpu"))
    assert there.encoder.cpu_reason == ""
    np.testing.assert_allclose(there.encode(["a tax"]), here.encode(["a tax"]), atol=1e-2)
