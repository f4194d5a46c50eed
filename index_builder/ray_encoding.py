"""`recollect train --epochs 0 --ray`: actors of Ray encode the chunks of a memory."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from index_builder.errors import BuildError
from service.ray.cluster import check_address, connected, cores_of_cluster, gpus_of_cluster
from service.threads import usable_cores
from trainer.encoding.remote import Connect, EncodeChunks

if TYPE_CHECKING:
    from service.ray.pool import ActorPool

# Number of chunks for each actor that are sent, or encoded but not written yet.
_CHUNKS_PER_ACTOR = 2


def ray_encoding(address: str) -> Connect:
    """A function that starts actors for a task: one for each core, or for each GPU if they encode on GPUs.

    Raises:
        SettingsError: If Ray is not installed, or the address is malformed.
        ClusterError: If no server answers at the address.
    """
    check_address(address)

    @contextlib.contextmanager
    def connect(task: bytes, device: str) -> Iterator[EncodeChunks]:
        with connected(address, usable_cores()):
            from service.ray.pool import ActorPool

            on_gpu = device == "cuda"
            count = gpus_of_cluster() if on_gpu else cores_of_cluster()
            if count == 0:
                raise BuildError(f"--ray {address}: expected GPUs, found none; use --device cpu")
            with ActorPool("trainer.encoding.remote", task, count, gpus=int(on_gpu)) as actors:
                yield lambda chunks: _in_order(actors, chunks, count * _CHUNKS_PER_ACTOR)

    return connect


def _in_order(actors: ActorPool, chunks: Iterable[tuple[int, bytes]], most: int) -> Iterator[bytes]:
    waiting = deque[Future[bytes]]()
    for start, payload in chunks:
        waiting.append(actors.submit(payload, start))
        if len(waiting) == most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
