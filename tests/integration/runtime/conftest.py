"""Apps on the test's fresh database, stopped when the test has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.support.running import Stage

from oplogue import App
from oplogue.runtime.settings import PACE_VARIABLE

Document = dict[str, Any]
MakeStage = Callable[..., Stage]


@pytest.fixture
async def make_stage(
    database_uri: str, client: AsyncMongoClient[Document], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeStage]:
    """Make an app of the test's database; options are those of `App`. Stopped before the client is closed.

    ``pace``: how much of its time a reconciliation works. Next to nothing of it: it rests after its first range.
    """
    stages: list[Stage] = []

    def make(*, pace: float = 0.5, **options: Any) -> Stage:
        usual: dict[str, Any] = {"uri": database_uri, "lease": "6s", "shutdown_timeout": "5s"}
        monkeypatch.setenv(PACE_VARIABLE, str(pace))
        stage = Stage(App(**{**usual, **options}))
        stages.append(stage)
        return stage

    yield make
    for stage in stages:
        await stage.app.stop()


@pytest.fixture
async def stage(make_stage: MakeStage) -> Stage:
    """An app with the usual options, not started."""
    return make_stage()


@pytest.fixture
def orders(db: AsyncDatabase[Document]) -> AsyncCollection[Document]:
    """The collection that most tasks watch."""
    return db["orders"]
