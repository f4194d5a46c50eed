"""`recollect train --epochs 0 --ray`: actors of Ray encode the chunks of a memory."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from recollect.index_builder.errors import BuildError
from recollect.service.ray.cluster import connected, cores_of_cluster, gpus_of_cluster
from recollect.service.threads import usable_cores
from recollect.trainer.distributed import require_single_process
from recollect.trainer.encoding.remote import Connect, EncodeChunks

if TYPE_CHECKING:
    from recollect.service.ray.pool import ActorPool

# Number of chunks for each actor that are sent, or encoded but not written yet.
_CHUNKS_PER_ACTOR = 2


@contextlib.contextmanager
def ray_encoding(address: str | None) -> Iterator[Connect | None]:
    """Connect to Ray, and yield a function that starts actors for a task; without an address, yield None.

    There is an actor for each core, or for each GPU if they encode on GPUs.

    Raises:
        TrainingError: If `torchrun` started this process with others.
        SettingsError: If Ray is not installed, or the address is malformed.
        ClusterError: If Ray does not start, or no cluster answers at the address.
    """
    if address is None:
        yield None
        return
    require_single_process("train --ray")
    with connected(address, usable_cores()):
        yield _start_actors


@contextlib.contextmanager
def _start_actors(task: bytes, device: str) -> Iterator[EncodeChunks]:
    from recollect.service.ray.pool import ActorPool

    on_gpu = device == "cuda"
    count = gpus_of_cluster() if on_gpu else cores_of_cluster()
    if count == 0:
        raise BuildError("--ray: expected a cluster with GPUs, found none; use --device cpu")
    with ActorPool("recollect.trainer.encoding.remote", task, count, gpus=int(on_gpu)) as actors:
        yield lambda chunks: _in_order(actors, chunks, count * _CHUNKS_PER_ACTOR)


def _in_order(actors: ActorPool, chunks: Iterable[tuple[int, bytes]], most: int) -> Iterator[bytes]:
    waiting = deque[Future[bytes]]()
    for start, payload in chunks:
        waiting.append(actors.submit(payload, start))
        if len(waiting) == most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
