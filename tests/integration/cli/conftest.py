"""Commands run in this process, on the test's database, beside the test's own apps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.runtime.conftest import make_stage, orders, stage

from oplogue.cli import main

__all__ = ["make_stage", "orders", "stage"]


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one document that it printed, as plain JSON."""
        return json.loads(self.out)


Command = Callable[..., Awaitable[Said]]


@pytest.fixture
def oplogue(
    database_uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Run ``oplogue`` with these arguments; the database is that of the environment."""
    monkeypatch.setenv("OPLOGUE_MONGODB_URI", database_uri)

    async def run(*arguments: str) -> Said:
        capsys.readouterr()

        def ended() -> int:
            with pytest.raises(SystemExit) as exit_:
                main(arguments)
            assert isinstance(exit_.value.code, int)
            return exit_.value.code

        # A command has an event loop of its own.
        code = await asyncio.to_thread(ended)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run
