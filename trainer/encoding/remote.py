"""Encodes texts in processes of Ray, which may run on other machines (`recollect train --epochs 0 --ray`).

The processes load the checkpoint of the run, so they must see the run folder. This process sends them chunks of texts,
and writes the keys. A chunk has the same texts as without Ray, so its keys are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from recollect.service.in_order import in_order
from recollect.service.ray_tasks import RayTasks, cluster_resources, connected
from recollect.service.threads import usable_cores
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.keys import KeySource, TextRows
from recollect.trainer.errors import EncoderError
from recollect.trainer.heads.adapter import Side

# Number of chunks for each core or GPU that are sent, or encoded but not written yet. With a second chunk in advance,
# a process keeps its GPU.
_CHUNKS_PER_PROCESS = 2


@dataclass(frozen=True)
class RemoteTexts(KeySource):
    """Keys that processes of Ray make from texts, with the encoder in a checkpoint.

    Attributes:
        rows: The texts.
        checkpoint: The folder of the encoder.
        sha256: Digest of the encoder.
        device: Device of the processes.
        ray: Address of Ray.
    """

    rows: TextRows
    checkpoint: Path
    sha256: str
    device: str
    ray: str

    def chunks(
        self, bounds: Iterable[tuple[int, int]], progress: Callable[[int], object]
    ) -> Iterator[Float[np.ndarray, "row dim"]]:
        chunks = list(bounds)
        with connected(self.ray, usable_cores()):
            on_gpu = self.device == "cuda"
            most = cluster_resources("GPU" if on_gpu else "CPU") * _CHUNKS_PER_PROCESS
            if most == 0:
                raise EncoderError("--ray: expected a cluster with GPUs, found none; use --device cpu")
            with RayTasks(most, int(on_gpu)) as tasks:
                keys = in_order(chunks, lambda chunk: self._submit(tasks, *chunk), tasks.result, most)
                for (start, stop), vectors in zip(chunks, keys, strict=True):
                    progress(stop - start)
                    yield vectors

    def _submit(self, tasks: RayTasks, start: int, stop: int) -> object:
        texts, max_length, side = self.rows.between(start, stop)
        first = start - len(self.rows.instances)
        encoder = str(self.checkpoint.resolve()), self.sha256, self.device
        return tasks.submit(encode_chunk, encoder, texts.to_pylist(), max_length, side, first)


def encode_chunk(
    encoder: tuple[str, str, str], texts: list[str], max_length: int, side: Side, first: int
) -> Float[np.ndarray, "row dim"]:
    """Encode a chunk in a process of Ray. The encoder stays loaded for the next chunk.

    Args:
        encoder: Folder of the checkpoint, digest of the encoder, and device.
        texts: The texts.
        max_length: Maximum number of tokens of a text.
        side: Whether the texts are queries or labels.
        first: Position of the first text among the labels.

    Raises:
        EncoderError: If this process does not see the checkpoint of the run, or sees another one.
    """
    return _load(*encoder).encode(texts, max_length, None, side, first)


@functools.lru_cache(maxsize=1)
def _load(checkpoint: str, sha256: str, device: str) -> Encoder:
    encoder = load_checkpoint(Path(checkpoint), device)
    if encoder_digest(encoder) != sha256:
        raise EncoderError(
            f"{checkpoint}: expected the encoder of this run on all machines, found another one; "
            "put --out on storage that all machines share"
        )
    return encoder
