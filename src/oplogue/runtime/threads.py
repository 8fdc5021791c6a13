"""Threads for plain handlers: as many as run at once, kept for the next ones.

Not the standard library's pool, for two reasons. Its threads are waited for when the interpreter ends, so that one
handler which hangs would keep a stopped process alive. And its size is fixed, so that handlers which outlive their
timeouts would use it up: nobody can end a thread. How many run at once is the engine's affair, by its slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HandlerThreads(Executor):
    """Daemon threads that grow with the calls that run at once."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        # One permit for each thread that waits for a call, or is about to.
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it in a thread that has nothing to do, or in a new one."""
        future: Future[T] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False):
            self._started += 1
            name = f"oplogue-handler-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they are done; nobody waits for them."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                _finish(future, function)
            # Nothing of a call is kept while the thread waits for the next.
            del call, future, function
            self._idle.release()


def _finish(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except StopIteration as error:
        # As in a coroutine: asyncio's futures don't take a StopIteration, and whoever awaits would wait for ever.
        raised = RuntimeError("the handler raised StopIteration")
        raised.__cause__ = error
        future.set_exception(raised)
    except BaseException as error:  # noqa: BLE001 - SystemExit too is the caller's affair
        future.set_exception(error)
    else:
        future.set_result(result)
