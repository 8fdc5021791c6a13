"""What the driver's errors mean to the engine, in one place."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConnectionFailure,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WTimeoutError,
)

from oplogue.clock import Clock
from oplogue.store.fields import document_in, list_in

Result = TypeVar("Result")

HISTORY_LOST = 286
FELL_BEHIND = 136
"""A cursor over a capped collection, the oplog among them, was overtaken."""
NAMESPACE_EXISTS = 48

# Interrupted, step-downs, no primary, snapshots gone, write conflicts: the same statement may go through later.
_PASSING = {
    6, 7, 11, 24, 43, 50, 64, 83, 89, 91, 112, 117, 133, 134, 136, 148, 175, 189, 202, 203, 225, 237, 251, 262, 290,
    317, 358, 384, 402, 9001, 10058, 10107, 11600, 11601, 11602, 13388, 13435, 13436,
}  # fmt: skip
UNSENDABLE = 10334
# Too large, an id that no merge takes, a conversion in an expression that fails on it.
_DOCUMENTS = {241, 10334, 17419, 17420, 51132}
_NO_UNIQUE_INDEX = 51183
_PRIVILEGES = {13, 18, 8000}

# What the driver adds to a message: its settings; its view of every member, or the answer, with the error once more.
_NOISE = re.compile(
    r" \(configured timeouts: [^)]*\)|, Timeout: [\d.]+s, Topology Description: .*|, full error: .*",
    re.DOTALL,
)

StoreError = PyMongoError
"""What an operation of the store may raise besides Oplogue's own errors."""


def is_passing(error: BaseException) -> bool:
    """Whether the same statement may succeed when it is sent again."""
    if isinstance(error, BulkWriteError):
        return all(failed.get("code") in _PASSING for failed in _failed_writes(error))
    if isinstance(error, DuplicateKeyError):
        return True
    if isinstance(error, (ConnectionFailure, AutoReconnect, NetworkTimeout, ExecutionTimeout, WTimeoutError)):
        return True
    if isinstance(error, OperationFailure):
        return error.code in _PASSING or error.has_error_label("RetryableWriteError")
    if isinstance(error, PyMongoError):
        return bool(getattr(error, "timeout", False))
    return False


def _failed_writes(error: BulkWriteError) -> list[dict[str, Any]]:
    details = document_in(error.details)
    return [document_in(failed) for failed in list_in(details.get("writeErrors"))]


def is_refusal(error: BaseException) -> bool:
    """Whether the server understood the statement and will never take it."""
    return isinstance(error, OperationFailure) and not is_passing(error) and not is_forbidden(error)


def is_about_the_document(error: BaseException) -> bool:
    """Whether it is the document that can't be planned."""
    return isinstance(error, OperationFailure) and error.code in _DOCUMENTS


def misses_index(error: BaseException) -> bool:
    """Whether our own collection of records was dropped, and its unique index with it."""
    return isinstance(error, OperationFailure) and error.code == _NO_UNIQUE_INDEX


def is_forbidden(error: BaseException) -> bool:
    """Whether this user lacks a privilege."""
    return isinstance(error, OperationFailure) and error.code in _PRIVILEGES


def is_stalled(error: BaseException) -> bool:
    """Whether a statement ran out of its time: it may have waited for somebody's transaction, and still wait."""
    return isinstance(error, (ExecutionTimeout, NetworkTimeout, WTimeoutError)) or (
        isinstance(error, OperationFailure) and error.code in {50, 112}
    )


def is_closed(error: BaseException) -> bool:
    """Whether the client was closed under the operation."""
    return isinstance(error, InvalidOperation)


def describe(error: BaseException) -> str:
    """One line for logs and records: the class, the code and the message, without the server's whole answer."""
    code = getattr(error, "code", None)
    number = f" {code}" if isinstance(code, int) else ""
    text = _NOISE.sub("", str(error))
    if isinstance(error, BulkWriteError):
        text = next((str(failed.get("errmsg")) for failed in _failed_writes(error)), text)
    return f"{type(error).__name__}{number}: {text.splitlines()[0] if text else ''}"[:500]


async def persisting(
    operation: Callable[[], Awaitable[Result]],
    clock: Clock,
    *,
    until: Callable[[], bool],
    longest: float = 2.0,
) -> Result:
    """Send a statement again while its failures are of the passing kind, slower each time; give up on ``until``."""
    pause = 0.02
    while True:
        try:
            return await operation()
        except PyMongoError as error:
            if not is_passing(error) or until():
                raise
        await clock.sleep(pause * (0.5 + clock.random()))
        pause = min(2 * pause, longest)


__all__ = [
    "FELL_BEHIND",
    "HISTORY_LOST",
    "NAMESPACE_EXISTS",
    "UNSENDABLE",
    "DuplicateKeyError",
    "OperationFailure",
    "StoreError",
    "WriteConcernError",
    "describe",
    "is_about_the_document",
    "is_closed",
    "is_forbidden",
    "is_passing",
    "is_refusal",
    "is_stalled",
    "misses_index",
    "persisting",
]
