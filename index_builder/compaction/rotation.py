"""`pca:D`: vectors with fewer dimensions.

The rotation R has the D eigenvectors with the largest eigenvalues of the second moments of all keys. A vector v becomes
the unit vector v R / |v R|. The mean is not subtracted, because similarities are inner products of vectors from the
origin.

R becomes the last layer of the exported encoder, not a transform of the faiss indexes. So all parts of the service see
unit vectors of D dimensions: both indexes, the exhaustive ranking, and new keys that the encoder computes. Faiss does
not normalise after a transform.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
from jaxtyping import Float
from onnx import TensorProto, helper, numpy_helper

from recollect.index_builder.errors import BuildError
from recollect.service.files import save_rows
from recollect.trainer.memory.memory import Memory

_BLOCK_KEYS = 16_384
_OUTPUT, _UNROTATED = "vectors", "unrotated_vectors"


def fit_rotation(memory: Memory, dim: int) -> Float[np.ndarray, "dim served_dim"]:
    """The rotation to `dim` dimensions that keeps the most of the keys' squared lengths.

    Raises:
        BuildError: If `dim` is not less than the dimensions of the keys, or a key is not finite.
    """
    if dim >= memory.plan.dim:
        raise BuildError(
            f"--compact pca:{dim}: expected fewer than the {memory.plan.dim} dimensions of the keys; choose a smaller D"
        )
    moments = np.zeros((memory.plan.dim, memory.plan.dim))
    for start in range(0, memory.plan.keys, _BLOCK_KEYS):
        block = np.asarray(memory.keys[start : start + _BLOCK_KEYS], dtype=np.float32)
        moments += block.T @ block
    if not np.isfinite(moments).all():
        raise BuildError(
            f"{memory.folder / 'keys.npy'}: expected unit vectors, found a number that is not finite; encode the "
            "memory again with `recollect train --overwrite`"
        )
    _, vectors = np.linalg.eigh(moments)  # in order of rising eigenvalues
    largest = vectors[:, : -dim - 1 : -1]
    signs = np.sign(largest[np.abs(largest).argmax(axis=0), np.arange(dim)])  # an eigenvector has no sign of its own
    rotation: np.ndarray = (largest * signs).astype(np.float32)
    return rotation


def rotate(
    vectors: Float[np.ndarray, "text dim"], rotation: Float[np.ndarray, "dim served_dim"]
) -> Float[np.ndarray, "text served_dim"]:
    """The unit vectors in fewer dimensions."""
    rotated: np.ndarray = np.asarray(vectors, dtype=np.float32) @ rotation
    rotated /= np.maximum(np.linalg.norm(rotated, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return rotated


def rotate_memory(memory: Memory, rotation: Float[np.ndarray, "dim served_dim"], folder: Path) -> Memory:
    """The same memory with rotated vectors, which are written to a folder."""
    plan = dataclasses.replace(memory.plan, dim=rotation.shape[1], key_dtype="float32")
    keys = _rotate_to_file(memory.keys, rotation, folder / "rotated_keys.npy")
    distilled = None
    if memory.distilled is not None:
        distilled = _rotate_to_file(memory.distilled, rotation, folder / "rotated_queries.npy")
    return dataclasses.replace(memory, plan=plan, keys=keys, distilled=distilled)


def add_rotation(path: Path, rotation: Float[np.ndarray, "dim served_dim"]) -> None:
    """Append the rotation and a normalisation to an exported encoder, in single precision."""
    model = onnx.load(path)
    graph = model.graph
    (output,) = graph.output
    for node in graph.node:
        node.output[:] = [_UNROTATED if name == _OUTPUT else name for name in node.output]
        node.input[:] = [_UNROTATED if name == _OUTPUT else name for name in node.input]
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.ascontiguousarray(rotation), "rotation"),
            numpy_helper.from_array(np.array([-1], dtype=np.int64), "rotation_axis"),
        ]
    )
    graph.node.extend(
        [
            helper.make_node("MatMul", [_UNROTATED, "rotation"], ["rotated_vectors"], name="rotate"),
            helper.make_node(
                "ReduceL2", ["rotated_vectors", "rotation_axis"], ["rotated_lengths"], name="lengths", keepdims=1
            ),
            helper.make_node("Div", ["rotated_vectors", "rotated_lengths"], [_OUTPUT], name="normalise"),
        ]
    )
    batch = output.type.tensor_type.shape.dim[0].dim_param or "batch"
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(_OUTPUT, TensorProto.FLOAT, [batch, rotation.shape[1]]))
    onnx.save(model, path)


def _rotate_to_file(
    vectors: Float[np.ndarray, "row dim"], rotation: Float[np.ndarray, "dim served_dim"], path: Path
) -> Float[np.ndarray, "row served_dim"]:
    starts = range(0, len(vectors), _BLOCK_KEYS)
    blocks = (rotate(vectors[start : start + _BLOCK_KEYS], rotation) for start in starts)
    return save_rows(path, (len(vectors), rotation.shape[1]), np.dtype(np.float32), blocks)
