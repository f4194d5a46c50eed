"""The threads that change the memory: refusals, cancelled requests, shutdown."""

from __future__ import annotations

import asyncio
import threading

import pytest

from recollect.service.errors import OverloadError
from recollect.service.serving import change_threads
from recollect.service.serving.change_threads import ChangeThreads


def test_change_returns_its_result_or_raises_its_error() -> None:
    async def run() -> None:
        threads = ChangeThreads()
        assert await threads.run(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        threads.close()

    asyncio.run(run())


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


def test_further_changes_are_refused_and_waiting_ones_are_dropped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_threads, "_THREADS", 1)
    monkeypatch.setattr(change_threads, "_MAX_CHANGES", 2)

    async def run() -> None:
        threads, started, go, changed = ChangeThreads(), threading.Event(), threading.Event(), list[int]()

        def change() -> None:
            started.set()
            go.wait()
            changed.append(1)

        first = asyncio.create_task(threads.run(change))
        await asyncio.to_thread(started.wait)
        second = asyncio.create_task(threads.run(lambda: changed.append(2)))
        await asyncio.sleep(0)
        with pytest.raises(OverloadError, match="2 changes of the memory wait"):
            await threads.run(lambda: changed.append(3))
        closing = asyncio.create_task(asyncio.to_thread(threads.close))
        with pytest.raises(asyncio.CancelledError):  # its thread never ran
            await second
        go.set()
        await asyncio.gather(first, closing)
        assert changed == [1]

    asyncio.run(run())
