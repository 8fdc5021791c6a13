"""What ``oplogue dev`` sets up: an embedded MongoDB whose data stay, and a worker that is started again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from oplogue.cli.supervising import Orders, supervise
from oplogue.cli.targets import check_form
from oplogue.embedded import start_embedded
from oplogue.errors import ConfigurationError

_DATABASE = "dev"


def develop(target: str, data: Path) -> int:
    """Run the app until a signal; the exit code."""
    check_form(target)
    _prepare(data)
    with start_embedded(data=data) as server:
        uri = server.uri_for(_DATABASE)
        os.environ["OPLOGUE_MONGODB_URI"] = uri  # the worker's App() finds it there
        print(f"oplogue: MongoDB at {uri}; its data are kept in {data}", file=sys.stderr, flush=True)
        return supervise(target, Orders(reload=True))


def _prepare(data: Path) -> None:
    """Make the folder, and keep it out of version control."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        ignored = data / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            error.strerror or str(error), option="--data", value=str(data), expected="a folder to write to"
        ) from error
