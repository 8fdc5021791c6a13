"""What failures look like on the command line: an exit code, and one line."""

from __future__ import annotations

from oplogue.errors import ConfigurationError, OplogueError, UnknownTaskError

OK, WRONG, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: all is well, the operation found something wrong, wrong usage, interrupted."""

_CONTEXT = (" (configured timeouts", ", Timeout: ")
"""Where the driver's messages turn from what happened to how it was set up."""


def code_of(error: BaseException) -> int:
    """The exit code that an error comes to."""
    return USAGE if isinstance(error, (ConfigurationError, UnknownTaskError)) else WRONG


def told(error: BaseException) -> str:
    """The error in one line.

    >>> told(OplogueError("no server\\n  at all")), told(KeyError("x"))
    ('no server at all', "KeyError: 'x'")
    """
    if isinstance(error, OplogueError):
        return " ".join(str(error).split())
    from oplogue.store.faults import StoreError, describe  # help and mistakes are told without the driver

    if isinstance(error, StoreError):
        text = describe(error)
        ends = [text.find(context) for context in _CONTEXT if context in text]
        return text[: min(ends, default=len(text))]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
