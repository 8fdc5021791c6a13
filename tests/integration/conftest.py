"""Fixtures for tests of the store's verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from tests.support.rig import Rig


@pytest.fixture
async def rig(
    client: AsyncMongoClient[dict[str, Any]], db: AsyncDatabase[dict[str, Any]]
) -> AsyncIterator[Rig]:
    """A collection with its task records and their indexes."""
    rig = Rig(client, db)
    await rig.records.ensure_indexes()
    yield rig
    await rig.close()
