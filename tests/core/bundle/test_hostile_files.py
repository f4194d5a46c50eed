"""faiss and ONNX Runtime refuse hostile files instead of reading outside of them or crashing the process.

Checksums and signatures do not help if the builder itself was deceived. Older releases of the two libraries were not
tested, so pyproject.toml requires at least the releases that passed these tests.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

import recollect
from tests import forked
from tests.processes import copy_store
from tests.service.stores import add_version, rehash

REPOSITORY = Path(__file__).parents[3]
# The releases with which this file was tested last. A higher floor needs no change of a test, a lower floor does.
TESTED = {"faiss": (1, 15, 1), "onnxruntime": (1, 31, 1)}

# Program that writes a changed HNSW index, then reads and searches it as the service does. A crash ends only this
# process.
FORGE = """
import sys
import faiss, numpy as np
keys = np.random.default_rng(0).standard_normal((300, 8)).astype("float32")
index = faiss.IndexHNSWFlat(8, 16, faiss.METRIC_INNER_PRODUCT)
index.add(keys)

def change(vector, row, value):
    content = faiss.vector_to_array(vector)
    content[row] = value
    faiss.copy_array_to_vector(content, vector)

{change}
faiss.write_index(index, sys.argv[1])
try:
    faiss.read_index(sys.argv[1], faiss.IO_FLAG_MMAP_IFC).search(keys[:3], 5)
except RuntimeError:
    print("refused")
else:
    print("accepted")
"""
GRAPHS = {
    "no change": "",
    "neighbour outside of the index": "change(index.hnsw.neighbors, 5, 10**6)",
    "negative neighbour": "change(index.hnsw.neighbors, 5, -7)",
    "entry point outside of the index": "index.hnsw.entry_point = 10**6",
    "too many levels": "index.hnsw.max_level = 100",
    "offset outside of the neighbours": "change(index.hnsw.offsets, 7, 2**40)",
    "more keys than vectors": "index.ntotal = 10**6",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_forged_graph_of_an_index_is_refused(tmp_path: Path, name: str) -> None:
    done = forked.run_code(FORGE.format(change=GRAPHS[name]), tmp_path / "index")
    assert done.stdout == ("accepted\n" if name == "no change" else "refused\n")


@pytest.mark.parametrize("first", [10**9, -(10**7), 3])
def test_index_that_names_keys_outside_of_the_bundle_is_refused(
    light_versions: Path, tmp_path: Path, first: int
) -> None:
    def forge(folder: Path, manifest: dict[str, Any]) -> None:
        path = folder / "instance_keys.faiss"
        index = faiss.read_index(str(path))
        vectors = index.reconstruct_n(0, index.ntotal)
        lists = faiss.IndexIVFFlat(faiss.IndexFlatIP(index.d), index.d, 2, faiss.METRIC_INNER_PRODUCT)
        lists.train(vectors)
        lists.add_with_ids(vectors, np.arange(len(vectors)) + first)
        faiss.write_index(lists, str(path))
        manifest["index"]["instances"] |= {"kind": "ivf", "factory": "IVF2,Flat", "effort": 2}
        rehash(folder, manifest)

    store = copy_store(light_versions, tmp_path / "store")
    add_version(store, "v3", "forged", forge)
    with pytest.raises(recollect.ERRORS, match="instance_keys.faiss: expected keys below [0-9]+, found others"):
        recollect.open(store, version="forged").predict("bread", lambda_=1.0, top_b=10_000)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "inside/../../secret"])
def test_encoder_with_weights_outside_of_its_folder_is_refused(tmp_path: Path, location: str) -> None:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    (tmp_path / "bundle" / "inside").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(bytes(64))
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "4")):
        weights.external_data.add(key=key, value=value)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16]) for name in "ab"]
    graph = helper.make_graph([helper.make_node("Add", ["a", "w"], ["b"])], "g", ends[:1], ends[1:], [weights])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (tmp_path / "bundle" / "encoder.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match=r"(?i)external"):
        onnxruntime.InferenceSession(str(tmp_path / "bundle" / "encoder.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("library", TESTED)
def test_required_release_of_a_library_is_at_least_the_tested_one(library: str) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    floors = [
        tuple(map(int, found[1].split(".")))
        for requirement in sum(extras.values(), [])
        if (found := re.match(rf"{library}(?:-cpu|-gpu-cuvs|-gpu\[cuda,cudnn\])?>=([\d.]+)", requirement))
    ]
    assert len(floors) == 2
    assert all(floor >= TESTED[library] for floor in floors)
    package = "faiss-cpu" if library == "faiss" else library
    installed = tuple(map(int, importlib.metadata.version(package).split(".")[:3]))
    assert installed >= TESTED[library]
