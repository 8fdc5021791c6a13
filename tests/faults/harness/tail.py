"""Files of lines that grow while a test watches: each line is read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Tail:
    """The lines of one file, one JSON object each; what is no JSON (a traceback) is a message."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> list[dict[str, Any]]:
        """What has come since it was last asked. A line that is not whole yet comes the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [_entry(line) for line in whole.decode("utf-8", "replace").splitlines()]


def _entry(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        return {"message": line}
