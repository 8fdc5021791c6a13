"""A small HTTP server for probes, in a thread of its own: GET and HEAD, no bodies, one request a connection.

It stands in the parent of the worker processes, out of reach of whatever the handlers do. Everything about a
client is bounded: how long it may take, how much it may say, and how many there may be at once.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import format_datetime
from http import HTTPStatus
from urllib.parse import urlsplit

from oplogue.clock import Clock
from oplogue.errors import ConfigurationError

_REQUEST = re.compile(rb"([A-Z]{1,16}) (\S+) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_PATIENCE = 5.0
_LARGEST = 8_192
_MOST = 64
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent."""

    status: HTTPStatus
    body: bytes
    kind: str = TEXT


class _RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus, why: str, allow: str | None = None) -> None:
        super().__init__(why)
        self.answer = Answer(status, f"{why}\n".encode())
        self.allow = allow


class Probes:
    """Answers at an address, each path by a function that may block."""

    def __init__(
        self, host: str, port: int, answers: Mapping[str, Callable[[], Answer]], clock: Clock
    ) -> None:
        self._answers = answers
        self._clock = clock
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._clients: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._listens = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="oplogue-probes", daemon=True
        )

    def __enter__(self) -> Probes:
        self._thread.start()
        self._listens.wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, sock=self._socket, limit=_LARGEST, backlog=_MOST)
        self._listens.set()
        await self._stopping.wait()
        server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MOST:
            writer.transport.abort()
            return
        client = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await self._response(reader))
            async with asyncio.timeout(_PATIENCE):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is gone, or too slow to be waited for
        finally:
            writer.transport.abort()

    async def _response(self, reader: asyncio.StreamReader) -> bytes:
        method, allow = b"GET", None
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            method, path = _read(head)
            if path not in self._answers:
                known = ", ".join(sorted(self._answers))
                raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is nothing here; there are {known}")
            answer = await asyncio.to_thread(self._answers[path])
        except _RefusedError as refused:
            answer, allow = refused.answer, refused.allow
        except asyncio.LimitOverrunError:
            answer = Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too long\n")
        return self._head(answer, allow) + (b"" if method == b"HEAD" else answer.body)

    def _head(self, answer: Answer, allow: str | None) -> bytes:
        fields = {
            "Date": format_datetime(self._clock.now(), usegmt=True),
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "Connection": "close",
        }
        if allow is not None:
            fields["Allow"] = allow
        lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return "\r\n".join([*lines, "", ""]).encode()


def _read(head: bytes) -> tuple[bytes, str]:
    """The method and the path of a request."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    fields = [_FIELD.fullmatch(line) for line in lines]
    if request is None or None in fields:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
    said = {field[1].lower(): field[2] for field in fields if field is not None}
    if request[3] == b"1" and b"host" not in said:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "the field Host is missing")
    if request[1] not in (b"GET", b"HEAD"):
        raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD", allow="GET, HEAD")
    if said.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in said:
        raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no bodies here")
    try:
        return request[1], urlsplit(request[2].decode("ascii")).path
    except ValueError as error:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "that is no path") from error


def _listening(host: str, port: int) -> socket.socket:
    """Bound before anything starts, so that an address that can't be had is told at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_MOST)
    except OSError as error:
        raise ConfigurationError(
            os.strerror(error.errno) if error.errno and error.errno > 0 else str(error),
            option="--health",
            value=f"{host}:{port}",
            expected="an address of this machine that is free, such as 127.0.0.1:8081",
        ) from error
