"""The query encoder: tokenizer and ONNX graph; pooling and normalisation are inside the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from jaxtyping import Float
from tokenizers import Encoding, Tokenizer

from service.errors import opening
from service.manifest import EncoderInfo

# Rows that run together: of like length, so that padding costs little.
_BATCH_ROWS = 32


@dataclass(frozen=True)
class Tokens:
    """A tokenised batch; `truncated` says which texts were longer than the encoder reads."""

    ids: list[list[int]]
    truncated: list[bool]


class QueryEncoder:
    """Texts to unit vectors."""

    def __init__(self, folder: Path, info: EncoderInfo, threads: int) -> None:
        self._pad_id = info.pad_id
        with opening(folder / "tokenizer.json") as path:
            self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(info.max_length)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores alone
        options.log_severity_level = 3
        with opening(folder / "encoder.onnx") as path:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=_providers())
        self.dim: int = self._session.get_outputs()[0].shape[-1]

    def tokenise(self, texts: Sequence[str]) -> Tokens:
        encodings: list[Encoding] = self._tokenizer.encode_batch_fast(list(texts))
        return Tokens([each.ids for each in encodings], [bool(each.overflowing) for each in encodings])

    def encode(self, tokens: Tokens) -> Float[np.ndarray, "query dim"]:
        vectors = np.empty((len(tokens.ids), self.dim), dtype=np.float32)
        order = np.argsort([len(ids) for ids in tokens.ids], kind="stable")
        for start in range(0, len(order), _BATCH_ROWS):
            rows = order[start : start + _BATCH_ROWS]
            vectors[rows] = self._run([tokens.ids[row] for row in rows])
        return vectors

    def _run(self, rows: list[list[int]]) -> Float[np.ndarray, "row dim"]:
        lengths = np.array([len(ids) for ids in rows])
        mask = np.arange(lengths.max()) < lengths[:, None]
        input_ids = np.full(mask.shape, self._pad_id, dtype=np.int64)
        input_ids[mask] = np.concatenate(rows)
        feed = {"input_ids": input_ids, "attention_mask": mask.astype(np.int64)}
        vectors: np.ndarray = self._session.run(["vectors"], feed)[0]
        return vectors


def _providers() -> list[str]:
    """CUDA where its build of ONNX Runtime and a GPU are there, the CPU behind it."""
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    return [provider for provider in wanted if provider in onnxruntime.get_available_providers()]
