"""Threads for plain handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from oplogue.runtime.threads import HandlerThreads


@pytest.fixture
def threads() -> Iterator[HandlerThreads]:
    pool = HandlerThreads()
    yield pool
    pool.shutdown()


def test_a_thread_that_is_free_takes_the_next_call(threads: HandlerThreads) -> None:
    first = threads.submit(threading.get_ident).result(10)
    # Its result comes a moment before the thread is free again.
    while threads.submit(threading.get_ident).result(10) != first:
        pass


def test_calls_that_hang_leave_room_for_others(threads: HandlerThreads) -> None:
    hanging = threading.Event()
    stuck = [threads.submit(hanging.wait) for _ in range(20)]
    assert threads.submit(lambda: "done").result(10) == "done"
    hanging.set()
    assert all(one.result(10) for one in stuck)


def test_no_thread_keeps_the_interpreter_from_ending(threads: HandlerThreads) -> None:
    assert threads.submit(lambda: threading.current_thread().daemon).result(10)


def test_threads_end_after_shutdown(threads: HandlerThreads) -> None:
    thread = threads.submit(threading.current_thread).result(10)
    threads.shutdown()
    thread.join(10)
    assert not thread.is_alive()


def test_whatever_is_raised_reaches_the_caller(threads: HandlerThreads) -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        threads.submit(leave).result(10)
    assert threads.submit(lambda: 1).result(10) == 1


async def test_a_stop_iteration_does_not_leave_its_caller_waiting(threads: HandlerThreads) -> None:
    nothing: Iterator[int] = iter(())
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.get_running_loop().run_in_executor(threads, lambda: next(nothing))
