"""Encodes texts in other processes, which may run on other machines (`recollect train --epochs 0 --ray`).

The processes load the checkpoint of the run, so they must see the run folder. This process sends them chunks of texts,
and writes the keys. A chunk has the same texts as without other processes, so its keys are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.encoding.keys import KeySource, TextRows
from recollect.trainer.errors import EncoderError

# Encodes chunks in other processes. Takes the number of rows before each chunk, and its texts as `RemoteTexts` writes
# them; yields the keys of the chunks in the same order.
EncodeChunks = Callable[[Iterable[tuple[int, bytes]]], Iterator[bytes]]
# Starts such processes for a task of `open_program` and a device.
Connect = Callable[[bytes, str], AbstractContextManager[EncodeChunks]]


@dataclass(frozen=True)
class RemoteTexts(KeySource):
    """Keys that other processes make from texts, with the encoder in a checkpoint.

    Attributes:
        rows: The texts.
        checkpoint: The folder of the encoder.
        sha256: Digest of the encoder.
        dim: Size of a key.
        device: Device of the other processes.
        connect: Starts them.
    """

    rows: TextRows
    checkpoint: Path
    sha256: str
    dim: int
    device: str
    connect: Connect

    def chunks(
        self, bounds: Iterable[tuple[int, int]], progress: Callable[[int], object]
    ) -> Iterator[Float[np.ndarray, "row dim"]]:
        task = {"checkpoint": str(self.checkpoint.resolve()), "sha256": self.sha256, "device": self.device}
        chunks = list(bounds)
        with self.connect(json.dumps(task).encode(), self.device) as encode:
            contents = encode((start, self._payload(start, stop)) for start, stop in chunks)
            for (start, _), content in zip(chunks, contents, strict=True):
                vectors = np.frombuffer(content, dtype=np.float32).reshape(-1, self.dim)
                progress(len(vectors))
                yield self.rows.as_keys(start, vectors)

    def _payload(self, start: int, stop: int) -> bytes:
        texts, max_length, side = self.rows.between(start, stop)
        first = start - len(self.rows.instances)
        fields = {"texts": texts.to_pylist(), "max_length": max_length, "side": side, "first": first}
        return json.dumps(fields).encode()


def open_program(task: bytes) -> Callable[[bytes, int], bytes]:
    """Load the encoder in another process; return the function that encodes a chunk there.

    Raises:
        EncoderError: If this process does not see the checkpoint of the run, or sees another one.
    """
    fields = json.loads(task)
    encoder = load_checkpoint(Path(fields["checkpoint"]), fields["device"])
    if encoder_digest(encoder) != fields["sha256"]:
        raise EncoderError(
            f"{fields['checkpoint']}: expected the encoder of this run on all machines, found another one; "
            "put --out on storage that all machines share"
        )

    def encode(payload: bytes, first: int) -> bytes:
        chunk = json.loads(payload)
        return encoder.encode(chunk["texts"], chunk["max_length"], None, chunk["side"], chunk["first"]).tobytes()

    return encode
