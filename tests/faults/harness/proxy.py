"""A TCP proxy between a worker and its server: cuts, delays, and half-open connections."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from enum import Enum
from types import TracebackType
from typing import Self

from harness.waiting import CLOCK


class Line(Enum):
    """The state of the line."""

    CLEAR = "clear"
    SLOW = "slow"
    """Every answer comes late."""
    SILENT = "silent"
    """Connections stay open, and nothing goes through in either direction."""
    MUTE = "mute"
    """Half-open: requests reach the server, answers don't come back."""
    CUT = "cut"
    """Connections are closed, and new ones too."""


class Proxy:
    """Listens on a port of its own, from a thread of its own."""

    def __init__(self, port: int, *, delay: float = 0.3) -> None:
        self._target = port
        self._delay = delay
        self._line = Line.CLEAR
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0
        self.held_back = 0
        """Pieces that the line has kept from going through."""

    def uri_for(self, database: str) -> str:
        """The server's address by way of this proxy."""
        return f"mongodb://127.0.0.1:{self.port}/{database}?directConnection=true"

    def set(self, line: Line) -> None:
        """Change the state of the line."""

        def change() -> None:
            self._line = line
            self._changed.set()
            self._changed = asyncio.Event()
            if line is Line.CUT:
                for writer in self._writers:
                    writer.transport.abort()

        self._loop.call_soon_threadsafe(change)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._line is Line.CUT:
                self.held_back += 1
                return
            to_server, from_us = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(from_us)
            try:
                await asyncio.gather(
                    self._carry(reader, from_us, answers=False), self._carry(to_server, writer, answers=True)
                )
            finally:
                self._writers.discard(from_us)
                from_us.transport.abort()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self._line is Line.SLOW and answers:
                    self.held_back += 1
                    await CLOCK.sleep(self._delay)
                while self._line is Line.SILENT or (self._line is Line.MUTE and answers):
                    self.held_back += 1
                    await self._changed.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
