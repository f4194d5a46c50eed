"""The threads that change the memory: refusals, cancelled requests, shutdown."""

from __future__ import annotations

import asyncio
import threading

import pytest

from recollect.service.http.memory_routes import ChangeThreads


def test_change_is_completed_if_its_request_is_cancelled() -> None:
    async def run() -> None:
        threads, started, go, done = ChangeThreads(), threading.Event(), threading.Event(), threading.Event()

        def change() -> None:
            started.set()
            go.wait()
            done.set()

        task = asyncio.create_task(threads.run(change))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await asyncio.to_thread(done.wait)
        threads.close()

    asyncio.run(run())
