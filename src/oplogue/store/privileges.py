"""What the user of the URI must be allowed to do: a privilege that is missing is told at start, in one line."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import timedelta

from oplogue.errors import ConfigurationError
from oplogue.store.connection import Client, bounded
from oplogue.store.faults import OperationFailure, describe, is_forbidden

_COMMAND = re.compile(r"command \{ (\w+).*")
_NAME = r"\1"


@contextmanager
def permitted() -> Generator[None]:
    """ConfigurationError for what the server forbids this user inside."""
    try:
        yield
    except OperationFailure as error:
        if not is_forbidden(error):
            raise
        # The server repeats the whole command, which is long and says nothing more than its name.
        raise ConfigurationError(
            f"the server forbids it: {_COMMAND.sub(_NAME, describe(error))}",
            expected="a user who may read and write the databases of the tasks: the role readWrite on each will do",
        ) from error


async def check_stream(client: Client, databases: Collection[str], *, bound: timedelta) -> None:
    """Open the change stream that a leader would follow, and close it: an error of the server where it may not be."""
    if not databases:
        return
    with bounded(bound):
        name, *others = databases
        watched = client if others else client.get_database(name)
        async with await watched.watch(batch_size=1):
            pass
