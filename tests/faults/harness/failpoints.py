"""The server's ``failCommand``: real errors and closed connections, at chosen commands of chosen clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo import MongoClient


class FailPoint:
    """Sets the server's fail point, and tells how often it struck."""

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self._client = client
        self._before = 0

    def set(self, data: Mapping[str, Any], *, times: int) -> None:
        """Let the next so many commands that match fail."""
        answer = self._client.admin.command(
            {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": dict(data)}
        )
        self._before = int(answer["count"])

    @property
    def strikes(self) -> int:
        """How many commands have failed so far."""
        answer = self._client.admin.command({"getParameter": 1, "failpoint.failCommand": 1})
        return int(answer["failpoint.failCommand"]["timesEntered"]) - self._before

    def off(self) -> int:
        """Let commands through again; how many failed."""
        answer = self._client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        return int(answer["count"]) - self._before
