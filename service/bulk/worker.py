"""The program of a worker process or an actor: it opens the version, and turns blocks of rows into blocks of output.

    python -m recollect.service.bulk.worker DESCRIPTOR

DESCRIPTOR is the number of the inherited socket to the main process. The first message on it is the task. The worker
then answers each block. It ends when the main process closes its end of the socket, or dies. An actor of Ray calls
`open_program` instead (`recollect.service.ray.actor`).
"""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.service.bulk.blocks import Answered
from recollect.service.bulk.task import Task
from recollect.service.errors import ServiceError
from recollect.service.threads import ThreadBudget

if TYPE_CHECKING:
    from recollect.service.model import Model
    from recollect.service.predictor.answers import Answer

# Keys that are searched and ranked together. With the 16,384 of the service, which must not block for long, the
# multiplications are smaller, and the search of a flat index takes a third longer.
_BLOCK_KEYS = 65_536


def main(descriptor: int) -> None:
    connection = Connection(descriptor)
    try:
        answer = open_program(connection.recv_bytes())
    except (ServiceError, OSError, ModuleNotFoundError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        connection.send_bytes(json.dumps({"error": str(error), "missing": missing}).encode())
        return
    connection.send_bytes(json.dumps({"error": None, "missing": None}).encode())
    try:
        while True:
            first = int(connection.recv_bytes())
            answered = answer(connection.recv_bytes(), first)
            connection.send_bytes(json.dumps({"rows": answered.rows, "error": answered.error}).encode())
            connection.send_bytes(answered.content)
    except (EOFError, ConnectionError):  # the main process has ended
        return


def open_program(task: bytes) -> Answerer:
    """Open the version of a task, given as JSON."""
    ThreadBudget.of(workers=1, threads=1).apply()
    from recollect.service.model import open_model

    read = Task.from_json(task)
    verify_key, bundle_cache = (Path(path) if path else None for path in (read.verify_key, read.bundle_cache))
    return Answerer(open_model(read.store, read.version, verify_key, bundle_cache), read)


class Answerer:
    """Answers the rows of blocks.

    Raises:
        QueryError: If an option needs probabilities that the version does not give.
    """

    def __init__(self, model: Model, task: Task) -> None:
        self._predictor, self._options, self._task = model.predictor, model.resolve(**task.options), task
        self._predictor.block_keys = _BLOCK_KEYS

    def __call__(self, payload: bytes, first: int) -> Answered:
        """Answer a block.

        Args:
            payload: The payload of the block.
            first: Number of rows before the block.
        """
        from recollect.service.bulk.rows import Rows
        from recollect.service.bulk.writing import encode

        rows = Rows.parse(payload, first, self._task)
        good = [number for number in range(len(rows.texts)) if number not in rows.errors]
        answers: list[Answer | None] = [None] * len(rows.texts)
        if good:
            found = self._predictor.predict([rows.texts[number] for number in good], self._options).answers
            for number, answer in zip(good, found, strict=True):
                answers[number] = answer
        return Answered(encode(rows, answers, self._task), first + len(rows.texts), rows.stop)


if __name__ == "__main__":
    main(int(sys.argv[1]))
